"""TensorFlow's Block operations, each with its gradient.

LSTMBlockCell has no registered gradient in TensorFlow 2. BlockLSTMV2 has one, but of the wrong operation:
BlockLSTMGrad, which takes the weights of cell and forget gate in the order of BlockLSTM, the other way round
than BlockLSTMV2 does (TensorFlow 2.21). Here LSTMBlockCell goes with the gradient operation written for it,
and BlockLSTMV2 with `sequence_gradient`, by hand: TensorFlow's operation for it (BlockLSTMGradV2) multiplies
for the weights' gradient at each step. What does not depend on the step after is done here for all steps in
one product: the gradients with respect to the weights and the input. The loop back over time keeps one small
product and the pointwise work, and takes a fraction of the operation's time.

LSTMBlockCell adds 1 to the forget gate and clips the cell at 3 unless told otherwise; BlockLSTMV2 does not.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, G = 4H: gates in the order i, f, g, o.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

LONGEST_UNROLLED = 64  # steps; a longer sequence, or one of unknown length, is a loop in the graph

Gradient = Callable[..., tuple[tf.Tensor, ...]]


@tf.custom_gradient  # type: ignore[untyped-decorator]
def block_cell(
    x_BI: tf.Tensor, h_BH: tf.Tensor, c_BH: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Gradient]:
    """Return (h_BH, c_BH) after one step of LSTMBlockCell.

    Args:
        x_BI: The step's input.
        h_BH: The output before.
        c_BH: The cell before.
        weight: The kernel above the recurrent kernel, [I + H, G], but with the gates in the order i, g, f, o.
        bias: The bias of the gates in the same order, [G].
    """
    inputs = {"x": x_BI, "cs_prev": c_BH, "h_prev": h_BH, "w": weight, "b": bias, **_no_peepholes(c_BH)}
    after = tf.raw_ops.LSTMBlockCell(**inputs, forget_bias=0.0, cell_clip=-1.0, use_peephole=False)

    def gradient(d_h_BH: tf.Tensor, d_c_BH: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tape = {name: getattr(after, name) for name in ("i", "cs", "f", "o", "ci", "co")}
        before = tf.raw_ops.LSTMBlockCellGrad(
            **inputs, **tape, cs_grad=d_c_BH, h_grad=d_h_BH, use_peephole=False
        )
        # The operation goes back to the gates; what lies before them is a matrix product.
        d_gates = before.dicfo
        d_inputs = tf.matmul(d_gates, weight, transpose_b=True)
        d_x_BI, d_h_prev_BH = tf.split(d_inputs, [x_BI.shape[1], h_BH.shape[1]], axis=1)
        d_weight = tf.matmul(tf.concat([x_BI, h_BH], 1), d_gates, transpose_a=True)
        return d_x_BI, d_h_prev_BH, before.cs_prev_grad, d_weight, tf.reduce_sum(d_gates, 0)

    return (after.h, after.cs), gradient


@tf.custom_gradient  # type: ignore[untyped-decorator]
def block_lstm(
    x_TBI: tf.Tensor, h_BH: tf.Tensor, c_BH: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Gradient]:
    """Return (h_TBH, c_TBH): BlockLSTMV2 over a sequence.

    Args:
        x_TBI: The input.
        h_BH: The output before the first step.
        c_BH: The cell before the first step.
        weight: The kernel above the recurrent kernel, [I + H, G].
        bias: The bias, [G].
    """
    inputs = {"x": x_TBI, "cs_prev": c_BH, "h_prev": h_BH, "w": weight, "b": bias, **_no_peepholes(c_BH)}
    inputs["seq_len_max"] = tf.shape(x_TBI, out_type=tf.int64)[0]
    after = tf.raw_ops.BlockLSTMV2(**inputs, cell_clip=-1.0, use_peephole=False)

    def gradient(d_h_TBH: tf.Tensor, d_c_TBH: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return sequence_gradient(x_TBI, h_BH, c_BH, weight, after, d_h_TBH, d_c_TBH)

    return (after.h, after.cs), gradient


def _no_peepholes(c_BH: tf.Tensor) -> dict[str, Any]:
    # Read only where use_peephole is true, but the operations want their shape.
    zeros_H = tf.zeros([c_BH.shape[1]], c_BH.dtype)
    return {"wci": zeros_H, "wcf": zeros_H, "wco": zeros_H}


class _Factors(NamedTuple):
    """All that a step back needs and that no other step changes, for all steps.

    The gradient with respect to a gate before its nonlinearity (a_i, a_f, a_g, a_o) is the factor of the gate
    times the gradient with respect to the cell, or for o times that with respect to the output.
    """

    d_h: tf.Tensor  # [T, B, H]: dL/dh_t without the part through later steps
    d_c: tf.Tensor  # [T, B, H]: dL/dc_t, likewise
    dh_dc: tf.Tensor  # [T, B, H]: dh_t/dc_t
    dc_dc_before: tf.Tensor  # [T, B, H]: dc_t/dc_{t-1}
    dc_da: tf.Tensor  # [T, B, 3, H]: dc_t/da of i, f, g
    dh_da: tf.Tensor  # [T, B, H]: dh_t/da of o


_StateGradient = tuple[tf.Tensor, tf.Tensor]  # (d_h_BH, d_c_BH), which come back through time


def sequence_gradient(
    x_TBI: tf.Tensor,
    h_BH: tf.Tensor,
    c_BH: tf.Tensor,
    weight: tf.Tensor,
    after: Any,
    d_h_TBH: tf.Tensor,
    d_c_TBH: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients (d_x_TBI, d_h_BH, d_c_BH, d_weight, d_bias).

    Args:
        x_TBI: The input.
        h_BH: The output before the first step.
        c_BH: The cell before the first step.
        weight: The kernel above the recurrent kernel, [I + H, G].
        after: The outputs of BlockLSTMV2, each [T, B, H], by its own names: i, f, o, ci (g), cs (the cell),
            co (tanh of the cell) and h.
        d_h_TBH: The gradient with respect to each step's output.
        d_c_TBH: The gradient with respect to each step's cell.
    """
    width, hidden = x_TBI.shape[2], h_BH.shape[1]
    # Transposed once: a product by the transpose of a matrix takes up to three times as long at each step.
    back_GH = tf.transpose(weight[width:])
    h_before_TBH = tf.concat([h_BH[None], after.h[:-1]], 0)
    factors = _factors(c_BH, after, d_h_TBH, d_c_TBH)
    zeros: _StateGradient = (tf.zeros_like(h_BH), tf.zeros_like(c_BH))
    go_back = _unroll if x_TBI.shape[0] is not None and x_TBI.shape[0] <= LONGEST_UNROLLED else _loop
    d_gates_TBG, (d_h_before_BH, d_c_before_BH) = go_back(factors, back_GH, zeros)
    d_gates_NG = tf.reshape(d_gates_TBG, [-1, 4 * hidden])
    inputs = tf.reshape(tf.concat([x_TBI, h_before_TBH], 2), [-1, width + hidden])
    d_x_TBI = tf.reshape(tf.matmul(d_gates_NG, weight[:width], transpose_b=True), tf.shape(x_TBI))
    d_weight = tf.matmul(inputs, d_gates_NG, transpose_a=True)
    return d_x_TBI, d_h_before_BH, d_c_before_BH, d_weight, tf.reduce_sum(d_gates_NG, 0)


