"""What a training step has computed of its window before the weights move, and where ranks exchange it.

Shapes: N = tokens of this rank's window, E = embedding width, V = vocabulary, R = ranks, M = tokens of all
ranks' windows, or V.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ptb_lm.model.ranks import Ranks
from ptb_lm.torch_backend.precision import Precision


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

    def agreed(self, norm: Tensor) -> Tensor:
        """Return the gradient's norm that all ranks clip by."""
        return norm


def exchange_of(
    ranks: Ranks, *, device: torch.device, precision: Precision, vocabulary_size: int
) -> NoExchange:
    """Return where some ranks exchange what they computed; see Exchange."""
    if ranks.size == 1:
        return NoExchange()
    # Imported here, because not every build of torch has torch.distributed.
    from ptb_lm.torch_backend.exchange import Exchange

    return Exchange(ranks, device=device, precision=precision, vocabulary_size=vocabulary_size)
