"""The kernels of the Mogrifier (kernels.cpp): a layer's sequence, forward and backward.

Shapes: T = time steps, B = batch, P = steps of all samples, packed as ptb_lm.torch_backend.lstm_fused
describes; I = input width, H = hidden units, G = 4H, k = rank; W = width of what a round gates, I or H, and V
= width of the other. A starred matrix is a part of one whose rows are as wide as `Kernels.state_width` says,
with zeros beyond its own width.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ptb_lm.torch_backend.native import Kernels, check, list_integers


class RoundTensors(NamedTuple):
    """What the kernels read and write of a round; the round with the number 0 gates x."""

    kernel: Tensor  # [V, W]; of a rank [V, k]
    right_kW: Tensor | None
    bias_W: Tensor
    inner_Pk: Tensor | None  # *; what the first factor gives
    tanh_PW: Tensor
    gated_PW: Tensor  # *; x or h after the round
    d_z_PW: Tensor | None = None  # *; the gradient with respect to the argument of the gate's sigmoid
    d_inner_Pk: Tensor | None = None  # *


class LayerTensors(NamedTuple):
    """What they read and write of a layer.

    `h` and `c` are [B + P, H], c in float32: the state before the first step, then after each. `x_PI` and `h`
    are starred. `gates_PG` holds the gates' activations.
    """

    x_PI: Tensor
    kernel_IG: Tensor
    recurrent_kernel_HG: Tensor
    bias_G: Tensor
    gates_PG: Tensor
    h: Tensor
    c: Tensor


class _Sizes(ctypes.Structure):
    """`Sizes` in kernels.cpp."""

    _fields_ = (
        ("width", ctypes.c_int64 * 2),
        ("stride", ctypes.c_int64 * 2),
        ("rank", ctypes.c_int64),
        ("rank_stride", ctypes.c_int64),
    )


class _Round(ctypes.Structure):
    """`Round` in kernels.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kernel", "right", "bias", "inner", "tanh", "gated")),
        *((name, ctypes.c_void_p) for name in ("d_z", "d_inner", "packed", "packed_right")),
    )


