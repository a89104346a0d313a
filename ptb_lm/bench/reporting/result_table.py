"""The table of a workload: a row a variant, its passes side by side, in the columns of its suite.

The columns are those of the published tables that a suite makes again.

What nobody can measure here has no row: below the table a line says which variants, and why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptb_lm.bench.findings import Group, Result, distinct, paired
from ptb_lm.bench.reporting.formats import NOTHING, compared, of_limit, percent, significant
from ptb_lm.bench.reporting.tables import Cell, Column, Name, Table


@dataclass(frozen=True)
class ResultColumn:
    """A column: its title, which may name {unit}, {baseline} and {fastest}, and what it shows of a result."""

    title: str
    show: Callable[[Result, Group], str]

    def heading(self, group: Group) -> str:
        """Return the title for a group."""
        return self.title.format(
            unit=group.work.unit if group.work else "items",
            baseline=group.label(group.baseline),
            fastest=group.fastest.label if group.fastest else "the fastest",
        )


def _seconds(result: Result, _: Group) -> str:
    return significant(result.seconds.median, 4) if result.seconds else NOTHING


def _milliseconds(result: Result, _: Group) -> str:
    return significant(result.seconds.median * 1e3) if result.seconds else NOTHING


def _elapsed(result: Result, _: Group) -> str:
    seconds, steps = result.elapsed
    return f"{significant(seconds)} / {steps}" if steps else NOTHING


def _mean_and_deviation(result: Result, _: Group) -> str:
    if result.seconds is None:
        return NOTHING
    mean, deviation = result.seconds.mean * 1e3, result.seconds.deviation * 1e3
    return (
        f"{significant(mean)} ± {significant(deviation, 2)}"
        if result.seconds.count > 1
        else significant(mean)
    )


def _rate(result: Result, _: Group) -> str:
    return significant(result.rate.median, 4) if result.rate else NOTHING


def _speed_up(result: Result, _: Group) -> str:
    return compared(result.ratio)


def _to_fastest(result: Result, group: Group) -> str:
    return compared(paired(result, group.fastest)) if group.fastest else NOTHING


def _gemm_fraction(result: Result, _: Group) -> str:
    return of_limit(result.gemm_fraction.median) if result.gemm_fraction else NOTHING


def _roofline_fraction(result: Result, _: Group) -> str:
    return percent(result.roofline_fraction.median) if result.roofline_fraction else NOTHING


_RATE = ResultColumn("{unit} a second", _rate)
_TIME = ResultColumn("ms a step", _milliseconds)
_SPEED_UP = ResultColumn("× {baseline} (95 % interval)", _speed_up)
_TO_FASTEST = ResultColumn("× the fastest, {fastest} (95 % interval)", _to_fastest)
_GEMM = ResultColumn("of GEMM rate", _gemm_fraction)
_ROOFLINE = ResultColumn("of roofline", _roofline_fraction)

COLUMNS: Mapping[str, tuple[ResultColumn, ...]] = {
    "peak": (_RATE, _SPEED_UP, _TO_FASTEST, _TIME, _GEMM, _ROOFLINE),
    "stacked-lm": (
        ResultColumn("wall time a batch (s)", _seconds),
        ResultColumn("elapsed (s / batches)", _elapsed),
        _RATE,
        _SPEED_UP,
    ),
    "acoustic": (
        ResultColumn("ms a batch, mean ± sd of rounds", _mean_and_deviation),
        _SPEED_UP,
        _TO_FASTEST,
        _RATE,
        _GEMM,
    ),
}
DEFAULT = (_RATE, _SPEED_UP, _TO_FASTEST, _TIME, _GEMM)


def table(groups: Sequence[Group]) -> Table | None:
    """Return the table of a workload's passes; None where it has no row."""
    shown = COLUMNS.get(groups[0].suite, DEFAULT)
    left_out = _unavailable(groups)
    # Train decides the order, as it is what people wait for.
    ordered = [
        variant
        for variant in distinct(result.variant for group in reversed(groups) for result in group.results)
        if variant not in left_out
    ]
    if not ordered:
        return None
    columns = [Column("", numeric=False)]
    for group in groups:
        of = f"{group.pass_name}: " if len(groups) > 1 else ""
        columns += [Column(f"{of}{each.heading(group)}") for each in shown]
    rows = []
    for variant in ordered:
        label = next(each.label for group in groups if (each := group.result(variant)))
        passes = [_cells(group.result(variant), group, shown) for group in groups]
        if all(cells == passes[0] and cells[-1] == "" for cells in passes):
            passes[1:] = [[""] * len(shown) for _ in passes[1:]]  # the same reason is said once
        rows.append([Name(label, variant), *(cell for cells in passes for cell in cells)])
    return Table(columns, rows)


def pairs(group: Group) -> Table:
    """Return the table of all pairs: how many times as fast as a column's variant a row's is."""
    measured = group.measured
    columns = [Column(result.variant) for result in measured[1:]]
    rows: list[list[Cell]] = [
        [
            Name(result.label, result.variant),
            *("" if other in measured[:place] else compared(paired(result, other)) for other in measured[1:]),
        ]
        for place, result in enumerate(measured[:-1], start=1)
    ]
    return Table([Column("", numeric=False), *columns], rows)


def unavailable(groups: Sequence[Group]) -> Iterator[str]:
    """Yield who is not available here, a sentence a reason."""
    variants = _unavailable(groups)
    for reason in distinct(variants.values()):
        names = sorted(variant for variant, why in variants.items() if why == reason)
        yield f"not available here, {', '.join(names)}: {reason}"


def _unavailable(groups: Sequence[Group]) -> dict[str, str]:
    """Return the reasons by variant, of those that are unavailable in all their passes."""
    reasons: dict[str, str] = {}
    others = set()
    for result in (result for group in groups for result in group.results):
        if result.status == "unavailable" and not result.blocks:
            reasons.setdefault(result.variant, result.reason)
        else:
            others.add(result.variant)
    return {variant: reason for variant, reason in reasons.items() if variant not in others}


def _cells(result: Result | None, group: Group, shown: Sequence[ResultColumn]) -> list[Cell]:
    if result is not None and result.blocks:
        return [each.show(result, group) for each in shown]
    why = f"{result.status}: {result.reason}" if result else "not part of this pass"
    return [why, *[""] * (len(shown) - 1)]
