"""The scale of float16's gradients: halved by a step whose gradient overflows, and given back later.

float16 ends at 65,504, and loses digits below 6e-5. The loss is multiplied by a number before the backward
pass, so that gradients lie between the two. Where one overflows all the same the step is skipped, as
torch.amp's GradScaler does, and the next ones are scaled by half as much. Unlike there the scale never
exceeds the one that it starts at: where nothing overflows it has no influence on the numbers of a run.

All is done on the device, and nothing waits for it: a step as a CUDA graph has no other way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError

GROWTH_STEPS = 2000  # steps without an overflow after which a halved scale is doubled
LEAST = 2.0**-10  # of the scale it starts at; what overflows even so has diverged
NAME = "torch.loss_scale"  # in a run's state


class LossScale:
    """The scale of a loss, a power of two below what it starts at.

    Attributes:
        state: [2]: the part that is left of the scale it starts at, and the steps since that changed.

    Args:
        start: The scale it starts at, and never exceeds.
        device: Where the model is.
    """

    def __init__(self, start: float, *, device: torch.device) -> None:
        self.start = start
        self.state = torch.tensor([1.0, 0.0], device=device, dtype=torch.float64)

    @property
    def part(self) -> Tensor:
        """What is left of the scale it starts at, a power of two, []; exact in float16."""
        return self.state[0]

    @property
    def scale(self) -> Tensor:
        """The scale, [], in float64."""
        return self.start * self.part

    def move(self, finite: Tensor) -> Tensor:
        """Halve the scale if a gradient overflowed, else count the step.

        Args:
            finite: Whether the gradient's norm is finite, [].

        Returns:
            The new scale if it was halved, []; 0 if nothing overflowed, or the scale is the least already.
        """
        part, steps = self.state.unbind()
        halved = ~finite & (part > LEAST)
        due = steps + 1 >= GROWTH_STEPS
        grown = torch.where(due, (2 * part).clamp(max=1), part)
        part = torch.where(finite, grown, torch.where(halved, part / 2, part))
        steps = torch.where(finite & ~due, steps + 1, 0)
        self.state.copy_(torch.stack([part, steps]))
        return torch.where(halved, self.start * part, 0)

    def export(self) -> dict[str, NDArray[Any]]:
        """Return what `load` takes."""
        return {NAME: self.state.cpu().numpy().copy()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set what `export` returned.

        Raises:
            UserError: It is not a scale.
        """
        saved = arrays[NAME].tolist()
        if not (np.shape(saved) == (2,) and LEAST <= saved[0] <= 1 and saved[1] >= 0):
            raise UserError(f"the tensor {NAME!r} holds {saved}, not a loss scale with its number of steps")
        self.state.copy_(torch.tensor(saved, dtype=torch.float64))


def zeroed(finite: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients if all gradients of the step are finite, and zeros otherwise.

    Args:
        finite: Whether they are, [].
        gradients: Of a step.
    """
    return [gradient.masked_fill(~finite, 0) for gradient in gradients]
