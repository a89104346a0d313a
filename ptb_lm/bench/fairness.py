"""Whether a comparison is fair: all variants declare equal work.

Of one precision, too, but for those whose names give another: the report says so beside their ratios.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ptb_lm.bench.rows import Row
from ptb_lm.bench.variants import declared_precision
from ptb_lm.errors import UserError

EQUAL_WORK = ("parameters", "flops_per_step", "items_per_step", "unit")


def check_work(measured: Sequence[Row], name: str, source: Path) -> None:
    """Check that all rows of a workload's pass declare equal work.

    Raises:
        UserError: Two do not; it names them and what differs. Or one is of another precision than its name.
    """
    rows = [row for row in measured if row.work]
    for what in EQUAL_WORK:
        _check_equal(rows, what, name, source)
    for row in rows:
        declared = declared_precision(row.variant)
        if row.work and declared not in (None, row.work.precision):
            raise UserError(f"{source}: {row.variant} of {name} was computed in {row.work.precision}")
    _check_equal(_undeclared(rows), "precision", name, source)


def common_precision(measured: Iterable[Row]) -> str | None:
    """Return the precision of the variants whose names give none; None where there are none."""
    return next((row.work.precision for row in _undeclared(measured) if row.work), None)


def _undeclared(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if declared_precision(row.variant) is None]


def _check_equal(rows: Sequence[Row], what: str, name: str, source: Path) -> None:
    for row in rows[1:]:
        one, two = getattr(rows[0].work, what), getattr(row.work, what)
        if one != two:
            raise UserError(
                f"{source}: the variants of {name} did unequal work: {what} is {one} for {rows[0].variant} "
                f"and {two} for {row.variant}"
            )
