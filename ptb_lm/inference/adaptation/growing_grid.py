"""A search of a grid that grows: its best value then does not lie where the grid happens to end."""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

FURTHER = 6  # values beyond a grid, at most: 64 times less or more than its edge

T = TypeVar("T", int, float)


def least(measure: Callable[[T], float], values: Iterable[T], *, below: float = math.inf) -> float:
    """Measure all values of a grid; return the least that was found.

    While the best value is the smallest of those measured, its half is measured too, and while it is the
    largest its double. This ends when the best lies inside, when no further value is possible, or after
    `FURTHER` values. A grid of a single value does not grow.

    Args:
        measure: What is to be small. The first of equals is the best.
        values: The grid, without negative values.
        below: What further values must be less than; they must also be greater than 0.
    """
    found = {value: measure(value) for value in values}
    for _ in range(FURTHER if len(found) > 1 else 0):
        further = _beyond(found)
        if further is None or not 0 < further < below:
            break
        found[further] = measure(further)
    return min(found.values())


def _beyond(found: dict[T, float]) -> T | None:
    """Return the value beyond the edge at which the best one lies; None if it lies inside."""
    best = min(found, key=found.__getitem__)
    if best == min(found):
        return best // 2 if isinstance(best, int) else best / 2
    return best * 2 if best == max(found) else None