def _factors(c_BH: tf.Tensor, after: Any, d_h_TBH: tf.Tensor, d_c_TBH: tf.Tensor) -> _Factors:
    """Return what each step multiplies and adds; the arguments are those of `sequence_gradient`."""
    c_before_TBH = tf.concat([c_BH[None], after.cs[:-1]], 0)
    # With c = f c_before + i g and h = o tanh(c):
    dc_di = after.i * after.ci
    dc_dg = after.i - dc_di * after.ci
    dc_di -= dc_di * after.i
    dc_df = c_before_TBH * (after.f - tf.square(after.f))
    return _Factors(
        d_h=d_h_TBH,
        d_c=d_c_TBH,
        dh_dc=after.o - after.h * after.co,
        dc_dc_before=after.f,
        dc_da=tf.stack([dc_di, dc_df, dc_dg], 2),
        dh_da=after.h - after.h * after.o,
    )


def _step(at_t: _Factors, back_GH: tf.Tensor, d_state: _StateGradient) -> tuple[tf.Tensor, _StateGradient]:
    """Return the gradients with respect to a step's gates [B, G] and to the state before the step."""
    d_h_BH, d_c_BH = d_state
    d_h_BH += at_t.d_h
    d_c_BH += at_t.d_c + d_h_BH * at_t.dh_dc
    d_ifg = tf.reshape(at_t.dc_da * d_c_BH[:, None], [-1, 3 * d_c_BH.shape[1]])
    d_gates_BG = tf.concat([d_ifg, at_t.dh_da * d_h_BH], 1)
    return d_gates_BG, (d_gates_BG @ back_GH, d_c_BH * at_t.dc_dc_before)


def _unroll(
    factors: _Factors, back_GH: tf.Tensor, d_state: _StateGradient
) -> tuple[tf.Tensor, _StateGradient]:
    d_gates = []
    steps = zip(*(tf.unstack(factor) for factor in factors), strict=True)
    for at_t in reversed(list(steps)):
        d_gates_BG, d_state = _step(_Factors(*at_t), back_GH, d_state)
        d_gates.append(d_gates_BG)
    return tf.stack(d_gates[::-1]), d_state


def _loop(factors: _Factors, back_GH: tf.Tensor, d_state: _StateGradient) -> tuple[tf.Tensor, _StateGradient]:
    steps, batch = tf.unstack(tf.shape(factors.d_h)[:2])
    hidden = factors.d_h.shape[2]
    d_gates = tf.TensorArray(factors.d_h.dtype, size=steps, element_shape=[None, 4 * hidden])

    def body(
        t: tf.Tensor, d_gates: tf.TensorArray, d_state: _StateGradient
    ) -> tuple[tf.Tensor, tf.TensorArray, _StateGradient]:
        d_gates_BG, d_state = _step(_Factors(*(factor[t] for factor in factors)), back_GH, d_state)
        return t - 1, d_gates.write(t, d_gates_BG), d_state

    _, d_gates, d_state = tf.while_loop(lambda t, *_: t >= 0, body, (steps - 1, d_gates, d_state))
    return tf.reshape(d_gates.stack(), [steps, batch, 4 * hidden]), d_state
