"""Rescore lists of hypotheses for one input, as a recogniser or translator writes them.

A line is `ID ||| HYPOTHESIS ||| SCORE`, as Moses writes it: fields between the hypothesis and the last are
features of other models, and are left out. Lines of one list follow each other. Higher scores are better.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ptb_lm.common import cli, streams
from ptb_lm.common.errors import LineError
from ptb_lm.inference.scoring import Unit

if TYPE_CHECKING:
    from ptb_lm.inference.language_model import LanguageModel

SEPARATOR = "|||"


class Hypothesis(NamedTuple):
    """A hypothesis with its scores."""

    id: str
    text: str
    score: float  # its own
    log_probability: float  # by the language model
    total: float  # both, weighted
    tokens: int  # its words and `<eos>`
    unknown: int  # how many of them the vocabulary lacks
    unit: Unit  # of the log-probability


def rescore(
    model: "LanguageModel",
    lines: Iterable[str],
    *,
    unit: Unit,
    score_weight: float = 1.0,
    lm_weight: float = 1.0,
    word_bonus: float = 0.0,
) -> Iterator[Hypothesis]:
    """Yield the scored hypotheses in their order; each is an independent sentence.

    Args:
        model: The language model that scores them.
        lines: The lines of the lists; some are in memory at a time.
        unit: The unit of the log-probability.
        score_weight: The weight of a hypothesis' own score.
        lm_weight: The weight of its log-probability.
        word_bonus: A number that is added for each word.

    Raises:
        LineError: A line is not a hypothesis, is of a list that ended before, has a word that the vocabulary,
            without an `<unk>`, lacks, or has a total that is not finite.
    """
    lists, lists_ahead = itertools.tee(_read_lists(lines))  # some are read before they are scored
    sentences = model.score_each((text for _, text, _ in lists_ahead), unit=unit)
    for number, (sentence, (name, text, score)) in enumerate(zip(sentences, lists, strict=True), 1):
        tokens = len(sentence.words)
        total = score_weight * score + lm_weight * sentence.total
        total += word_bonus * (tokens - 1)
        if not math.isfinite(total):
            raise LineError(number, "its total is beyond the largest float; choose smaller weights")
        yield Hypothesis(name, text, score, sentence.total, total, tokens, sentence.unknown, unit)


def best(hypotheses: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Yield the best hypothesis of each list; of equal ones the first."""
    for _, same in itertools.groupby(hypotheses, key=lambda hypothesis: hypothesis.id):
        yield max(same, key=lambda hypothesis: hypothesis.total)


def write(file: TextIO, hypotheses: Iterable[Hypothesis], *, every: bool, as_json: bool) -> str:
    """Write the best of each list, or every hypothesis; return a sentence on how many there were.

    Each has its new score instead of the old one.

    Args:
        file: The output.
        hypotheses: The hypotheses in their order.
        every: True for all, in place of the best.
        as_json: True for an object a line with all its scores, in place of `ID ||| HYPOTHESIS ||| SCORE`.
    """
    count, words, unknown = 0, 0, 0

    def count_each() -> Iterator[Hypothesis]:
        nonlocal count, words, unknown
        for hypothesis in hypotheses:
            count += 1
            words, unknown = words + hypothesis.tokens - 1, unknown + hypothesis.unknown
            yield hypothesis

    for hypothesis in count_each() if every else best(count_each()):
        if as_json:
            line = json.dumps(hypothesis._asdict())
        else:
            name, text = (streams.escape_for(each, file) for each in (hypothesis.id, hypothesis.text))
            line = f" {SEPARATOR} ".join((name, text, f"{hypothesis.total:.6f}"))
        file.write(line + "\n")
    return (
        f"{count:,} hypothes{'i' if count == 1 else 'e'}s, {unknown:,} of their {words:,} "
        f"word{'s' * (words != 1)} not in the vocabulary{' and read as <unk>' * bool(unknown)}"
    )


def _read_lists(lines: Iterable[str]) -> Iterator[tuple[str, str, float]]:
    """Yield (id, hypothesis, score) of each line, one list after the other."""
    seen, last = set[str](), None
    for number, line in enumerate(lines, 1):
        name, text, score = _parse(line, number)
        if name in seen and name != last:  # there would be two best hypotheses of it
            raise LineError(number, f"the lines of list {name!r} are not next to each other")
        seen.add(name)
        last = name
        yield name, text, score


def _parse(line: str, number: int) -> tuple[str, str, float]:
    """Return (id, hypothesis, score) of a line."""
    name, *fields = (field.strip() for field in line.split(SEPARATOR))
    if len(fields) < 2:
        raise LineError(number, f"it is not ID {SEPARATOR} HYPOTHESIS {SEPARATOR} SCORE")
    score = cli.parse_finite(fields[-1])
    if score is None:
        raise LineError(number, f"the score {fields[-1]!r} is not a finite number")
    return name, fields[0], score
