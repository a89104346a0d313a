"""The precisions in torch: the types of master weights and of the computation, and the loss scale.

Half precision is mixed: the weights are kept, clipped and moved in float32, and the layers and the softmax's
products compute with copies of them. Losses, the softmax and the global norm are of float32 or better.

float16 ends at 65,504, and loses digits below 6e-5. The loss is multiplied by a number before the backward
pass, so that the gradients of the layers lie between the two; the softmax's begin as probabilities, and those
below 3e-8 are 0. If a gradient overflows all the same the step is skipped, as in torch.amp's GradScaler, and
the next ones are scaled by half as much. Unlike there the scale never exceeds its first value: if nothing
overflows it has no influence on the numbers of a run. All is done on the device, and nothing waits for it: a
step as a CUDA graph has no other way.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.torch_backend.settings import Setting

GROWTH_STEPS = 2000  # steps without an overflow after which a halved scale is doubled
SMALLEST_FRACTION = 2.0**-10  # of the largest scale; a step that overflows even with this one has diverged
LOSS_SCALE_NAME = "torch.loss_scale"  # in a run's state


class Precision(NamedTuple):
    """A row of PRECISIONS."""

    master: torch.dtype  # type that the weights are kept in
    compute: torch.dtype  # type that the layers and the products of the softmax compute in
    tf32: bool = False  # whether a GPU may round the factors of float32 products to TF32
    # First factor of the loss before the backward pass. The gradients then lie well within a format: those of
    # medium's first steps on Penn Treebank are far from both ends of float16.
    loss_scale: float = 1.0


PRECISIONS = {
    "fp32": Precision(torch.float32, torch.float32),
    "tf32": Precision(torch.float32, torch.float32, tf32=True),
    "bf16": Precision(torch.float32, torch.bfloat16),
    "fp16": Precision(torch.float32, torch.float16, loss_scale=16.0),
    "fp64": Precision(torch.float64, torch.float64),
}


@functools.cache
def gpu_settings(precision: Precision) -> Mapping[Setting, object]:
    """Return the settings of the whole process, with their values, by which a GPU computes in a precision.

    fp32 means IEEE float32, where torch's default would let cuDNN round to TF32. In the other precisions
    cuDNN keeps that default: "ieee" would have its LSTM do without tensor cores in bfloat16, too
    (CUDNN_FMA_MATH in torch's ATen/cudnn/Descriptors.h), and nothing of float32 is left for it to round.

    They belong to torch's newer interface. The older one (allow_tf32, and torch.backends.cudnn.flags) fails
    after it.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    ieee = precision.compute == torch.float32 and not precision.tf32
    cudnn_operations: list[Any] = [cudnn.rnn, cudnn.conv]  # type: ignore[attr-defined]
    return {
        (products, "fp32_precision"): "tf32" if precision.tf32 else "ieee",
        **{(operation, "fp32_precision"): "ieee" if ieee else "tf32" for operation in cudnn_operations},
        # Half precision rounds factors, and sums in float32.
        (products, "allow_fp16_reduced_precision_reduction"): False,
        (products, "allow_bf16_reduced_precision_reduction"): False,
        (products, "allow_fp16_accumulation"): False,
    }


class Masters:
    """The master parameters of mixed precision, with the copies that the model computes with.

    If both are of one precision they are the same tensors.

    Attributes:
        pairs: (master, compute) tensor of each parameter.

    Args:
        parameters: Tensors that the model computes with.
        dtype: Type of the masters.
    """

    def __init__(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
        self._masters = {p: p.detach().to(dtype) for p in parameters}
        self.pairs = [(master, compute) for compute, master in self._masters.items()]

    def __getitem__(self, parameter: Tensor) -> Tensor:
        """Return the master tensor of a parameter."""
        return self._masters[parameter]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the master parameters to the copies that the model computes with."""
        for master, compute in self.pairs:
            if compute.dtype != master.dtype:
                compute.copy_(master)


class LossScale:
    """The scale of a loss: its largest value times a power of two that is at most 1.

    Attributes:
        state: [2]: the fraction that is left of the largest scale, and the steps since that changed.

    Args:
        largest: The scale at first, and at most.
        device: Device of the model.
    """

    def __init__(self, largest: float, *, device: torch.device) -> None:
        self.largest = largest
        self.state = torch.tensor([1.0, 0.0], device=device, dtype=torch.float64)

    @property
    def fraction(self) -> Tensor:
        """The fraction that is left of the largest scale, a power of two, []; exact in float16."""
        return self.state[0]

    @property
    def scale(self) -> Tensor:
        """The scale, [], in float64."""
        return self.largest * self.fraction

    def adjust(self, finite: Tensor) -> Tensor:
        """Halve the scale if a gradient overflowed, else count the step.

        Args:
            finite: True if the gradient's norm is finite, [].

        Returns:
            The new scale if it was halved, []; 0 if nothing overflowed, or the scale is the smallest already.
        """
        fraction, steps = self.state.unbind()
        halved = ~finite & (fraction > SMALLEST_FRACTION)
        due = steps + 1 >= GROWTH_STEPS
        grown = torch.where(due, (2 * fraction).clamp(max=1), fraction)
        fraction = torch.where(finite, grown, torch.where(halved, fraction / 2, fraction))
        steps = torch.where(finite & ~due, steps + 1, 0)
        self.state.copy_(torch.stack([fraction, steps]))
        return torch.where(halved, self.largest * fraction, 0)

    def export(self) -> dict[str, NDArray[Any]]:
        """Return the state, for `load`."""
        return {LOSS_SCALE_NAME: self.state.cpu().numpy().copy()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set a state that `export` returned.

        Raises:
            UserError: The array is not a scale.
        """
        saved = arrays[LOSS_SCALE_NAME].tolist()
        if not (
            np.shape(saved) == (2,)
            and SMALLEST_FRACTION <= saved[0] <= 1
            and math.frexp(saved[0])[0] == 0.5  # a power of two
            and 0 <= saved[1] < math.inf
        ):
            raise UserError(
                f"the tensor {LOSS_SCALE_NAME!r} holds {saved}, not a loss scale with its number of steps"
            )
        self.state.copy_(torch.tensor(saved, dtype=torch.float64))
