"""The kernels of the Mogrifier (kernels.cpp): a layer's sequence, forward and backward.

Shapes: T = time steps, B = batch, P = steps of all samples, packed as ptb_lm.torch_backend.lstm_fused
describes; I = input width, H = hidden units, G = 4H, k = rank; W = width of what a round gates, I or H, and V
= width of the other. A starred matrix is a part of one whose rows are as wide as `Kernels.state_width` says,
with zeros beyond its own width.
"""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ptb_lm.torch_backend.native import Kernels, check, check_strided, list_integers, round_up


class Round(NamedTuple):
    """The tensors of a round over a sequence; rounds gate x and h in turn, x first.

    Without a rank k is 0, and the kernel is the whole factor.
    """

    kernel: Tensor  # [V, W]; of a rank [V, k]
    right_kW: Tensor
    bias_W: Tensor
    inner_Pk: Tensor  # *; what the first of two factors gives
    tanh_PW: Tensor  # the gate, less 1
    gated_PW: Tensor  # *; x or h after the round


class RoundGradients(NamedTuple):
    """The gradients with respect to what a round computes on the way."""

    z_PW: Tensor  # *; of the argument of the gate's sigmoid
    inner_Pk: Tensor  # *


class LayerTensors(NamedTuple):
    """The tensors of a layer over a sequence.

    `h` and `c` are [B + P, H], c in float32: the state before the first step, then after each. `x_PI` and `h`
    are starred. `gates_PG` holds the gates' activations.
    """

    x_PI: Tensor
    gates_PG: Tensor
    h: Tensor
    c: Tensor
    kernel_IG: Tensor
    recurrent_kernel_HG: Tensor
    bias_G: Tensor


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
    kernels: Kernels, layer: LayerTensors, rounds: Sequence[Round], batch_sizes: Sequence[int]
) -> None:
    """Run a layer over a sequence.

    Args:
        kernels: The kernels; the layer's type is one of those that run a recurrence.
        layer: The layer. In: the first B rows of h and c, and x. Out: the other rows, and the gates.
        rounds: Rounds of the layer. Out: inner, tanh and gated.
        batch_sizes: The number of samples that have a step, for each of T.

    Raises:
        ValueError: A tensor does not fit: the kernels would read or write outside of it.
    """
    sizes = _check_layer(kernels, layer, rounds, batch_sizes)
    factors = _new_factors(kernels, layer, rounds, sizes)
    gates = round_up(4 * sizes.width[1], 4 * kernels.lanes)
    kernels.call(
        "mogrifier_forward",
        layer.x_PI.dtype,
        *(len(batch_sizes), list_integers(batch_sizes), ctypes.byref(sizes), len(rounds)),
        _describe((*each, None, None, *pair) for each, pair in zip(rounds, factors, strict=True)),
        *(layer.x_PI, layer.kernel_IG, layer.recurrent_kernel_HG, layer.bias_G),
        *(layer.x_PI.new_empty(gates * sum(sizes.stride)), layer.gates_PG, layer.h, layer.c),
    )


