"""What a training step has computed of its window before the weights move, and where ranks exchange it.

Shapes: N = tokens of this rank's window, E = embedding width, V = vocabulary, R = ranks, M = tokens of all
ranks' windows, or V.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Window(NamedTuple):
    """What a step computed of its window, or the ranks of all windows."""

    nll: Tensor  # [N], or [R] in float64, whose sum is the loss
    ids: Tensor  # [N] or [M]
    d_embedded: Tensor  # [N, E] or [M, E], of each of the ids
    gradients: Sequence[Tensor]  # of the layers' parameters


class NoExchange:
    """One rank has nobody to exchange anything with."""

    size = 1

    def environment(self) -> dict[str, Any]:
        """Return what a run's record says of it."""
        return {}

    def begin(self, gradient: Tensor) -> None:
        """Begin to sum a gradient over the ranks, in place."""

    def finish(self, window: Window) -> Window:
        """Return what the windows of all ranks are together; what was begun is done then."""
        return window