def forward(
    kernels: Kernels, layer: LayerTensors, rounds: Sequence[RoundTensors], running: Sequence[int]
) -> None:
    """Run a layer over a sequence.

    Args:
        kernels: The kernels; the layer's type is one of those that run a recurrence.
        layer: The layer. In: the first B rows of h and c, and x. Out: the other rows, and the gates.
        rounds: Its rounds. Out: inner, tanh and gated.
        running: The number of samples that have a step, for each of T.
    """
    sizes = _check_layer(kernels, layer, rounds, running)
    units, wide = -(-sizes.width[1] // kernels.lanes), 4 * kernels.lanes
    factors = []
    for number, each in enumerate(rounds):
        side = number % 2
        first = each.kernel.shape[1], sizes.stride[1 - side]
        second = (sizes.width[side], sizes.rank_stride) if each.right_kW is not None else (0, 0)
        factors += [_count(kernels, *first), _count(kernels, *second)]
    pieces = _workspace(layer.x_PI, [*factors, units * wide * sum(sizes.stride)])
    kernels.call(
        "mogrifier_forward",
        layer.x_PI.dtype,
        *(len(running), list_integers(running), ctypes.byref(sizes)),
        *(len(rounds), _describe(rounds, pieces)),
        *(layer.x_PI, layer.kernel_IG, layer.recurrent_kernel_HG, layer.bias_G, pieces[-1]),
        *(layer.gates_PG, layer.h, layer.c),
    )


def backward(
    kernels: Kernels,
    layer: LayerTensors,
    rounds: Sequence[RoundTensors],
    running: Sequence[int],
    d_output_PH: Tensor,
    d_c_BH: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the gradient of some loss back through a sequence.

    Args:
        kernels: The kernels.
        layer: The layer as `forward` left it.
        rounds: Its rounds, likewise. Out: d_z and d_inner.
        running: The number of samples that have a step, for each of T.
        d_output_PH: dL/doutput.
        d_c_BH: Float32. In: dL/dc_T. Out: dL/dc_0.

    Returns:
        The gradients with respect to the gates before their nonlinearities [P, G], to the input [P, I], and
        to h before the first step [B, H], in float32.
    """
    sizes = _check_layer(kernels, layer, rounds, running)
    packed, (inputs, hidden), block = sum(running), sizes.width, 2 * kernels.lanes
    dtype, new = layer.x_PI.dtype, layer.x_PI.new_empty
    d_output_PH = d_output_PH.contiguous()
    check(d_output_PH, dtype, packed, hidden)
    check(d_c_BH, torch.float32, running[0], hidden)
    factors = []
    for number, each in enumerate(rounds):
        side = number % 2
        assert each.d_z_PW is not None
        _check_part(each.d_z_PW, dtype, packed, sizes.width[side], sizes.stride[side])
        depth = sizes.rank_stride if each.right_kW is not None else sizes.stride[side]
        if each.right_kW is not None:
            assert each.d_inner_Pk is not None
            _check_part(each.d_inner_Pk, dtype, packed, sizes.rank, sizes.rank_stride)
        factors += [
            _count(kernels, sizes.width[1 - side], depth),
            _count(kernels, sizes.rank, sizes.stride[side]),
        ]
    sides = [_count(kernels, width, 4 * hidden) for width in (inputs, hidden)]
    pieces = _workspace(layer.x_PI, [*factors, sum(sides)])
    d_gates_PG, d_x_PI = torch.empty_like(layer.gates_PG), new(packed, inputs)
    d_x, d_h = (
        torch.zeros(running[0], -(-width // block) * block, dtype=torch.float32, device="cpu")
        for width in (inputs, hidden)
    )
    kernels.call(
        "mogrifier_backward",
        dtype,
        *(len(running), list_integers(running), ctypes.byref(sizes)),
        *(len(rounds), _describe(rounds, pieces)),
        *(
            layer.x_PI,
            layer.kernel_IG,
            layer.recurrent_kernel_HG,
            pieces[-1],
            layer.gates_PG,
            layer.h,
            layer.c,
        ),
        *(d_output_PH, d_output_PH.stride(0), d_gates_PG, d_x_PI, d_x, d_h, d_c_BH),
    )
    return d_gates_PG, d_x_PI, d_h[:, :hidden]


def _check_layer(
    kernels: Kernels, layer: LayerTensors, rounds: Sequence[RoundTensors], running: Sequence[int]
) -> _Sizes:
    """Return the sizes of a layer.

    Raises:
        ValueError: A tensor does not fit: the kernels would read or write outside of it.
    """
    dtype, (inputs, width), hidden = layer.x_PI.dtype, layer.kernel_IG.shape, len(layer.recurrent_kernel_HG)
    packed, samples = sum(running), running[0]
    widths = (inputs, hidden)
    strides = tuple(kernels.state_width(each, dtype) for each in widths)
    rank = len(rounds[0].right_kW) if rounds and rounds[0].right_kW is not None else 0
    rank_stride = kernels.state_width(rank, dtype)
    _check_part(layer.x_PI, dtype, packed, inputs, strides[0])
    check(layer.kernel_IG, dtype, inputs, 4 * hidden)
    check(layer.recurrent_kernel_HG, dtype, hidden, width)
    check(layer.bias_G, dtype, width)
    check(layer.gates_PG, dtype, packed, width)
    _check_part(layer.h, dtype, samples + packed, hidden, strides[1])
    check(layer.c, torch.float32, samples + packed, hidden)
    for number, each in enumerate(rounds):
        own, other = widths[number % 2], widths[1 - number % 2]
        check(each.kernel, dtype, other, rank or own)
        check(each.bias_W, dtype, own)
        check(each.tanh_PW, dtype, packed, own)
        _check_part(each.gated_PW, dtype, packed, own, strides[number % 2])
        if rank:
            assert each.right_kW is not None
            assert each.inner_Pk is not None
            check(each.right_kW, dtype, rank, own)
            _check_part(each.inner_Pk, dtype, packed, rank, rank_stride)
    return _Sizes((ctypes.c_int64 * 2)(*widths), (ctypes.c_int64 * 2)(*strides), rank, rank_stride)


def _check_part(tensor: Tensor, dtype: torch.dtype, rows: int, width: int, stride: int) -> None:
    """Raise ValueError if a matrix is no part of one whose rows are so wide."""
    found = (tensor.device.type, tensor.dtype, tuple(tensor.shape), tensor.stride())
    if found != ("cpu", dtype, (rows, width), (stride, 1)):
        raise ValueError(f"a tensor {found} where {dtype} {(rows, width)} in rows of {stride} is needed")


def _count(kernels: Kernels, columns: int, rows: int) -> int:
    """Return the numbers of a factor that is packed in blocks of columns."""
    block = 2 * kernels.lanes
    return -(-columns // block) * block * rows


def _workspace(like: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Return the places of packed factors, in one piece of memory."""
    return list(like.new_empty(sum(counts)).split(list(counts)))


def _describe(rounds: Sequence[RoundTensors], pieces: Sequence[Tensor]) -> Any:
    """Return the addresses of the rounds' tensors, and of the places of their packed factors."""
    rows = []
    for number, each in enumerate(rounds):
        tensors = (*each, *pieces[2 * number : 2 * number + 2])
        rows.append(_Round(*(None if tensor is None else tensor.data_ptr() for tensor in tensors)))
    return (_Round * len(rows))(*rows)
