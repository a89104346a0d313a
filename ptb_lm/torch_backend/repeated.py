"""Products of many small matrices with the same matrix, as in a loop over time.

Shapes: B = rows of the small matrix, K, N = sides of the one that stays.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu


def by_transpose(matrix_KN: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """Return the function x_BN -> x_BN @ matrix_KN.T, [B, K], prepared for many calls.

    On a CPU the plain product of so few rows spends most of its time on rearranging the matrix. MKL, where it
    multiplies for torch, can do that once, for all calls.

    Args:
        matrix_KN: Must not change between the calls.
        rows: B; fewer rows work too, but nothing was prepared for them.
    """
    if matrix_KN.device.type != "cpu":
        return lambda x_BN: x_BN @ matrix_KN.T
    if cpu.by_mkl(matrix_KN):
        matrix_KN = matrix_KN.contiguous()
        packed = torch.ops.mkl._mkl_reorder_linear_weight(matrix_KN, rows)
        return lambda x_BN: (
            torch.ops.mkl._mkl_linear(x_BN, packed, matrix_KN, None, rows)
            if len(x_BN) == rows
            else _other_way_round(matrix_KN, x_BN)
        )
    return lambda x_BN: _other_way_round(matrix_KN, x_BN)


def _other_way_round(matrix_KN: Tensor, x_BN: Tensor) -> Tensor:
    # The large matrix is then read along its rows.
    return (matrix_KN @ x_BN.T).T
