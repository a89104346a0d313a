"""What --precision means in torch: what the weights are kept in, and what the layers compute in.

Half precision is mixed: the weights are kept, clipped and moved in float32, and the layers and the softmax's
products compute with copies of them. Losses, the softmax and the global norm are of float32 or better.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.settings import Setting


class Precision(NamedTuple):
    """A row of PRECISIONS."""

    master: torch.dtype  # what the weights are kept in
    compute: torch.dtype  # what the layers and the products of the softmax compute in
    tf32: bool = False  # whether a GPU may round the factors of float32 products to TF32
    # What the loss is multiplied by before the backward pass, at first (ptb_lm.torch_backend.loss_scale), so
    # that its numbers lie well within a format: medium's first steps on Penn Treebank are far from both ends
    # of float16.
    loss_scale: float = 1.0


PRECISIONS = {
    "fp32": Precision(torch.float32, torch.float32),
    "tf32": Precision(torch.float32, torch.float32, tf32=True),
    "bf16": Precision(torch.float32, torch.bfloat16),
    "fp16": Precision(torch.float32, torch.float16, loss_scale=16.0),
    "fp64": Precision(torch.float64, torch.float64),
}


@functools.cache
def settings_of(precision: Precision) -> Mapping[Setting, object]:
    """Return what a GPU computes a precision with: the values of settings of the whole process.

    fp32 means IEEE float32, where torch's default would let cuDNN round to TF32. In the other precisions
    cuDNN keeps that default: "ieee" would have its LSTM do without tensor cores in bfloat16, too
    (CUDNN_FMA_MATH in torch's ATen/cudnn/Descriptors.h), and nothing of float32 is left for it to round.

    It is torch's newer interface. The older one (allow_tf32, and torch.backends.cudnn.flags) fails after it.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    ieee = precision.compute == torch.float32 and not precision.tf32
    of_cudnn: list[Any] = [cudnn.rnn, cudnn.conv]  # type: ignore[attr-defined]
    return {
        (products, "fp32_precision"): "tf32" if precision.tf32 else "ieee",
        **{(operation, "fp32_precision"): "ieee" if ieee else "tf32" for operation in of_cudnn},
        # Half precision rounds factors, and sums in float32.
        (products, "allow_fp16_reduced_precision_reduction"): False,
        (products, "allow_bf16_reduced_precision_reduction"): False,
    }


class Masters:
    """The stored parameters, with the copies that the computation uses.

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
        kernels = cpu.find_kernels(*gradients)
        for (used, kept), gradient in zip(self._kept.items(), gradients, strict=True):
            if kernels is not None and kept.dtype == torch.float32:
                kernels.update(kept, _laid_out_as(kept, gradient), used.detach(), scale.item())
                continue
            kept.addcmul_(gradient, scale)
            _refresh(used, kept)

    def refresh(self) -> None:
        """Copy the stored parameters to the copies that the computation uses."""
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
