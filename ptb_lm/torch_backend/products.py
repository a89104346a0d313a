"""Matrix products; on a CPU their operands are laid out so that the library is fast.

In bfloat16 oneDNN takes two to three times as long for a product whose first factor lies transposed. In
float32 the library is the machine's choice (ptb_lm.torch_backend.cpu). On a GPU they are torch's own.

Shapes: M, N = rows and columns of the product, K = what is summed over.
"""

import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu


def times(a_MK: Tensor, b_KN: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a @ b, in `out`, of its shape, if it is given."""
    if (kernels := cpu.find_openblas_kernels(a_MK, b_KN, *([] if out is None else [out]))) is not None:
        return kernels.multiply(a_MK, b_KN, out)
    with cpu.use_float32_library(a_MK):
        return torch.mm(a_MK, b_KN) if out is None else torch.mm(a_MK, b_KN, out=out)


def transposed_times(a_KM: Tensor, b_KN: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a.T @ b, in `out` if it is given; `a` is the narrower one."""
    if _is_bfloat16_on_cpu(a_KM):
        return times(a_KM.T.contiguous(), b_KN, out=out)
    return times(a_KM.T, b_KN, out=out)


def times_transposed(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return a @ b.T."""
    return times(a_MK, b_NK.T)


def _is_bfloat16_on_cpu(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.device.type == "cpu"
