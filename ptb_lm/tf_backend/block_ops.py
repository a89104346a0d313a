"""TensorFlow's Block operations, each with its gradient.

LSTMBlockCell has no registered gradient in TensorFlow 2. BlockLSTMV2 has one, but of the wrong operation:
BlockLSTMGrad, which takes the weights of cell and forget gate in the order of BlockLSTM, the other way round
than BlockLSTMV2 does (TensorFlow 2.21). Here LSTMBlockCell goes with the gradient operation written for it,
and BlockLSTMV2 with sequence_gradient, which takes a fraction of its operation's time.

Both add 1 to the forget gate or clip the cell at 3 unless told otherwise; here neither does.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ptb_lm.tf_backend.sequence_gradient import Activations, sequence_gradient

Gradient = Callable[..., tuple[tf.Tensor, ...]]


def block_cell(
    x_BI: tf.Tensor, h_BH: tf.Tensor, c_BH: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (h_BH, c_BH) after one step of LSTMBlockCell.

    Args:
        x_BI: The step's input.
        h_BH: The output before.
        c_BH: The cell before.
        weight: [I + H, 4H], gates in the order i, g, f, o.
        bias: [4H], likewise.
    """
    result: tuple[tf.Tensor, tf.Tensor] = tf.custom_gradient(_block_cell)(x_BI, h_BH, c_BH, weight, bias)
    return result


def block_lstm(
    x_TBI: tf.Tensor, h_BH: tf.Tensor, c_BH: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (h_TBH, c_TBH): BlockLSTMV2 over a sequence.

    Args:
        x_TBI: The input.
        h_BH: The output before the first step.
        c_BH: The cell before the first step.
        weight: [I + H, 4H], gates in the order i, f, g, o.
        bias: [4H], likewise.
    """
    result: tuple[tf.Tensor, tf.Tensor] = tf.custom_gradient(_block_lstm)(x_TBI, h_BH, c_BH, weight, bias)
    return result


def _block_cell(
    x_BI: tf.Tensor, h_BH: tf.Tensor, c_BH: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Gradient]:
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


def _block_lstm(
    x_TBI: tf.Tensor, h_BH: tf.Tensor, c_BH: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Gradient]:
    inputs = {"x": x_TBI, "cs_prev": c_BH, "h_prev": h_BH, "w": weight, "b": bias, **_no_peepholes(c_BH)}
    inputs["seq_len_max"] = tf.shape(x_TBI, out_type=tf.int64)[0]
    after = tf.raw_ops.BlockLSTMV2(**inputs, cell_clip=-1.0, use_peephole=False)

    def gradient(d_h_TBH: tf.Tensor, d_c_TBH: tf.Tensor) -> tuple[tf.Tensor, ...]:
        activations = Activations(**after._asdict())
        return sequence_gradient(x_TBI, h_BH, c_BH, weight, activations, d_h_TBH, d_c_TBH)

    return (after.h, after.cs), gradient


def _no_peepholes(c_BH: tf.Tensor) -> dict[str, Any]:
    # Read only where use_peephole is true, but the operations want their shape.
    zeros_H = tf.zeros([c_BH.shape[1]], c_BH.dtype)
    return {"wci": zeros_H, "wcf": zeros_H, "wco": zeros_H}
