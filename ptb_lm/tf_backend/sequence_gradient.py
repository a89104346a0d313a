"""The gradient of BlockLSTMV2 by hand.

TensorFlow's operation for it (BlockLSTMGradV2) multiplies for the weights' gradient at each step. What does
not depend on the step after is done here for all steps in one product: the gradients of the weights and of
the input. The loop back over time keeps one small product and the pointwise work.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, G = 4H: gates in the order i, f, g, o.
"""

from typing import NamedTuple

import tensorflow as tf

LONGEST_UNROLLED = 64  # steps; a longer sequence, or one of unknown length, is a loop in the graph


class Activations(NamedTuple):
    """What BlockLSTMV2 returns, each [T, B, H], by its own names."""

    i: tf.Tensor
    cs: tf.Tensor  # the cell
    f: tf.Tensor
    o: tf.Tensor
    ci: tf.Tensor  # g
    co: tf.Tensor  # tanh of the cell
    h: tf.Tensor


class _Factors(NamedTuple):
    """All that a step back needs and that no other step changes, for all steps.

    The gradient of a gate before its nonlinearity is its factor times the cell's, or for o the output's.
    """

    d_h: tf.Tensor  # [T, B, H], the gradient that a step's output has from above
    d_c: tf.Tensor  # [T, B, H], and its cell
    through: tf.Tensor  # [T, B, H], of the cell by the output
    forgotten: tf.Tensor  # [T, B, H], of the cell before by the cell
    by_c: tf.Tensor  # [T, B, 3, H], of i, f, g by the cell
    by_h: tf.Tensor  # [T, B, H], of o by the output


_Carried = tuple[tf.Tensor, tf.Tensor]  # the gradients (d_h_BH, d_c_BH) that come back through time


def sequence_gradient(
    x_TBI: tf.Tensor,
    h_BH: tf.Tensor,
    c_BH: tf.Tensor,
    weight: tf.Tensor,
    after: Activations,
    d_h_TBH: tf.Tensor,
    d_c_TBH: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients (d_x_TBI, d_h_BH, d_c_BH, d_weight, d_bias).

    Args:
        x_TBI: The input.
        h_BH: The output before the first step.
        c_BH: The cell before the first step.
        weight: [I + H, G].
        after: What the operation returned.
        d_h_TBH: The gradient by each step's output.
        d_c_TBH: The gradient by each step's cell.
    """
    width, hidden = x_TBI.shape[2], h_BH.shape[1]
    # Transposed once: a product by the transpose of a matrix takes up to three times as long at each step.
    back_GH = tf.transpose(weight[width:])
    h_before_TBH = tf.concat([h_BH[None], after.h[:-1]], 0)
    factors = _factors(c_BH, after, d_h_TBH, d_c_TBH)
    zeros: _Carried = (tf.zeros_like(h_BH), tf.zeros_like(c_BH))
    if x_TBI.shape[0] is not None and x_TBI.shape[0] <= LONGEST_UNROLLED:
        d_gates_TBG, (d_h_before_BH, d_c_before_BH) = _unrolled(factors, back_GH, zeros)
    else:
        d_gates_TBG, (d_h_before_BH, d_c_before_BH) = _loop(factors, back_GH, zeros)
    d_gates_NG = tf.reshape(d_gates_TBG, [-1, 4 * hidden])
    inputs = tf.reshape(tf.concat([x_TBI, h_before_TBH], 2), [-1, width + hidden])
    d_x_TBI = tf.reshape(tf.matmul(d_gates_NG, weight[:width], transpose_b=True), tf.shape(x_TBI))
    d_weight = tf.matmul(inputs, d_gates_NG, transpose_a=True)
    return d_x_TBI, d_h_before_BH, d_c_before_BH, d_weight, tf.reduce_sum(d_gates_NG, 0)


def _factors(c_BH: tf.Tensor, after: Activations, d_h_TBH: tf.Tensor, d_c_TBH: tf.Tensor) -> _Factors:
    """Return what each step multiplies and adds; arguments as of `sequence_gradient`."""
    c_before_TBH = tf.concat([c_BH[None], after.cs[:-1]], 0)
    # With c = f c_before + i g and h = o tanh(c):
    by_i = after.i * after.ci
    by_g = after.i - by_i * after.ci
    by_i -= by_i * after.i
    by_f = c_before_TBH * (after.f - tf.square(after.f))
    return _Factors(
        d_h=d_h_TBH,
        d_c=d_c_TBH,
        through=after.o - after.h * after.co,
        forgotten=after.f,
        by_c=tf.stack([by_i, by_f, by_g], 2),
        by_h=after.h - after.h * after.o,
    )


def _step(at_t: _Factors, back_GH: tf.Tensor, carried: _Carried) -> tuple[tf.Tensor, _Carried]:
    """Return the gradient of a step's gates [B, G], and what it carries to the step before."""
    d_h_BH, d_c_BH = carried
    d_h_BH += at_t.d_h
    d_c_BH += at_t.d_c + d_h_BH * at_t.through
    by_c = tf.reshape(at_t.by_c * d_c_BH[:, None], [-1, 3 * d_c_BH.shape[1]])
    d_gates_BG = tf.concat([by_c, at_t.by_h * d_h_BH], 1)
    return d_gates_BG, (d_gates_BG @ back_GH, d_c_BH * at_t.forgotten)


def _unrolled(factors: _Factors, back_GH: tf.Tensor, carried: _Carried) -> tuple[tf.Tensor, _Carried]:
    d_gates = []
    steps = zip(*(tf.unstack(factor) for factor in factors), strict=True)
    for at_t in reversed(list(steps)):
        d_gates_BG, carried = _step(_Factors(*at_t), back_GH, carried)
        d_gates.append(d_gates_BG)
    return tf.stack(d_gates[::-1]), carried


def _loop(factors: _Factors, back_GH: tf.Tensor, carried: _Carried) -> tuple[tf.Tensor, _Carried]:
    steps, batch = tf.unstack(tf.shape(factors.d_h)[:2])
    hidden = factors.d_h.shape[2]
    d_gates = tf.TensorArray(factors.d_h.dtype, size=steps, element_shape=[None, 4 * hidden])

    def body(
        t: tf.Tensor, d_gates: tf.TensorArray, carried: _Carried
    ) -> tuple[tf.Tensor, tf.TensorArray, _Carried]:
        d_gates_BG, carried = _step(_Factors(*(factor[t] for factor in factors)), back_GH, carried)
        return t - 1, d_gates.write(t, d_gates_BG), carried

    _, d_gates, carried = tf.while_loop(lambda t, *_: t >= 0, body, (steps - 1, d_gates, carried))
    return tf.reshape(d_gates.stack(), [steps, batch, 4 * hidden]), carried
