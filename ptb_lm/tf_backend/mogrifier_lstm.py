"""The Mogrifier (ptb_lm.model.cells.mogrifier_lstm) in TensorFlow.

Shapes: B = batch, I = input width, H = hidden units.
"""

from collections.abc import Mapping
from typing import cast

import tensorflow as tf
from typing_extensions import override

from ptb_lm.model.cells.mogrifier_lstm import BIAS, GATES, RIGHT, MogrifierLSTM
from ptb_lm.tf_backend.cells import LayerState, SteppedLayer


class BasicLayer(SteppedLayer):
    """Elementary operations."""

    @override
    def step(self, weights: Mapping[str, tf.Tensor], x_BI: tf.Tensor, state: LayerState) -> LayerState:
        h_BH, c_BH = state
        pair = [x_BI, h_BH]
        for number in range(cast(MogrifierLSTM, self.cell).rounds):
            index, side = divmod(number, 2)
            product = pair[1 - side] @ weights[GATES[side]][index]
            if GATES[side] + RIGHT in weights:
                product @= weights[GATES[side] + RIGHT][index]
            pair[side] *= 2 * tf.sigmoid(product + weights[GATES[side] + BIAS][index])
        gates = pair[0] @ weights["kernel"] + pair[1] @ weights["recurrent_kernel"] + weights["bias"]
        i, f, g, o = tf.split(gates, 4, axis=1)
        c_BH = tf.sigmoid(f) * c_BH + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c_BH), c_BH
