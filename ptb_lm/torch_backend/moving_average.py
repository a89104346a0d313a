"""The moving average of parameters, and its place in theirs."""

from collections.abc import Sequence

from torch import Tensor


class MovingAverage:
    """An exponential moving average of some tensors.

    Args:
        values: The tensors, which may be views, without a gradient. The average begins as they are.
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        self._values = values
        self._averages = [value.clone() for value in values]

    def update(self, weight: float) -> None:
        """Do average += weight * (value - average)."""
        for value, average in zip(self._values, self._averages, strict=True):
            average.lerp_(value, weight)

    def swap(self) -> None:
        """Exchange values and averages; a second call undoes it, to the bit."""
        for value, average in zip(self._values, self._averages, strict=True):
            kept = value.clone()
            value.copy_(average)
            average.copy_(kept)
