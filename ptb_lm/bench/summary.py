"""The results of a benchmark: of each variant in a pass of a workload, with its ratio to the baseline.

`summarise` makes them of raw rows. All variants of a pass must declare equal work. They must compute in one
precision too, but for those whose names give another: the report says so beside their ratios.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ptb_lm.bench import intervals, rows, variants
from ptb_lm.bench.intervals import LogMean, Spread
from ptb_lm.bench.rows import MEASURED, SECOND_MODEL, WRONG, Row, Work
from ptb_lm.bench.selection import instead_of
from ptb_lm.bench.variants import declared_precision, original
from ptb_lm.common.errors import UserError

EQUAL_WORK = ("parameters", "flops_per_step", "items_per_step", "unit")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a variant in a pass of a workload."""

    variant: str
    label: str
    status: str  # one of rows.STATUSES; only "wrong" hides what was measured
    reason: str  # the reason why it is not, or not wholly, measured
    blocks: tuple[Row, ...]  # the measured rows, by round
    planned_rounds: int
    ratio: LogMean | None  # to the group's baseline, 1 for itself; None if they have no round in common
    notes: tuple[str, ...]
    description: str  # a description of the program; "" if there is none

    @property
    def seconds(self) -> Spread | None:
        """Seconds a step, over the rounds."""
        return self._spread(lambda row: row.seconds_per_step)

    @property
    def total_time(self) -> tuple[float, int]:
        """Seconds of all timed blocks together, and their steps."""
        return sum(row.seconds for row in self.blocks), sum(row.steps for row in self.blocks)

    @property
    def rate(self) -> Spread | None:
        """Items a second."""
        return self._spread(lambda row: row.rate)

    @property
    def mean_rate(self) -> LogMean | None:
        """Items a second: the geometric mean over processes, with its interval."""
        processes: dict[int, list[float]] = {}
        for row in self.blocks:
            processes.setdefault(row.process, []).append(row.rate)
        return intervals.geometric_mean([*processes.values()]) if processes else None

    @property
    def gemm_fraction(self) -> Spread | None:
        """The declared FLOPs a second, as a fraction of the machine's matrix multiplication in that round."""
        return self._spread(lambda row: row.gemm_fraction)

    @property
    def roofline_fraction(self) -> Spread | None:
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
    def processes(self) -> int:
        """The number of processes that measured it."""
        return len({row.process for row in self.blocks})

    @property
    def engine(self) -> str:
        """The libraries that computed the LSTM."""
        return "; ".join(distinct(row.engine for row in self.blocks if row.engine))

    def first(self, facts: str, key: str) -> float | None:
        """Return a fact as the first process recorded it, whose start no other one disturbed."""
        return next((getattr(row, facts).get(key) for row in self.blocks), None)

    def largest(self, facts: str, key: str) -> float | None:
        """Return the largest value of a fact that rows record: of `startup`, `peak_memory` or `parity`."""
        return max(
            (getattr(row, facts)[key] for row in self.blocks if key in getattr(row, facts)), default=None
        )

    def _spread(self, value: Callable[[Row], float | None]) -> Spread | None:
        known = [number for row in self.blocks if (number := value(row)) is not None]
        return intervals.spread(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Group:
    """A pass of a workload: its results, those of most items a second first, those without figures last."""

    suite: str
    workload: str
    pass_name: str
    baseline: str
    work: Work | None  # None if nothing was measured
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
    def candidates(self) -> list[Result]:
        """The results measured to their end, the fastest first, without second measurements."""
        return [
            result
            for result in self.measured_results
            if result.status == MEASURED and not result.is_repetition
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
    def repetitions(self) -> list[tuple[Result, LogMean]]:
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

    groups: tuple[Group, ...]
    environment: Mapping[str, tuple[str, ...]]  # the distinct values that the rows recorded, by name
    sessions: tuple[str, ...]  # when each run that measured rows began
    commands: tuple[str, ...]
    times: tuple[str, ...]  # of the first and the last row
    remarks: tuple[str, ...]

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites' names."""
        return tuple(distinct(group.suite for group in self.groups))


def speed_ratio(result: Result, base: Result) -> LogMean | None:
    """Return how many times as fast as another a result is; None if no round has both."""
    return _pair(result.blocks, base.blocks)


def _pair(blocks: Sequence[Row], base: Sequence[Row]) -> LogMean | None:
    """Return how many times as fast as the base's some blocks are, paired by session and round."""
    if blocks and blocks == base:  # which is 1 by definition, and not by measurement
        return LogMean(mean=0.0, error=None, freedom=0, unit="round", units=len(blocks))
    ours, theirs = ({(row.session, row.round): row for row in each} for each in (blocks, base))
    return intervals.ratio(
        {key: row.seconds_per_step for key, row in theirs.items()},
        {key: row.seconds_per_step for key, row in ours.items()},
        {key: (theirs[key].process, row.process) for key, row in ours.items() if key in theirs},
    )


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, in the order of their first."""
    return list(dict.fromkeys(values))


def summarise(folder: Path, *, baseline: str | None = None) -> Summary:
    """Read a benchmark's folder and work out its results.

    Args:
        folder: The folder with rows.jsonl, or a NAME.jsonl.gz.
        baseline: The variant that ratios are to; None: the one that the rows name.

    Raises:
        UserError: The rows cannot be read (rows.read), variants did unequal work, or no workload has the
            baseline.
    """
    loaded, remarks = rows.read(folder)
    known = distinct(row.variant for row in loaded)
    if baseline not in (None, *known):
        instead = instead_of(str(baseline), known)
        raise UserError(f"--baseline {baseline}: no such variant in {folder}; {instead}")
    by_group: dict[tuple[str, str, str], list[Row]] = {}
    for row in loaded:
        by_group.setdefault((row.suite, row.workload, row.pass_name), []).append(row)
    # A workload's passes stand together, forward first, as they are in a training step.
    workloads = distinct(key[:2] for key in by_group)
    keys = [(*workload, each) for workload in workloads for each in rows.PASSES]
    # Wrong in one pass is wrong in all. A program that is measured twice, by two names, is wrong by both.
    wrong = {_program(row): row for row in reversed(loaded) if row.status == WRONG}
    times = sorted({row.time for row in loaded if row.time})
    return Summary(
        groups=tuple(
            _group(by_group[key], wrong, baseline=baseline, source=folder / rows.FILE)
            for key in keys
            if key in by_group
        ),
        environment=_environment(loaded),
        sessions=tuple(distinct(row.session for row in loaded if row.is_measured)),
        commands=tuple(distinct(row.command for row in loaded if row.command)),
        times=(times[0], times[-1]) if times else (),
        remarks=tuple(remarks),
    )


def _program(row: Row) -> tuple[str, str, str]:
    return row.suite, row.workload, original(row.variant)


def _group(
    members: Sequence[Row],
    wrong: Mapping[tuple[str, str, str], Row],
    *,
    baseline: str | None,
    source: Path,
) -> Group:
    first = members[0]
    name = f"{first.workload}, {first.pass_name}"
    baselines = distinct(row.baseline for row in members)
    if len(baselines) > 1 and baseline is None:
        raise UserError(f"{source}: {name} has several baselines: {', '.join(baselines)}; choose --baseline")
    baseline = baseline or baselines[0]
    measured = [row for row in members if row.is_measured]
    _check_work(measured, name, source)
    by_variant: dict[str, list[Row]] = {}
    for row in members:
        by_variant.setdefault(row.variant, []).append(row)
    # Wrong is never fast: what was timed before the error came to light is no figure.
    blocks = {
        variant: tuple(
            sorted((row for row in own if row.is_measured), key=lambda row: row.round)
            if _program(own[0]) not in wrong
            else ()
        )
        for variant, own in by_variant.items()
    }
    several = len({row.work.precision for row in measured}) > 1
    results = [
        _result(own, blocks[variant], wrong.get(_program(own[0])), blocks.get(baseline, ()), several)
        for variant, own in by_variant.items()
    ]
    return Group(
        suite=first.suite,
        workload=first.workload,
        pass_name=first.pass_name,
        baseline=baseline,
        work=measured[0].work if measured else None,
        results=tuple(sorted(results, key=lambda each: -each.rate.median if each.rate else math.inf)),
    )


def _result(
    members: Sequence[Row], blocks: tuple[Row, ...], wrong: Row | None, base: tuple[Row, ...], several: bool
) -> Result:
    """Return the result of a variant.

    Args:
        members: All its rows.
        blocks: Those that count, by round.
        wrong: A row that says that its program is wrong, if it is.
        base: Blocks of the baseline.
        several: True if the group has several precisions, so that the label names the variant's.
    """
    first = members[0]
    trouble = wrong or next((row for row in members if not row.is_measured), None)
    planned, done = max(row.planned_rounds for row in members), len({row.round for row in blocks})
    ratio = _pair(blocks, base)
    notes = list(_join_notes(row.note for row in members if row.note))
    if any(row.check.get("dropout", "").startswith(SECOND_MODEL) for row in blocks):
        notes.append("its gradients were compared in a second model without dropout")
    if blocks and trouble:
        notes.append(f"{trouble.status} after {done} of {planned} rounds: {trouble.reason}")
    elif 0 < done < planned:
        notes.append(f"only {done} of {planned} rounds")
    if base and blocks and ratio is None:
        notes.append("no round in common with the baseline")
    elif ratio and ratio.error is None and blocks != base:
        notes.append("one round: no interval")
    given = declared_precision(first.variant)
    precision = (blocks[0].work.precision if blocks else given) if several else None
    is_in_name = first.label == first.variant and given
    return Result(
        variant=first.variant,
        label=f"{first.label}, {precision}" if precision and not is_in_name else first.label,
        status=trouble.status if trouble else MEASURED,
        reason=trouble.reason if trouble else "",
        blocks=blocks,
        planned_rounds=planned,
        ratio=ratio,
        notes=tuple(notes),
        description=variants.description(
            original(first.variant), next((row.command for row in members if row.command), "")
        ),
    )


def _join_notes(notes: Iterable[str]) -> Iterator[str]:
    """Join notes that differ in numbers alone: "4 of 80 steps", "6 of 80 steps" are "4 to 6 of 80 steps"."""
    number = re.compile(r"\d+(?:[.,]\d+)*")
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for note in notes:
        alike.setdefault(tuple(number.split(note)), []).append(number.findall(note))
    for words, values in alike.items():
        ranges = (
            sorted(set(column), key=lambda each: float(each.replace(",", "")))
            for column in zip(*values, strict=True)
        )
        shown = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in ranges]
        yield "".join(part for pair in zip(words, [*shown, ""], strict=True) for part in pair)


def _environment(loaded: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """Return the distinct values of each fact that is known of a row's environment."""
    items = (item for row in loaded for item in row.environment.items())
    facts = distinct((name, str(value)) for name, value in items if value is not None)
    names = distinct(name for name, _ in facts)
    return {each: tuple(value for name, value in facts if name == each) for each in names}


def _check_work(measured: Sequence[Row], name: str, source: Path) -> None:
    """Check that all rows of a workload's pass declare equal work.

    Raises:
        UserError: Two do not; it names them and what differs. Or one is of another precision than its name.
    """
    for row in measured:
        if declared_precision(row.variant) not in (None, row.work.precision):
            raise UserError(f"{source}: {row.variant} of {name} was computed in {row.work.precision}")
    for what in (*EQUAL_WORK, "precision"):
        compared = _without_own_precision(measured) if what == "precision" else measured
        for row in compared[1:]:
            one, two = getattr(compared[0].work, what), getattr(row.work, what)
            if one != two:
                raise UserError(
                    f"{source}: the variants of {name} did unequal work: {what} is {one} for "
                    f"{compared[0].variant} and {two} for {row.variant}"
                )


def common_precision(measured: Iterable[Row]) -> str | None:
    """Return the precision of the variants whose names give none; None where there are none."""
    return next((row.work.precision for row in _without_own_precision(measured)), None)


def _without_own_precision(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if declared_precision(row.variant) is None]
