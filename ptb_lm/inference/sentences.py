"""What a model gives sentences.

A sentence begins after an `<eos>`, which is the end of the one before, and its own `<eos>` is scored with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from ptb_lm.training.scoring import perplexity_of

Unit = Literal["nats", "bits"]
NATS = {"nats": 1.0, "bits": math.log(2)}  # of one


@dataclass(frozen=True, eq=False, repr=False)
class SentenceScore:
    """What a model gives a sentence.

    Attributes:
        words: The words as they were given, and `<eos>`: N.
        log_probabilities: Of each word after all before it, [N], in `unit`.
        is_unknown: Whether the vocabulary lacks a word, N; `<unk>` was scored instead of each such word.
        unit: "nats" or "bits".
    """

    words: tuple[str, ...]
    log_probabilities: NDArray[np.float64]
    is_unknown: tuple[bool, ...]
    unit: Unit = "nats"

    def __repr__(self) -> str:
        return f"SentenceScore({' '.join(self.words)!r}, {_numbers(self)})"

    @property
    def unknown(self) -> int:
        """The number of words that are not in the vocabulary."""
        return sum(self.is_unknown)

    @property
    def known_total(self) -> float:
        """The log-probability of those words that are in the vocabulary, in `unit`."""
        return math.fsum(self.log_probabilities[~np.array(self.is_unknown, bool)])

    @property
    def total(self) -> float:
        """The log-probability of the sentence, in `unit`."""
        return math.fsum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """The inverse of the geometric mean of the words' probabilities."""
        return perplexity(self.total, len(self.words), self.unit)

    @property
    def perplexity_without_unknown(self) -> float:
        """The perplexity of the words that are in the vocabulary."""
        return perplexity(self.known_total, len(self.words) - self.unknown, self.unit)


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Sequence[SentenceScore]):
    """What a model gives the sentences of a text, in their order.

    Attributes:
        sentences: Each one's.
        unit: "nats" or "bits".
    """

    sentences: tuple[SentenceScore, ...]
    unit: Unit = "nats"

    def __repr__(self) -> str:
        return f"Scores(sentences={len(self)}, tokens={self.tokens}, {_numbers(self)})"

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

    @property
    def perplexity_without_unknown(self) -> float:
        """The perplexity of the words that are in the vocabulary; not a number if there are none."""
        known_total = math.fsum(sentence.known_total for sentence in self.sentences)
        return perplexity(known_total, self.tokens - self.unknown, self.unit)


def _numbers(scores: SentenceScore | Scores) -> str:
    """Return what sentences have in common, for people."""
    return (
        f"perplexity={scores.perplexity:.4g}, total={scores.total:.4f}, unit={scores.unit!r}, "
        f"unknown={scores.unknown}"
    )


def perplexity(total: float, tokens: int, unit: Unit = "nats") -> float:
    """Return the inverse of the geometric mean of some words' probabilities; not a number of none.

    Args:
        total: The sum of their log-probabilities, in `unit`.
        tokens: How many there are.
        unit: "nats" or "bits".
    """
    return perplexity_of(-total * NATS[unit], tokens) if tokens else math.nan


def shown(perplexity: float, *, digits: int) -> str:
    """Return a perplexity as a person reads it, with some digits behind the point."""
    return f"{perplexity:.{digits}f}" if math.isfinite(perplexity) else "beyond the largest float"
