"""Does a 95 % interval hold? A program against itself, many times over: how many intervals contain 1.

    python -m benchmarks.studies coverage FOLDER --measure

It measures the suite coverage, a small model twice, into FOLDER: 40 runs of five processes each, in some 20
minutes on two cores. Interrupted, the same command continues. Without --measure the rows of any benchmark
that measures a program twice are read, NAME.jsonl.gz too.

Consecutive rounds, as many as a quoted suite has, are one repetition: its intervals are computed as the
suite's are. Of 40 that are right, 38 hold on average, and 36 or more in 95 of 100 cases. What other programs
took of the machine meanwhile is said beside it.

It is the easiest case: two variants alone, so that the two blocks of a round are seconds apart. In a suite of
many variants they may be minutes apart, and the machine may have changed in between. Then intervals may hold
less often. The A/A test in a suite's own report shows how well it did.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from scipy import stats

from ptb_lm.bench import __main__ as bench
from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.results import Result, ResultGroup, distinct, speed_ratio
from ptb_lm.bench.run.machine import DISTURBANCE_LIMIT
from ptb_lm.bench.summary import summarise
from ptb_lm.bench.variants import original
from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.common.markdown_tables import write_markdown

SUITE = "coverage"
CONFIDENCE = 0.95
PROCESSES = 5  # of each repetition that --measure makes
PLURALS = {"process": "processes", "round": "rounds"}
ALONE = (
    " The two were measured alone, seconds apart: in a suite of many variants intervals may hold less often."
)


def repetition_ratios(group: ResultGroup, repetitions: int) -> list[LogMean]:
    """Return the ratio of a program to itself in each repetition.

    Args:
        group: A pass, with one variant that was measured twice.
        repetitions: The number of parts that its rounds are cut into.

    Raises:
        UserError: There is no such variant, or a part is too small for an interval.
    """
    if len(group.repetitions) != 1:
        raise UserError(f"{group.name}: exactly one program must be measured twice (NAME and NAME#again)")
    again = group.repetitions[0][0]
    first = group.result(original(again.variant))
    assert first is not None, "or it were no repetition"
    rounds = distinct(row.round for row in first.blocks)  # a run that went on has some of them twice
    parts = list(_parts(rounds, repetitions))
    found = [speed_ratio(_within(again, part), _within(first, part)) for part in parts]
    ratios = [ratio for ratio in found if ratio is not None and ratio.interval is not None]
    if len(ratios) < repetitions:
        raise UserError(f"{group.name}: {len(rounds)} rounds are too few for {repetitions} intervals")
    return ratios


def run(arguments: argparse.Namespace) -> int:
    """Measure if that is wanted, and print the page of a benchmark; return the exit status."""
    if arguments.measure:
        processes = PROCESSES * arguments.repetitions
        command = ["run", SUITE, "--processes", str(processes), "--out", str(arguments.folder)]
        if status := bench.main(command):
            return status
    cli.print_line("\n".join(page(summarise(arguments.folder).groups, arguments.repetitions)))
    return 0


def page(groups: Sequence[ResultGroup], repetitions: int) -> Iterator[str]:
    """Yield the lines of a page: a table of each pass, and what it says."""
    for group in groups:
        ratios = repetition_ratios(group, repetitions)
        held = sum(ratio.differs is False for ratio in ratios)
        few = f"{100 * stats.binom.cdf(held, repetitions, CONFIDENCE):.0f} of 100 such studies"
        units = " or ".join(distinct(f"{ratio.units} {PLURALS[ratio.unit]}" for ratio in ratios))
        yield f"## {group.name}, {original(group.repetitions[0][0].variant)} against itself\n"
        alone = ALONE if len(group.results) == 2 else ""
        low, high = stats.binomtest(held, repetitions).proportion_ci(CONFIDENCE)  # Clopper and Pearson, 1934
        yield (
            f"{held} of {repetitions} intervals of {CONFIDENCE:.0%} contain 1, each of {units}: "
            f"{held / repetitions:.0%} of them ({low:.0%} to {high:.0%}, binomial); "
            f"of right ones so few or fewer would be found in {few}.{alone}\n"
        )
        yield f"{_describe_load(group)}\n"
        rows = [
            [
                str(number),
                f"{ratio.estimate:.3f}",
                formats.interval(ratio),
                "yes" if ratio.differs is False else "no",
            ]
            for number, ratio in enumerate(ratios, 1)
        ]
        yield write_markdown(["repetition:", "ratio:", "95 % interval", "holds"], rows)


def _describe_load(group: ResultGroup) -> str:
    """Say what other programs took of the machine beside the blocks."""
    others = [row.others for result in group.results for row in result.blocks if row.others is not None]
    if not others:
        return "What other programs took meanwhile is not known."
    disturbed = sum(taken > DISTURBANCE_LIMIT for taken in others)
    return (
        f"Other programs took {statistics.fmean(others):.2f} cores on average beside a block, "
        f"{max(others):.2f} at most, and more than {DISTURBANCE_LIMIT:g} beside {disturbed} of {len(others)}."
    )


def _parts(rounds: Sequence[int], repetitions: int) -> Iterator[frozenset[int]]:
    """Yield consecutive rounds, as many in each part; what is over is left out."""
    size = len(rounds) // repetitions
    for begin in range(0, size * repetitions, size or 1):
        yield frozenset(rounds[begin : begin + size])


def _within(result: Result, rounds: frozenset[int]) -> Result:
    blocks = tuple(row for row in result.blocks if row.round in rounds)
    return dataclasses.replace(result, blocks=blocks)
