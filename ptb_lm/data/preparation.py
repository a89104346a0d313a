"""The way from text to words; and the preparation of raw text, which a run stores, for other text too."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import flag_list, flag_name
from ptb_lm.common.json_fields import convert
from ptb_lm.data.tables import HUB, import_extra
from ptb_lm.data.vocabulary import EOS, UNK

PTB = "ptb"  # Penn Treebank, as --data names it
BUILT_IN = (PTB, "synthetic")  # the corpora that --data knows by name
DEFAULT_MIN_COUNT = 2  # the least count of a word that is kept
DEFAULT_FRACTION = 0.1  # the part of the lines that is held out for valid, and for test
TOKENIZERS = ("whitespace", "words", "characters")
SPACE = "▁"  # U+2581, as SentencePiece writes it: a space among characters
NUMBER = "N"  # as in Penn Treebank

_NEXT = " X"  # appended, and dropped again: NLTK takes the period off the last word of a text, even off Mr.
_WHITE = re.compile(r"\s+")  # what str.split() splits at
_NUMBER = re.compile(r"[+-]?\d+([.,:/]\d+)*")
# Their period ends no sentence. Punkt counts them without it, in lower case.
_ABBREVIATIONS = (
    "a.m adm apr aug ave bros capt co col corp dec dept dr e.g est etc feb fig gen gov hon i.e inc jan "
    "jr jul jun lt ltd maj mar mr mrs ms mt no nov oct p.m prof rep rev sen sep sept sgt sr st u.k u.n u.s v "
    "vol vs"
)


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Turns text into words. By default white space separates them, and they stay unchanged.

    Attributes:
        tokenize: "whitespace"; "words", Penn Treebank's as NLTK finds them; or "characters", Unicode's code
            points, with SPACE for white space between words.
        lowercase: True if words are put into lower case.
        numbers: True if a word that is a number becomes N.

    Raises:
        UserError: There is no such tokenizer.
    """

    tokenize: str = "whitespace"
    lowercase: bool = False
    numbers: bool = False

    def __post_init__(self) -> None:
        if self.tokenize not in TOKENIZERS:
            raise UserError(f"tokenize must be one of {', '.join(TOKENIZERS)}, not {self.tokenize!r}")

    def words(self, text: str, *, begins: bool = True) -> list[str]:
        """Return the words of a sentence, or, if it does not begin with them, of its rest.

        The ends of lines are white space. Among characters the space before the rest is one of them.

        Raises:
            UserError: NLTK is needed, and is not installed.
        """
        if self.tokenize == "characters" and not begins:
            return self.prefix(text.rstrip(), begins=False)
        return self._normalize(_word_splitter(self.tokenize)(text))

    def prefix(self, text: str, *, begins: bool = True) -> list[str]:
        """Return the words of a sentence that goes on after them.

        Among characters the space at its end is one of them: another word comes next. The training text had
        none at the beginning of a sentence.

        Args:
            text: The sentence so far.
            begins: True if the sentence begins with it.

        Raises:
            UserError: NLTK is needed, and is not installed.
        """
        if self.tokenize != "characters":
            return self.words(text + _NEXT)[:-1]
        return self._normalize(list(_WHITE.sub(SPACE, text.lstrip() if begins else text)))

    def last_cut(self, text: str) -> int:
        """Return the last position where an unfinished text can be cut without changing its words, or 0."""
        line = text.rfind("\n") + 1
        if self.tokenize == "characters":
            return max(len(text.rstrip()), line)  # a space counts only if a word of its line follows
        return max(text.rfind(" ") + 1, line) if self.tokenize == "whitespace" else line

    def prefix_tokens(self, text: str, *, begins: bool = True) -> list[str]:
        """Return the words of a text that goes on after them, with `<eos>` for each newline.

        Args:
            text: The text so far; its last line is a `prefix`.
            begins: True if a sentence begins with it.

        Raises:
            UserError: NLTK is needed, and is not installed.
        """
        if self.tokenize == "whitespace":
            return self._normalize(text.replace("\n", f" {EOS} ").split())
        tokens = list[str]()
        *lines, last = text.split("\n")
        for line in lines:
            tokens += [*self.words(line, begins=begins), EOS]
            begins = True
        return tokens + (self.prefix(last, begins=begins) if last else [])

    def detokenize(self, words: Iterable[str], *, after: str = "") -> Iterator[str]:
        """Yield words as readable text after `after`: each with the space before it; `<eos>` is a newline."""
        between = "" if self.tokenize == "characters" else " "
        gap = between if after and not after[-1].isspace() else ""
        for word in words:
            text = word if between else word.replace(SPACE, " ")
            yield "\n" if word == EOS else gap + text
            gap = "" if word == EOS else between

    def _normalize(self, words: list[str]) -> list[str]:
        if self.lowercase and self.tokenize == "characters":
            # A capital may become two. N is read as the letter: digits are N only when a text is first read.
            words = [each for word in words for each in word.lower()]
        elif self.lowercase:
            # N for a number stays, so that tokenizing a text again does not change it.
            kept = NUMBER if self.numbers else None
            words = [word if word == kept else word.lower() for word in words]
        if self.numbers:
            words = [NUMBER if _NUMBER.fullmatch(word) else word for word in words]
        return words


