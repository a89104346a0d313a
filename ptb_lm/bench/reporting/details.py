"""How each result came about: rounds, spread, start-up, memory, parity with the reference, engine."""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ptb_lm.bench.findings import Group, Result
from ptb_lm.bench.intervals import Ratio, Spread
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.reporting.formats import NOTHING
from ptb_lm.bench.reporting.tables import Cell, Column, Name, Table
from ptb_lm.bench.rows import Row

_T = TypeVar("_T")

_ONE_A_CORE = "one a core"  # what some libraries tell of their threads, at the beginning
_COLUMNS = (
    Column("", numeric=False),
    Column("rounds"),
    Column("processes"),
    Column("interval from"),
    Column("ms a step, quartiles"),
    Column("of GEMM rate"),
    Column("of roofline"),
    Column("build (s)"),
    Column("warm-up (s)"),
    Column("host memory"),
    Column("device memory"),
    Column("error of loss"),
    Column("error of gradient"),
    Column("engine", numeric=False),
)


def threads(row: Row) -> int | None:
    """Return with how many threads a row was computed, by all of its processes; None if it is not known."""
    told = str(row.environment.get("threads"))
    found = re.match(r"\d+", told.replace(_ONE_A_CORE, str(row.environment.get("cores"))))
    return int(found[0]) * int(row.environment.get("processes", 1)) if found else None


def table(group: Group) -> Table:
    """Return the table of a group's measured results."""
    results = [result for result in group.results if result.blocks]
    rows: list[list[Cell]] = [[Name(result.label, result.variant), *_cells(result)] for result in results]
    return Table(_COLUMNS, rows)


def limits(group: Group) -> Iterator[str]:
    """Yield what the GEMM rate was measured on, a sentence each."""
    for on, measured in gemm_rates(group).items():
        median = formats.significant(statistics.median(measured))
        yield f"GEMM rate: {on}, blocks: {len(measured)}, median: {median} GFLOP/s"


def gemm_rates(group: Group) -> Mapping[str, Sequence[float]]:
    """Return the GEMM rates beside the blocks, in GFLOP/s, by what they were measured on."""
    rates: dict[str, list[float]] = {}
    for row in (row for result in group.results for row in result.blocks):
        if row.gemm_library and row.gemm_gflops:
            threads = f", threads: {row.gemm_threads}" if row.gemm_threads else ""
            on = f"{row.work.precision}, {row.gemm_library}, {row.gemm_shape}{threads}"
            rates.setdefault(on, []).append(row.gemm_gflops)
    return rates


def _cells(result: Result) -> Iterator[str]:
    again = len(result.blocks) - result.rounds
    yield f"{result.rounds} of {result.planned_rounds}{f', {again} again' if again else ''}"
    yield str(result.processes)
    yield _or_nothing(result.ratio, _units)
    yield _or_nothing(result.seconds, _quartiles)
    yield _or_nothing(result.gemm_fraction, lambda known: formats.of_limit(known.median))
    yield _or_nothing(result.roofline_fraction, lambda known: formats.percent(known.median))
    for key in ("build_seconds", "warm_up_seconds"):
        yield _or_nothing(result.recorded("startup", key, max), formats.significant)
    for key in ("host_bytes", "device_bytes"):
        yield _or_nothing(result.recorded("peak_memory", key, max), formats.size)
    for key in ("loss_error", "gradient_error"):
        yield _or_nothing(result.recorded("parity", key, max), lambda error: f"{error:.0e}")
    yield result.engine or NOTHING


def _units(ratio: Ratio) -> str:
    if ratio.error is None:
        return NOTHING
    return f"{ratio.units} {'processes' if ratio.unit == 'process' else 'rounds'}"


def _quartiles(seconds: Spread) -> str:
    if seconds.count < 2:
        return NOTHING
    return f"{formats.significant(seconds.low * 1e3)}–{formats.significant(seconds.high * 1e3)}"


def _or_nothing(value: _T | None, show: Callable[[_T], str]) -> str:
    return NOTHING if value is None else show(value)
