"""The LSTM with layer normalisation (ptb_lm.model.cells.layer_norm_lstm) in TensorFlow.

Shapes: B = batch, I = input width, H = hidden units.
"""

from collections.abc import Mapping

import tensorflow as tf
from typing_extensions import override

from ptb_lm.model.cells.layer_norm_lstm import EPSILON
from ptb_lm.tf_backend.cells import LayerState, SteppedLayer


class BasicLayer(SteppedLayer):
    """Elementary operations."""

    @override
    def step(self, weights: Mapping[str, tf.Tensor], x_BI: tf.Tensor, state: LayerState) -> LayerState:
        h_BH, c_BH = state
        gates = _normalise(x_BI @ weights["kernel"]) * weights["kernel_gain"]
        gates += _normalise(h_BH @ weights["recurrent_kernel"]) * weights["recurrent_gain"]
        i, f, g, o = tf.split(gates + weights["bias"], 4, axis=1)
        c_BH = tf.sigmoid(f) * c_BH + tf.sigmoid(i) * tf.tanh(g)
        scaled_c_BH = _normalise(c_BH) * weights["cell_gain"] + weights["cell_bias"]
        return tf.sigmoid(o) * tf.tanh(scaled_c_BH), c_BH


def _normalise(x: tf.Tensor) -> tf.Tensor:
    """Return each row with mean 0 and variance 1."""
    deviation = x - tf.reduce_mean(x, 1, keepdims=True)
    return deviation * tf.math.rsqrt(tf.reduce_mean(deviation**2, 1, keepdims=True) + EPSILON)
