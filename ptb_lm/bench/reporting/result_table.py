"""The tables of a workload: its passes side by side in the columns of its suite, every pair, and the details.

A terminal has a table for each pass. Two suites have the columns of the published tables that they make
again. What nobody can measure here has no row: below the table a line says which variants, and why.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptb_lm.bench.intervals import LogMean, Spread
from ptb_lm.bench.reporting.formats import (
    SAME,
    limit_percent,
    marked_ratio,
    quantity,
    significant,
    wrap,
)
from ptb_lm.bench.results import Result, ResultGroup, distinct, group_by_key, speed_ratio
from ptb_lm.common.markdown_tables import Column, Name, Table, TableCell
from ptb_lm.pages.document import NOTHING

# Below and above the tables of a terminal.
ROUNDS_ALONE = (
    "Some intervals leave out differences between processes, because fewer than three were measured."
)
_HOW_TO_READ = (
    "× is the speed divided by that of the baseline, the fastest or the next below, with its 95 % interval."
)
_SAME = f"{SAME}: the interval contains 1, so no difference is shown"


@dataclass(frozen=True)
class ResultColumn:
    """A column of measured results.

    Attributes:
        title: The heading, which may name the {baseline} and attributes of the {group}.
        value: A function of a result, None where nothing is known; or the name of an attribute of Result.
        text: A function that writes the value for people.
        numeric: True for a column that is set flush right.
    """

    title: str
    value: Callable[[Result, ResultGroup], Any] | str
    text: Callable[[Any], str] = str
    numeric: bool = True

    def heading(self, group: ResultGroup) -> str:
        """Return the title for a group."""
        return self.title.format(group=group, baseline=group.label(group.baseline))

    def cell(self, result: Result, group: ResultGroup) -> str:
        """Return the text of a result's cell."""
        known = getattr(result, self.value) if isinstance(self.value, str) else self.value(result, group)
        return NOTHING if known is None else self.text(known)


def _mean_and_deviation(seconds: Spread) -> str:
    mean = significant(seconds.mean * 1e3)
    return f"{mean} ± {significant(seconds.deviation * 1e3, 2)}" if seconds.count > 1 else mean


def _quartiles(seconds: Spread) -> str:
    if seconds.count < 2:
        return NOTHING
    return f"{significant(seconds.low * 1e3)}–{significant(seconds.high * 1e3)}"


def _rounds(result: Result, _: ResultGroup) -> str:
    again = len(result.blocks) - result.rounds
    return f"{result.rounds} of {result.planned_rounds}{f', {again} again' if again else ''}"


def _units(ratio: LogMean) -> str:
    what = "processes" if ratio.unit == "process" else "rounds"
    return NOTHING if ratio.error is None else f"{ratio.units} {what}"


def _fact_column(title: str, facts: str, key: str, text: Callable[[float], str]) -> ResultColumn:
    return ResultColumn(title, lambda result, _: result.largest(facts, key), text)


_BYTES = functools.partial(quantity, unit="B")
_RATE = ResultColumn("{group.work.unit} per second", "rate", lambda rate: significant(rate.median, 4))
_TIME = ResultColumn("ms per step", "seconds", lambda seconds: significant(seconds.median * 1e3))
_SPEED_UP = ResultColumn("× {baseline} (95 % interval)", "ratio", marked_ratio)
_TO_FASTEST = ResultColumn(
    "× the fastest, {group.fastest.label} (95 % interval)",
    lambda result, group: speed_ratio(result, group.fastest) if group.fastest else None,
    marked_ratio,
)
_GEMM = ResultColumn("of GEMM rate", "gemm_fraction", lambda known: limit_percent(known.median))
_ROOFLINE = ResultColumn("of roofline", "roofline_fraction", lambda known: limit_percent(known.median))

COLUMNS: Mapping[str, tuple[ResultColumn, ...]] = {
    "peak": (_RATE, _SPEED_UP, _TO_FASTEST, _TIME, _GEMM, _ROOFLINE),
    "stacked-lm": (
        ResultColumn("wall time per batch (s)", "seconds", lambda seconds: significant(seconds.median, 4)),
        ResultColumn(
            "elapsed (s / batches)", "total_time", lambda total: f"{significant(total[0])} / {total[1]}"
        ),
        _RATE,
        _SPEED_UP,
    ),
    "acoustic": (
        ResultColumn("ms per batch, mean ± sd of rounds", "seconds", _mean_and_deviation),
        _SPEED_UP,
        _TO_FASTEST,
        _RATE,
        _GEMM,
    ),
}
DEFAULT = (_RATE, _SPEED_UP, _TO_FASTEST, _TIME, _GEMM)
# How each result came about.
DETAILS = (
    ResultColumn("rounds", _rounds),
    ResultColumn("processes", "processes"),
    ResultColumn("interval from", "ratio", _units),
    ResultColumn("ms per step, quartiles", "seconds", _quartiles),
    _GEMM,
    _ROOFLINE,
    # That of the first process, whose start no other one disturbed.
    ResultColumn("build (s)", lambda result, _: result.blocks[0].startup.get("build_seconds"), significant),
    _fact_column("warm-up (s)", "startup", "warm_up_seconds", significant),
    _fact_column("host memory", "peak_memory", "host_bytes", _BYTES),
    _fact_column("device memory", "peak_memory", "device_bytes", _BYTES),
    _fact_column("error of loss", "parity", "loss_error", "{:.0e}".format),
    _fact_column("error of gradient", "parity", "gradient_error", "{:.0e}".format),
    ResultColumn("engine", lambda result, _: result.engine or None, numeric=False),
)