def backward(
    kernels: Kernels,
    layer: LayerTensors,
    rounds: Sequence[Round],
    gradients: Sequence[RoundGradients],
    batch_sizes: Sequence[int],
    d_output_PH: Tensor,
    d_c_BH: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the gradient of some loss back through a sequence.

    Args:
        kernels: The kernels.
        layer: The layer as `forward` left it.
        rounds: Rounds of the layer, likewise.
        gradients: Out: the gradients within each round.
        batch_sizes: The number of samples that have a step, for each of T.
        d_output_PH: dL/doutput.
        d_c_BH: Float32. In: dL/dc_T. Out: dL/dc_0.

    Returns:
        The gradients with respect to the gates before their nonlinearities [P, G], to the input [P, I], and
        to h before the first step [B, H], in float32.

    Raises:
        ValueError: A tensor does not fit.
    """
    sizes = _check_layer(kernels, layer, rounds, batch_sizes)
    factors = _new_factors(kernels, layer, rounds, sizes)
    dtype, packed, (inputs, hidden) = layer.x_PI.dtype, sum(batch_sizes), sizes.width
    d_output_PH = d_output_PH.contiguous()
    check(d_output_PH, dtype, packed, hidden)
    check(d_c_BH, torch.float32, batch_sizes[0], hidden)
    for number, (each, gradient) in enumerate(zip(rounds, gradients, strict=True)):
        check_strided(gradient.z_PW, dtype, packed, len(each.bias_W), sizes.stride[number % 2])
        check_strided(gradient.inner_Pk, dtype, packed, sizes.rank, sizes.rank_stride)
    widths = [round_up(width, 2 * kernels.lanes) for width in sizes.width]
    d_x, d_h = (torch.zeros(batch_sizes[0], width, dtype=torch.float32, device="cpu") for width in widths)
    d_gates_PG, d_x_PI = torch.empty_like(layer.gates_PG), layer.x_PI.new_empty(packed, inputs)
    kernels.call(
        "mogrifier_backward",
        dtype,
        *(len(batch_sizes), list_integers(batch_sizes), ctypes.byref(sizes), len(rounds)),
        _describe((*each, *d, *pair) for each, d, pair in zip(rounds, gradients, factors, strict=True)),
        *(layer.x_PI, layer.kernel_IG, layer.recurrent_kernel_HG),
        *(layer.x_PI.new_empty(sum(widths) * 4 * hidden), layer.gates_PG, layer.h, layer.c),
        *(d_output_PH, d_gates_PG, d_x_PI, d_x, d_h, d_c_BH),
    )
    return d_gates_PG, d_x_PI, d_h[:, :hidden]


def _check_layer(
    kernels: Kernels, layer: LayerTensors, rounds: Sequence[Round], batch_sizes: Sequence[int]
) -> _Sizes:
    """Return the sizes of a layer.

    Raises:
        ValueError: A tensor does not fit.
    """
    dtype, packed, samples = layer.x_PI.dtype, sum(batch_sizes), batch_sizes[0]
    widths = inputs, hidden = len(layer.kernel_IG), len(layer.recurrent_kernel_HG)
    strides = tuple(kernels.state_width(width, dtype) for width in widths)
    rank = len(rounds[0].right_kW) if rounds else 0
    rank_stride = kernels.state_width(rank, dtype)
    check_strided(layer.x_PI, dtype, packed, inputs, strides[0])
    check_strided(layer.h, dtype, samples + packed, hidden, strides[1])
    check(layer.c, torch.float32, samples + packed, hidden)
    check(layer.gates_PG, dtype, packed, 4 * hidden)
    check(layer.kernel_IG, dtype, inputs, 4 * hidden)
    check(layer.recurrent_kernel_HG, dtype, hidden, 4 * hidden)
    check(layer.bias_G, dtype, 4 * hidden)
    for number, each in enumerate(rounds):
        own, other, stride = widths[number % 2], widths[1 - number % 2], strides[number % 2]
        check(each.kernel, dtype, other, rank or own)
        check(each.right_kW, dtype, rank, own)
        check(each.bias_W, dtype, own)
        check_strided(each.inner_Pk, dtype, packed, rank, rank_stride)
        check(each.tanh_PW, dtype, packed, own)
        check_strided(each.gated_PW, dtype, packed, own, stride)
    return _Sizes((ctypes.c_int64 * 2)(*widths), (ctypes.c_int64 * 2)(*strides), rank, rank_stride)


def _new_factors(kernels: Kernels, layer: LayerTensors, rounds: Sequence[Round], sizes: _Sizes) -> Tensor:
    """Return room for two packed factors of each round, in blocks of columns, of the largest size."""
    columns = round_up(max(*sizes.width, sizes.rank), 2 * kernels.lanes)
    return layer.x_PI.new_empty(len(rounds), 2, columns * max(*sizes.stride, sizes.rank_stride))


def _describe(rounds: Iterable[Sequence[Tensor | None]]) -> Any:
    """Return the addresses of tensors of rounds, in the order of `_Round`."""
    rows = [_Round(*(None if tensor is None else tensor.data_ptr() for tensor in each)) for each in rounds]
    return (_Round * len(rows))(*rows)