PLAIN = Tokenizer()


@functools.cache
def _word_splitter(name: str) -> Callable[[str], list[str]]:
    """Return what splits a text; "words" is NLTK's, by Penn Treebank's conventions, sentence by sentence."""
    if name == "whitespace":
        return str.split
    if name == "characters":
        return lambda text: list(SPACE.join(text.split()))
    tokenize = import_extra("nltk", "--tokenize words", extra="text").tokenize
    parameters = tokenize.punkt.PunktParameters()
    parameters.abbrev_types.update(_ABBREVIATIONS.split())
    # NLTK's word tokenizer takes the period off the last word of what it is given only.
    sentences, words = tokenize.punkt.PunktSentenceTokenizer(parameters), tokenize.NLTKWordTokenizer()

    def whole(text: str) -> list[str]:
        return [word for sentence in sentences.tokenize(text) for word in words.tokenize(sentence)]

    def find(text: str) -> list[str]:
        found = list[str]()
        *parts, last = text.split(UNK)  # which NLTK's tokenizer would take apart
        for part in parts:
            found += [*whole(part + _NEXT)[:-1], UNK]
        return found + whole(last)

    return find


@dataclass(frozen=True, kw_only=True)
class Preparation(Tokenizer):
    """The tokenizer of raw text, the limits of its vocabulary, and the parts that are held out.

    Attributes:
        min_count: The least count of a word of the training text; a rarer one becomes `<unk>`. None:
            `vocab_size` decides.
        vocab_size: The number of words that are kept, the most frequent, with `<eos>` and `<unk>`. None:
            `min_count` decides.
        valid_fraction: The part of a single file's lines that is held out for validation.
        test_fraction: The part that is held out for the test.

    Raises:
        UserError: A value is impossible.
    """

    min_count: int | None = None
    vocab_size: int | None = None
    valid_fraction: float = DEFAULT_FRACTION
    test_fraction: float = DEFAULT_FRACTION

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_count is not None and self.vocab_size is not None:
            raise UserError("--min-count and --vocab-size cannot be combined: each selects the words")
        if self.min_count is not None and self.min_count < 1:
            raise UserError(f"--min-count must be at least 1, not {self.min_count}")
        if self.vocab_size is not None and self.vocab_size < 3:
            raise UserError(
                f"--vocab-size must be at least 3, for <eos>, <unk> and a word, not {self.vocab_size}"
            )
        for name in ("valid_fraction", "test_fraction"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{flag_name(name)} must lie between 0 and 1, not {getattr(self, name)}")
        if self.valid_fraction + self.test_fraction >= 1:
            raise UserError(
                f"--valid-fraction {self.valid_fraction:g} and --test-fraction {self.test_fraction:g} leave "
                "nothing to train on: their sum must be below 1"
            )

    @property
    def least_count(self) -> int:
        """The count below which a word is not kept."""
        return self.min_count or (1 if self.vocab_size else DEFAULT_MIN_COUNT)

    @classmethod
    def from_json(cls, values: Any) -> "Preparation":
        """Return a preparation from the attributes by name.

        Raises:
            UserError: A key is unknown or missing, or a value impossible.
            ValueError: A value is of another type.
        """
        if not isinstance(values, dict) or values.keys() != {*FIELDS}:
            raise UserError(f"a preparation must have the keys {', '.join(FIELDS)}")
        for each in fields(cls):
            if values[each.name] is None and each.default is not None:
                raise ValueError(f"{each.name} cannot be None")
        convert(values, cls)  # checks the others; what it returns would be written again without the nulls
        return cls(**values)


def effective_settings(preparation: Preparation | None) -> dict[str, Any]:
    """Return the settings that take effect, by the names of the flags.

    Args:
        preparation: The preparation; None: the text is prepared already, and every word is kept.
    """
    preparation = preparation or Preparation(min_count=1)
    return {**asdict(preparation), "min_count": preparation.least_count}


FIELDS = tuple(each.name for each in fields(Preparation))


def from_flags(flag_values: Mapping[str, Any], data: str) -> Preparation | None:
    """Return the preparation that the flags ask for; None if the text is already prepared.

    Args:
        flag_values: The flags that were given, by name.
        data: The value of --data.

    Raises:
        UserError: A value is impossible, or the text is prepared already.
    """
    values = {name: flag_values[name] for name in FIELDS if name in flag_values}
    if data in BUILT_IN:
        if values:
            raise UserError(
                f"{flag_list(values)} cannot be used with --data {data}, which is already prepared"
            )
        return None
    held_out = [name for name in values if name.endswith("_fraction")]
    if held_out and (data.startswith(HUB) or Path(data).is_dir()):  # where nothing is, that will be told
        raise UserError(f"{flag_list(held_out)} is for a single file; {data} has its own splits")
    return Preparation(**values) if values or Path(data).is_file() else None


def is_path(data: str) -> bool:
    """Return whether --data names a file or folder, not a corpus or data set."""
    return data not in BUILT_IN and not data.startswith(HUB)