def table(groups: Sequence[ResultGroup]) -> Table | None:
    """Return the table of a workload's passes; None where it has no row."""
    left_out = {name for names in unavailable(groups).values() for name in names}
    # Train decides the order, as it is what people wait for.
    variants = [
        variant
        for variant in distinct(result.variant for group in reversed(groups) for result in group.results)
        if variant not in left_out
    ]
    if not variants:
        return None
    columns = [Column("", numeric=False)]
    for group in groups:
        prefix = f"{group.pass_name}: " if len(groups) > 1 else ""
        columns += [Column(f"{prefix}{each.heading(group)}") for each in _columns(group)]
    rows = []
    for variant in variants:
        label = next(each.label for group in groups if (each := group.result(variant)))
        passes = [_cells(group.result(variant), group, _columns(group)) for group in groups]
        if all(cells[0] == passes[0][0] and cells[-1] == "" for cells in passes):
            passes[1:] = [[""] * len(cells) for cells in passes[1:]]  # the same reason is said once
        rows.append([Name(label, variant), *(cell for cells in passes for cell in cells)])
    return Table(columns, rows)


def explain_mark(table: Table | None) -> list[str]:
    """Return what the mark of some ratios in a table means, if there are such."""
    cells = (cell for row in table.rows for cell in row) if table else ()
    return [_SAME] * any(isinstance(cell, str) and cell.endswith(SAME) for cell in cells)


def details(group: ResultGroup) -> Table:
    """Return the table of how a group was measured."""
    columns = [Column("", numeric=False), *(Column(each.title, each.numeric) for each in DETAILS)]
    rows = [
        [Name(result.label, result.variant), *_cells(result, group, DETAILS)]
        for result in group.measured_results
    ]
    return Table(columns, rows)


def pairs(group: ResultGroup) -> Table:
    """Return the table of all pairs: how many times as fast as a column's variant a row's is."""
    members = group.measured_results
    columns = [Column(result.variant) for result in members[1:]]
    rows: list[list[TableCell]] = [
        [
            Name(result.label, result.variant),
            *(
                "" if other in members[:index] else marked_ratio(speed_ratio(result, other))
                for other in members[1:]
            ),
        ]
        for index, result in enumerate(members[:-1], start=1)
    ]
    return Table([Column("", numeric=False), *columns], rows)


def to_lines(groups: Sequence[ResultGroup], width: int) -> list[str]:
    """Return the tables of a terminal, one for each pass that has figures, with empty lines around them."""
    tables = [_list_ratios(group, width) for group in groups if group.measured_results]
    lines = [line for table in tables for line in ("", *table)]
    mark = f" {_SAME}." * any(f"){SAME}" in line for line in lines)
    return ["", *wrap(f"{_HOW_TO_READ}{mark}", width), *lines, ""] if lines else []


def _list_ratios(group: ResultGroup, width: int) -> Iterator[str]:
    """Yield the name of each variant, and a line of its median speed and the ratios to others.

    Where the terminal is too narrow for that line, each figure has one of its own.
    """
    members, fastest = group.measured_results, group.fastest
    names = f"the baseline is {group.label(group.baseline)}"
    names += f", the fastest is {fastest.label}" if fastest else ""
    yield from wrap(f"{group.name}: {names}", width)
    rows: list[tuple[str, ...]] = [(f"{group.work.unit}/s", "× baseline ", "× fastest ", "× next ")]
    units = {result.mean_rate.unit for result in members if result.mean_rate.error is not None}
    for result, below in zip(members, [*members[1:], None], strict=True):
        others = [speed_ratio(result, other) if other else None for other in (fastest, below)]
        ratios = [result.ratio, *others]
        shown = [text if text.endswith(SAME) else f"{text} " for text in map(marked_ratio, ratios)]
        rows.append((significant(result.rate.median, 4), *shown))
        units |= {ratio.unit for ratio in ratios if ratio and ratio.error is not None}
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    titles, *lines = (
        "".join(f"  {cell:>{size}}" for cell, size in zip(cells, sizes, strict=True)).rstrip()
        for cells in rows
    )
    is_wide = max(map(len, [titles, *lines])) <= width
    if is_wide:
        yield titles
    for result, line, cells in zip(members, lines, rows[1:], strict=True):
        yield result.label
        if is_wide:
            yield line
        else:
            yield from (f"  {title:<12}{cell}".rstrip() for title, cell in zip(rows[0], cells, strict=True))
    if "round" in units:
        yield from wrap(ROUNDS_ALONE, width)


def unavailable(groups: Sequence[ResultGroup]) -> dict[str, list[str]]:
    """Return the variants that are unavailable in all their passes, by the reason."""
    passes = group_by_key((result.variant, result) for group in groups for result in group.results)
    variants = group_by_key(
        (results[0].reason, variant)
        for variant, results in passes.items()
        if all(each.status == "unavailable" and not each.blocks for each in results)
    )
    return {reason: sorted(names) for reason, names in variants.items()}


def _columns(group: ResultGroup) -> list[ResultColumn]:
    """Return the columns of a group's suite; where there is no fastest, without the ratios to it."""
    every = COLUMNS.get(group.suite, DEFAULT)
    return [each for each in every if group.fastest or each is not _TO_FASTEST]


def _cells(result: Result | None, group: ResultGroup, shown: Sequence[ResultColumn]) -> list[TableCell]:
    if result is not None and result.blocks:
        return [each.cell(result, group) for each in shown]
    why = f"{result.status}: {result.reason}" if result else "not part of this pass"
    return [why, *[""] * (len(shown) - 1)]
