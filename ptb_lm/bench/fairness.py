"""Whether a comparison is fair: all variants declare equal work."""

from collections.abc import Sequence
from pathlib import Path

from ptb_lm.bench.rows import Row
from ptb_lm.errors import UserError

EQUAL_WORK = ("parameters", "flops_per_step", "items_per_step", "unit", "precision")


def check_work(measured: Sequence[Row], name: str, source: Path) -> None:
    """Check that all rows of a workload's pass declare equal work.

    Raises:
        UserError: Two do not; it names them and what differs.
    """
    work = [(row.variant, row.work) for row in measured if row.work]
    for variant, other in work[1:]:
        first_variant, first = work[0]
        for what in EQUAL_WORK:
            one, two = getattr(first, what), getattr(other, what)
            if one != two:
                raise UserError(
                    f"{source}: the variants of {name} did unequal work: {what} is {one} for {first_variant} "
                    f"and {two} for {variant}"
                )
