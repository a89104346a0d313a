"""The page: the surprisal of each word of a text, and its continuation of a prompt, as HTML.

There is no script in it and nothing from elsewhere, so that a browser with nothing allowed shows it. Typed
fields are checked here.

V = vocabulary.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jinja2

from ptb_lm.common import cli, streams
from ptb_lm.common.errors import UserError
from ptb_lm.data.vocabulary import EOS
from ptb_lm.inference import scoring
from ptb_lm.inference.inputs import encode, split_sentences
from ptb_lm.inference.language_model import LanguageModel
from ptb_lm.inference.sampling import Prediction, likeliest
from ptb_lm.training import run_folders
from ptb_lm.training.evaluation import format_perplexity

LIKELIEST = 5  # words that are shown beside one that was read
MOST_WORDS = 500  # read or continued from: a word takes some milliseconds
MOST_WRITTEN = 300
# Words, some of which are shown where the model refuses all that it does not know.
COMMON_WORDS, EXAMPLE_WORDS = 200, 12
DRAFTS, LEAST_DRAFTED, MOST_DRAFTED = 8, 5, 40  # sentences of `write_opening`, and their words

# Where a word's colour changes, in bits: each is twice as unlikely as one of a bit less.
BOUNDS = (2, 4, 6, 8, 10, 13)
# Light backgrounds for dark text, dark ones for light text; the more orange, the more surprising.
LIGHT = ("#ffffff", "#fff1dc", "#ffe0b3", "#ffcb85", "#ffb35c", "#ff9a3d", "#f98327")
DARK = ("#17191c", "#33261a", "#4a2f16", "#623813", "#7a3f0e", "#8f460a", "#a34c05")
TEXT = {"light": "#1a1a1a", "dark": "#f2f2f2"}


def shade(bits: float) -> int:
    """Return the number of a surprisal's colour, 0 for the least."""
    return sum(bits >= bound for bound in BOUNDS)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["shade"] = shade


