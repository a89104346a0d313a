"""Sentences to score: their words as ids, and what a model gives them.

A sentence begins after an `<eos>`, which is the end of the one before, and its own `<eos>` is scored with it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ptb_lm.data.text import Ids
from ptb_lm.data.tokens import PLAIN, Treatment
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.errors import UserError
from ptb_lm.inference.checks import check_text
from ptb_lm.training.scoring import perplexity_of

Unit = Literal["nats", "bits"]
NATS = {"nats": 1.0, "bits": math.log(2)}  # of one


class Encoded(NamedTuple):
    """A sentence as a model reads it."""

    words: tuple[str, ...]  # as they were given, and `<eos>`
    ids: Ids  # of each
    unknown: int  # how many of them the vocabulary lacks; `<unk>` stands for each


def encode(
    sentence: str, vocabulary: Vocabulary, *, end: bool = True, treatment: Treatment = PLAIN
) -> Encoded:
    """Return a sentence's words and their ids.

    Args:
        sentence: May be empty.
        vocabulary: The model's.
        end: Whether an `<eos>` follows the last word.
        treatment: How it becomes words; by default white space separates them.

    Raises:
        UserError: It is no string, or the vocabulary lacks a word and has no `<unk>`.
    """
    check_text(sentence, name="a sentence")
    words = (*treatment.words(sentence), *([EOS] if end else ()))
    missing = [word for word in words if word not in vocabulary.ids]
    if missing and vocabulary.unknown is None:
        raise UserError(f"the word {missing[0]!r} is not in the vocabulary, which has no {UNK}")
    ids = [vocabulary.ids.get(word, vocabulary.unknown) for word in words]
    return Encoded(words, np.array(ids, np.int32), len(missing))


def encode_lines(
    lines: Iterable[str], vocabulary: Vocabulary, treatment: Treatment = PLAIN
) -> Iterator[Encoded]:
    """Encode each line as a sentence.

    Raises:
        UserError: As `encode` does; it tells the line.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield encode(line, vocabulary, treatment=treatment)
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None


def split(text: str | Iterable[str]) -> Iterable[str]:
    """Return the sentences of a text, one per line, as training reads it. A list stays as it is.

    Raises:
        UserError: It is neither.
    """
    if isinstance(text, str):
        return text.removesuffix("\n").split("\n")
    kind = type(text)
    if issubclass(kind, bytes) or not issubclass(kind, Iterable):
        raise UserError(f"the text must be a string or several, one a sentence, not {kind.__name__}")
    return text


@dataclass(frozen=True)
class SentenceScore:
    """What a model gives a sentence.

    Attributes:
        words: The words as they were given, and `<eos>`: N.
        log_probabilities: Of each word after all before it, [N], in `unit`.
        unknown: Number of words that are not in the vocabulary; `<unk>` was scored instead of each.
        unit: "nats" or "bits".
    """

    words: tuple[str, ...]
    log_probabilities: NDArray[np.float64]
    unknown: int
    unit: Unit = "nats"

    @property
    def total(self) -> float:
        """The log-probability of the sentence, in `unit`."""
        return math.fsum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """The inverse of the geometric mean of the words' probabilities."""
        return perplexity(self.total, len(self.words), self.unit)


@dataclass(frozen=True)
class Scores(Sequence[SentenceScore]):
    """What a model gives the sentences of a text, in their order.

    Attributes:
        sentences: Each one's.
        unit: "nats" or "bits".
    """

    sentences: tuple[SentenceScore, ...]
    unit: Unit = "nats"

    def __len__(self) -> int:
        return len(self.sentences)

    @overload
    def __getitem__(self, index: int) -> SentenceScore: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SentenceScore, ...]: ...

    def __getitem__(self, index: int | slice) -> SentenceScore | tuple[SentenceScore, ...]:
        return self.sentences[index]

    @property
    def total(self) -> float:
        """The log-probability of the text, in `unit`."""
        return math.fsum(sentence.total for sentence in self.sentences)

    @property
    def tokens(self) -> int:
        """How many words were scored, every sentence's `<eos>` among them."""
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def unknown(self) -> int:
        """The number of words that are not in the vocabulary."""
        return sum(sentence.unknown for sentence in self.sentences)

    @property
    def perplexity(self) -> float:
        """The inverse of the geometric mean of all words' probabilities; not a number if there are none."""
        return perplexity(self.total, self.tokens, self.unit)


def perplexity(total: float, tokens: int, unit: Unit = "nats") -> float:
    """Return the inverse of the geometric mean of some words' probabilities; not a number of none.

    Args:
        total: The sum of their log-probabilities, in `unit`.
        tokens: How many there are.
        unit: "nats" or "bits".
    """
    return perplexity_of(-total * NATS[unit], tokens) if tokens else math.nan
