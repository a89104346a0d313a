"""The results of each variant in a pass of a workload, and the ratio of any two."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ptb_lm.bench import intervals
from ptb_lm.bench.rows import MEASURED, Row, Work
from ptb_lm.bench.variants import original

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a variant in a pass of a workload.

    Raises:
        statistics.StatisticsError: It has no blocks, and so neither seconds nor rates.
    """

    variant: str
    label: str
    status: str  # one of rows.STATUSES; only "wrong" hides what was measured
    reason: str  # the reason why it is not, or not wholly, measured
    blocks: tuple[Row, ...]  # the measured rows, by round
    planned_rounds: int
    # To the group's baseline, 1 for itself; None if they have no round in common.
    ratio: intervals.LogMean | None
    notes: tuple[str, ...]
    description: str  # a description of the program; "" if there is none

    @property
    def seconds(self) -> intervals.Spread:
        """Seconds a step, over the rounds."""
        return intervals.spread([row.seconds_per_step for row in self.blocks])

    @property
    def total_time(self) -> tuple[float, int]:
        """Seconds of all timed blocks together, and their steps."""
        return sum(row.seconds for row in self.blocks), sum(row.steps for row in self.blocks)

    @property
    def rate(self) -> intervals.Spread:
        """Items a second."""
        return intervals.spread([row.rate for row in self.blocks])

    @property
    def mean_rate(self) -> intervals.LogMean:
        """Items a second: the geometric mean over processes, with its interval."""
        processes = group_by_key(((row.session, row.process), row.rate) for row in self.blocks)
        return intervals.geometric_mean([*processes.values()])

    @property
    def gemm_fraction(self) -> intervals.Spread | None:
        """The declared FLOPs a second, as a fraction of the machine's matrix multiplication in that round."""
        return self._spread(lambda row: row.gemm_fraction)

    @property
    def roofline_fraction(self) -> intervals.Spread | None:
        """The time of a step at its roofline (roofline.py), of that round, as a fraction of that it took."""
        return self._spread(lambda row: row.roofline_fraction)

    @property
    def is_repetition(self) -> bool:
        """Whether this is the second measurement of a program (variants.py)."""
        return original(self.variant) != self.variant

    @property
    def rounds(self) -> int:
        """The number of rounds it was measured in: in some twice, if a run went on (runner.py)."""
        return len({row.round for row in self.blocks})

    @property
    def is_unfinished(self) -> bool:
        """Whether it lacks rounds, and neither a failure nor a limit of time is the reason."""
        is_limited = any(" rounds" in row.note for row in self.blocks)  # timed_steps.Plan.note
        return self.status == MEASURED and 0 < self.rounds < self.planned_rounds and not is_limited

    @property
    def processes(self) -> int:
        """The number of processes that measured it."""
        return len({(row.session, row.process) for row in self.blocks})

    @property
    def engine(self) -> str:
        """The libraries that computed the LSTM."""
        return "; ".join(distinct(row.engine for row in self.blocks if row.engine))

    def largest(self, facts: str, key: str) -> float | None:
        """Return the largest value of a fact that rows record: of `startup`, `peak_memory` or `parity`."""
        return max(
            (getattr(row, facts)[key] for row in self.blocks if key in getattr(row, facts)), default=None
        )

    def _spread(self, value: Callable[[Row], float | None]) -> intervals.Spread | None:
        known = [number for row in self.blocks if (number := value(row)) is not None]
        return intervals.spread(known) if known else None


@dataclass(frozen=True, kw_only=True)
class ResultGroup:
    """The results of one pass of a workload: the most items a second first, those without figures last."""

    suite: str
    workload: str
    pass_name: str
    baseline: str
    work: Work
    results: tuple[Result, ...]

    @property
    def precisions(self) -> list[str]:
        """The precisions that its variants computed in."""
        return distinct(row.work.precision for result in self.results for row in result.blocks[:1])

    @property
    def cuts(self) -> list[str]:
        """The ways in which the workload was smaller or larger than declared."""
        return distinct(row.cut for result in self.results for row in result.blocks if row.cut)

    @property
    def name(self) -> str:
        """The workload and pass, for people."""
        return f"{self.workload}, {self.pass_name}"

    @property
    def measured_results(self) -> list[Result]:
        """The results with figures, in order."""
        return [result for result in self.results if result.blocks]

    @property
    def unfinished(self) -> Result | None:
        """The unfinished result with the fewest rounds, as an interrupted run leaves it."""
        found = (result for result in self.results if result.is_unfinished)
        return min(found, key=lambda result: result.rounds, default=None)

    @property
    def candidates(self) -> list[Result]:
        """The results that no failure broke off, the fastest first, each program once."""
        whole = [result for result in self.measured_results if result.status == MEASURED]
        names = {result.variant for result in whole}
        return [
            result for result in whole if not result.is_repetition or original(result.variant) not in names
        ]

    @cached_property
    def fastest(self) -> Result | None:
        """The first candidate that no other was faster than, in two or more rounds that both have.

        The order of the candidates is that of medians, which drift of the machine may turn round; ratios are
        paired. If each was slower than some other, it is the first in that order.
        """
        candidates = self.candidates
        for one in candidates:
            ratios = (speed_ratio(other, one) for other in candidates if other is not one)
            if not any(ratio and ratio.interval is not None and ratio.estimate > 1 for ratio in ratios):
                return one
        return candidates[0] if candidates else None

    @property
    def repetitions(self) -> list[tuple[Result, intervals.LogMean]]:
        """The A/A tests: results of a program's second measurement, with their ratios to the first."""
        found = []
        for result in self.results:
            first = self.result(original(result.variant)) if result.is_repetition else None
            if first and (ratio := speed_ratio(result, first)):
                found.append((result, ratio))
        return found

    def result(self, variant: str) -> Result | None:
        """Return a variant's result, if it is part of the group."""
        return next((result for result in self.results if result.variant == variant), None)

    def label(self, variant: str) -> str:
        """Return the label of a variant in tables."""
        return result.label if (result := self.result(variant)) else variant


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A benchmark's results."""

    groups: tuple[ResultGroup, ...]
    environment: Mapping[str, tuple[str, ...]]  # the distinct values that the rows recorded, by name
    sessions: tuple[str, ...]  # when each run that measured rows began
    commands: tuple[str, ...]
    times: tuple[str, ...]  # of the first and the last row
    remarks: tuple[str, ...]

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites' names."""
        return tuple(distinct(group.suite for group in self.groups))


def speed_ratio(result: Result, base: Result) -> intervals.LogMean | None:
    """Return how many times as fast as another a result is; None if no round has both."""
    return pair(result.blocks, base.blocks)


def pair(blocks: Sequence[Row], base: Sequence[Row]) -> intervals.LogMean | None:
    """Return how many times as fast as the base's some blocks are, paired by session and round."""
    if blocks and blocks == base:  # which is 1 by definition, and not by measurement
        return intervals.LogMean(mean=0.0, error=None, freedom=0, unit="round", units=len(blocks))
    ours, theirs = ({(row.session, row.round): row for row in each} for each in (blocks, base))
    return intervals.ratio(
        {key: row.seconds_per_step for key, row in theirs.items()},
        {key: row.seconds_per_step for key, row in ours.items()},
        {
            (session, number): ((session, theirs[session, number].process), (session, row.process))
            for (session, number), row in ours.items()
            if (session, number) in theirs
        },
    )


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, in the order of their first."""
    return list(dict.fromkeys(values))


def group_by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, the keys in the order of their first."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
