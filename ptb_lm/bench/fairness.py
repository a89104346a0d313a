"""Whether a comparison is fair: variants declare equal work, and their losses tell of the same training."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ptb_lm.bench.rows import Row
from ptb_lm.errors import UserError

# Variants start from the same weights on the same data, but dropout and rounding are their own.
LOSS_TOLERANCE = 0.02  # relative

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


def loss_warning(by_variant: Mapping[str, Sequence[Row]]) -> str | None:
    """Compare the losses of the first round that all variants with losses have.

    Returns:
        A sentence if they differ by more than LOSS_TOLERANCE, or one is not finite; else None.
    """
    losses = {
        variant: {row.round: row.loss for row in measured if row.loss is not None}
        for variant, measured in by_variant.items()
    }
    by_round = [each for each in losses.values() if each]
    common = set(by_round[0]).intersection(*by_round) if by_round else set()
    if not common:
        return None
    first = min(common)
    named = {variant: each[first] for variant, each in losses.items() if each}
    broken = [variant for variant, loss in named.items() if not math.isfinite(loss)]
    if broken:
        return f"The loss of {', '.join(broken)} is not finite in round {first}."
    low, high = min(named, key=lambda v: named[v]), max(named, key=lambda v: named[v])
    difference = (named[high] - named[low]) / abs(statistics.median(named.values()) or 1)
    if difference <= LOSS_TOLERANCE:
        return None
    return (
        f"The losses of round {first} differ by {difference:.1%}, more than {LOSS_TOLERANCE:.0%}: from "
        f"{named[low]:.6g} of {low} to {named[high]:.6g} of {high}. They may not do the same work."
    )
