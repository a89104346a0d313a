"""Scores of sentences: log-probabilities, perplexities, and how they are written as a table or as JSON.

A sentence begins after an `<eos>`, which is the end of the one before, and its own `<eos>` is scored with it.

Shapes: N = words of a sentence.
"""

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO, overload

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common import streams
from ptb_lm.training.evaluation import format_perplexity, perplexity_from_nll

Unit = Literal["nats", "bits"]
NATS_PER_UNIT = {"nats": 1.0, "bits": math.log(2)}
_COLUMNS = ("log_probability", "tokens", "unknown", "sentence")
_WORD_COLUMNS = ("sentence", "word", "log_probability", "unknown")


@dataclass(frozen=True, eq=False, repr=False)
class SentenceScore:
    """The score of a sentence.

    Attributes:
        words: The words as they were given, and `<eos>`: N.
        log_probabilities: The log-probability of each word after all before it, [N], in `unit`.
        is_unknown: Flags, N: true of a word that the vocabulary lacks. `<unk>` was scored in its place.
        unit: "nats" or "bits".
    """

    words: tuple[str, ...]
    log_probabilities: NDArray[np.float64]
    is_unknown: tuple[bool, ...]
    unit: Unit = "nats"

    def __repr__(self) -> str:
        return f"SentenceScore({' '.join(self.words)!r}, {_summary(self)})"

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
        """The perplexity of the words that are in the vocabulary; not a number if there are none."""
        return perplexity(self.known_total, len(self.words) - self.unknown, self.unit)


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Sequence[SentenceScore]):
    """The scores of the sentences of a text, in their order.

    Attributes:
        sentences: The score of each sentence.
        unit: "nats" or "bits".
    """

    sentences: tuple[SentenceScore, ...]
    unit: Unit = "nats"

    def __repr__(self) -> str:
        return f"Scores(sentences={len(self)}, tokens={self.tokens}, {_summary(self)})"

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
        """The number of words that were scored, every sentence's `<eos>` among them."""
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


def _summary(scores: SentenceScore | Scores) -> str:
    """Return what a sentence's scores and a text's have in common, for people."""
    return (
        f"perplexity={scores.perplexity:.4g}, total={scores.total:.4f}, unit={scores.unit!r}, "
        f"unknown={scores.unknown}"
    )


def perplexity(total: float, tokens: int, unit: Unit = "nats") -> float:
    """Return the inverse of the geometric mean of words' probabilities; NaN if there are no words.

    Args:
        total: The sum of their log-probabilities, in `unit`.
        tokens: The number of words.
        unit: "nats" or "bits".
    """
    return perplexity_from_nll(-total * NATS_PER_UNIT[unit], tokens) if tokens else math.nan


def write_scores(
    file: TextIO, scores: Iterable[SentenceScore], *, unit: Unit, per_word: bool, as_json: bool
) -> list[str]:
    """Write scores as they come; return sentences on how many they were and on their perplexity.

    If there were unknown words, the last sentence is about the perplexity of the others.

    The columns of the table: log_probability (in the unit), tokens (`<eos>` among them), unknown, sentence;
    with `per_word`: sentence (counted from 1), word, log_probability, unknown (0 or 1). The sentence has one
    space between words, whatever the text had.

    Args:
        file: The output.
        scores: The scores of the sentences, one at least.
        unit: The unit of the scores.
        per_word: True for a row per word, instead of per sentence; in JSON, each object then has its words.
        as_json: True for a JSON object per line, instead of a table.
    """
    total, known_total, tokens, unknown, count = 0.0, 0.0, 0, 0, 0
    scores = iter(scores)
    ahead = list(itertools.islice(scores, 1))  # what cannot be read is refused before a word is written
    if not as_json:
        file.write("\t".join(_WORD_COLUMNS if per_word else _COLUMNS) + "\n")
    for count, score in enumerate(itertools.chain(ahead, scores), 1):
        if as_json:
            file.write(_to_json(score, per_word=per_word) + "\n")
        elif per_word:
            file.writelines(
                f"{count}\t{streams.escape_for(word, file)}\t{log_p:.6f}\t{unknown_word:d}\n"
                for word, log_p, unknown_word in _words(score)
            )
        else:
            sentence = streams.escape_for(" ".join(score.words[:-1]), file)
            file.write(f"{score.total:.6f}\t{len(score.words)}\t{score.unknown}\t{sentence}\n")
        total, known_total = total + score.total, known_total + score.known_total
        tokens, unknown = tokens + len(score.words), unknown + score.unknown
    all_words = format_perplexity(perplexity(total, tokens, unit), digits=4)
    without = format_perplexity(perplexity(known_total, tokens - unknown, unit), digits=4)
    return [
        f"perplexity {all_words} ({count:,} sentence{'s' * (count != 1)}, "
        f"{tokens:,} word{'s' * (tokens != 1)} with every <eos>, "
        f"{unknown:,} of them not in the vocabulary{' and read as <unk>' * bool(unknown)})",
        *[f"without the unknown words the perplexity is {without}"] * bool(unknown),
    ]


def _words(score: SentenceScore) -> list[tuple[str, float, bool]]:
    """Return each word, its log-probability, and whether the vocabulary lacks it."""
    return list(zip(score.words, score.log_probabilities.tolist(), score.is_unknown, strict=True))


def _to_json(score: SentenceScore, *, per_word: bool) -> str:
    values = {
        "sentence": " ".join(score.words[:-1]),
        "log_probability": score.total,
        "unit": score.unit,
        "tokens": len(score.words),
        "unknown": score.unknown,
    }
    if per_word:
        values["words"] = _words(score)
    return json.dumps(values)
