"""What --precision means in torch: what the weights are kept in, and what the layers compute in.

Half precision is mixed: the weights are kept, clipped and moved in float32, and the layers and the softmax's
products compute with copies of them. Losses, the softmax and the global norm are of float32 or better.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu


class Precision(NamedTuple):
    """A row of PRECISIONS."""

    master: torch.dtype  # what the weights are kept in
    compute: torch.dtype  # what the layers and the products of the softmax compute in
    tf32: bool = False  # whether a GPU may round the factors of float32 products to TF32
    # What the loss is multiplied by before the backward pass, so that its numbers lie well within a format.
    # float16 loses digits below 6e-5 and ends at 65,504, beyond which a step counts as diverged: the scale
    # stands where medium's first steps on Penn Treebank are far from both.
    loss_scale: float = 1.0


PRECISIONS = {
    "fp32": Precision(torch.float32, torch.float32),
    "tf32": Precision(torch.float32, torch.float32, tf32=True),
    "bf16": Precision(torch.float32, torch.bfloat16),
    "fp16": Precision(torch.float32, torch.float16, loss_scale=16.0),
    "fp64": Precision(torch.float64, torch.float64),
}


class Masters:
    """Trained parameters, as they are kept, beside the copies that are computed with.

    Where both are of one precision they are the same tensors.

    Args:
        parameters: What is computed with.
        dtype: What to keep.
    """

    def __init__(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
        self._kept = {p: p.detach() if p.dtype == dtype else p.detach().to(dtype) for p in parameters}

    def __getitem__(self, parameter: Tensor) -> Tensor:
        """Return what is kept of a parameter."""
        return self._kept[parameter]

    def add(self, gradients: Sequence[Tensor], scale: Tensor) -> None:
        """Add scale * gradient to each parameter, in their order."""
        kernels = cpu.kernels(*gradients)
        for (used, kept), gradient in zip(self._kept.items(), gradients, strict=True):
            if kernels is not None and kept.dtype == torch.float32:
                kernels.update(kept, _laid_out_as(kept, gradient), used.detach(), scale.item())
                continue
            kept.addcmul_(gradient, scale)
            _refresh(used, kept)

    def refresh(self) -> None:
        """Copy what is kept to what is computed with."""
        for used, kept in self._kept.items():
            _refresh(used, kept)


def _laid_out_as(kept: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with its numbers in the order in memory of those that it moves."""
    if gradient.stride() == kept.stride():
        return gradient
    return torch.empty_like(kept, dtype=gradient.dtype).copy_(gradient)


@torch.no_grad()
def _refresh(used: Tensor, kept: Tensor) -> None:
    if used.dtype != kept.dtype:
        used.copy_(kept)