class FieldError(UserError):
    """A field holds text that cannot be used; `field` is its name."""

    def __init__(self, problem: str, field: str) -> None:
        super().__init__(problem)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class ReadWord:
    """A word, and the words that the model expected in its place.

    Attributes:
        word: The word as it was typed, or `<eos>` at the end of a line.
        unknown: True if the vocabulary lacks it, so that it is read as `<unk>`.
        bits: Surprisal of the word: minus the logarithm of its probability, to the base 2.
        likeliest: The words that were likeliest, the first the most.
    """

    word: str
    unknown: bool
    bits: float
    likeliest: tuple[Prediction, ...]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The words with which the model continued a prompt."""

    text: str  # as a person reads them behind the prompt
    unknown: tuple[str, ...]  # words of the prompt that the vocabulary lacks


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """The fields as they were typed, and the answer to them; one that does not apply is None.

    Attributes:
        text: The text to read, as it was typed.
        prompt: The prompt to continue.
        length: The number of words, as it was typed.
        temperature: The temperature, as it was typed.
        words: The text's words, as they were read.
        continuation: The words that follow the prompt.
        problem: A sentence about an error in `field` or, if that is empty, in the request.
        field: The name of the field that has the focus.
        is_opening: True if nobody typed it: the server's `use` chose the text.
    """

    text: str = ""
    prompt: str = ""
    length: str = "40"
    temperature: str = "0.8"
    words: list[ReadWord] | None = None
    continuation: Continuation | None = None
    problem: str = ""
    field: str = ""
    is_opening: bool = False


def write_page(content: PageContent, *, model: str) -> str:
    """Return the page.

    Args:
        content: The content of the page.
        model: A line that says which model answers.
    """
    words = content.words or []
    perplexity = scoring.perplexity(-math.fsum(word.bits for word in words), len(words), "bits")
    edges = [f"below {BOUNDS[0]}", *(f"{low} to {high}" for low, high in itertools.pairwise(BOUNDS))]
    return _TEMPLATES.get_template("page.html").render(
        content=content,
        model=model,
        eos=EOS,
        perplexity=format_perplexity(perplexity, digits=1),
        edges=[*edges, f"{BOUNDS[-1]} and more"],
        colours={"light": LIGHT, "dark": DARK},
        text_colour=TEXT,
    )


def read(model: LanguageModel, text: str) -> list[ReadWord]:
    """Return every word of a text, an `<eos>` after each line, as `LanguageModel.perplexity` reads it.

    Raises:
        UserError: There is no word, there are too many, or the vocabulary lacks one and has no `<unk>`.
    """
    if not text.strip():
        raise UserError("there is no word to read: type a sentence")
    whole = "".join(f"{line}\n" for line in split_sentences(text))
    # With each <eos> but the last, after which nothing is read.
    _check_count(len(model.tokenizer.prefix_tokens(whole)) - 1)
    encoded = encode(whole, model.vocabulary, tokenizer=model.tokenizer)
    position, found = model.reader.resume(), list[ReadWord]()
    for word, identity, is_unknown in zip(
        encoded.words, encoded.ids.tolist(), encoded.is_unknown, strict=True
    ):
        state, log_p_V = model.reader.next_word_log_probabilities(position)
        found.append(
            ReadWord(
                word=word,
                unknown=is_unknown,
                bits=0.0 - float(log_p_V[identity]) / math.log(2),  # not -0.0 of a sure word
                likeliest=tuple(likeliest(log_p_V, model.vocabulary, LIKELIEST)),
            )
        )
        position = replace(position, state=state, last_word=identity)
    return found


def description(model: LanguageModel) -> str:
    """Return a line about a model: its run, its words, and the test perplexity if the run has ended.

    Raises:
        UserError: The run's result cannot be read.
    """
    result = run_folders.find(model.run).read_result()
    test = f", test perplexity {format_perplexity(result['test_perplexity'])}" if result else ""
    line = f"{streams.escape_controls(str(model.run))}: {len(model.vocabulary):,} words{test}"
    if model.vocabulary.unknown is not None:
        return line
    common = [word for word in model.vocabulary.words[:COMMON_WORDS] if word != EOS]
    examples = common[:: len(common) // EXAMPLE_WORDS + 1]
    return f"{line}. It can read no other words. Examples of its words: {', '.join(examples)}"


def write_opening(model: LanguageModel) -> str:
    """Return a sentence to show first, which the model writes: the same one each time.

    It is empty if the model writes very short sentences only.
    """
    drafts = (model.generate(temperature=0.8, seed=seed) for seed in range(1, DRAFTS + 1))
    cut = (tuple(itertools.islice(draft, MOST_DRAFTED)) for draft in drafts)
    words = next((each for each in cut if len(each) >= LEAST_DRAFTED), ())
    return "".join(model.tokenizer.detokenize(words))


def continue_prompt(model: LanguageModel, fields: Mapping[str, str]) -> Continuation:
    """Continue a prompt.

    Args:
        model: The model.
        fields: "prompt", "length" (words) and "temperature", as they were typed.

    Raises:
        FieldError: A number is impossible.
        UserError: The prompt is too long, or the vocabulary lacks a word of it and has no `<unk>`.
    """
    prompt = fields.get("prompt", "")
    words = model.tokenizer.prefix_tokens(prompt)
    _check_count(len(words))
    length = _parse_number(fields, "length", "how many words")
    if not (length.is_integer() and 1 <= length <= MOST_WRITTEN):
        raise FieldError(f"how many words: it must be a whole number from 1 to {MOST_WRITTEN}", "length")
    temperature = _parse_number(fields, "temperature", "temperature")
    if temperature < 0:
        raise FieldError(f"temperature: it must be at least 0, not {temperature}", "temperature")
    written = model.generate(prompt, int(length), temperature=temperature)
    unknown = dict.fromkeys(word for word in words if word not in model.vocabulary.ids)
    text = "".join(model.tokenizer.detokenize(written, after=prompt))
    return Continuation(text=text, unknown=tuple(unknown))


def _check_count(count: int) -> None:
    """Check that there are not too many words."""
    if count > MOST_WORDS:
        raise UserError(f"{count:,} words are too many at once: at most {MOST_WORDS}")


def _parse_number(fields: Mapping[str, str], name: str, label: str) -> float:
    text = fields.get(name, "")
    number = cli.parse_finite(text)
    if number is None:
        raise FieldError(f"{label}: {text!r} is not a number", name)
    return number
