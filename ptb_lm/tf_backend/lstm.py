"""An LSTM layer in four ways: basic, block, block_fused, cudnn.

All of these compute the same function of the same canonical parameters (ptb_lm.model.cells.lstm).

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.common.host import set_variables
from ptb_lm.model.backend import Arrays
from ptb_lm.tf_backend.block_ops import block_cell, block_lstm
from ptb_lm.tf_backend.cells import Layer, LayerState, SteppedLayer


class LSTMLayer(Layer):
    """An LSTM layer whose parameters lie as TensorFlow's operations want them.

    That is a `weight`, the kernel above the recurrent kernel in one matrix, which multiplies [x, h], and a
    `bias`.
    """

    GATES = (0, 1, 2, 3)  # the canonical gates in the operation's order; its own inverse

    @override
    def new_weights(self, dtype: tf.DType) -> dict[str, tf.Variable]:
        shapes = {
            "weight": [self.input_size + self.hidden_size, 4 * self.hidden_size],
            "bias": [4 * self.hidden_size],
        }
        return {name: tf.Variable(tf.zeros(shape, dtype)) for name, shape in shapes.items()}

    @override
    def to_canonical(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        weight, bias = (self._reorder(array) for array in arrays)
        return {
            "kernel": weight[: self.input_size],
            "recurrent_kernel": weight[self.input_size :],
            "bias": bias,
        }

    @override
    def recurrent_factors(self, mask_HG: tf.Tensor) -> list[tf.Tensor | None]:
        gates = tf.split(mask_HG, 4, axis=1)
        mask = tf.concat([gates[gate] for gate in self.GATES], 1)
        return [tf.concat([tf.ones([self.input_size, 4 * self.hidden_size], mask.dtype), mask], 0), None]

    @override
    def from_canonical(self, canonical: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        weight = np.concatenate([canonical["kernel"], canonical["recurrent_kernel"]])
        return [self._reorder(weight), self._reorder(canonical["bias"])]

    def _reorder(self, array: NDArray[Any]) -> NDArray[Any]:
        gates = np.split(array, 4, axis=-1)
        return np.concatenate([gates[gate] for gate in self.GATES], axis=-1)


class BasicLayer(LSTMLayer, SteppedLayer):
    """Gates written out of elementary operations."""

    @override
    def step(self, weights: Mapping[str, tf.Tensor], x_BI: tf.Tensor, state: LayerState) -> LayerState:
        h_BH, c_BH = state
        gates = tf.concat([x_BI, h_BH], 1) @ weights["weight"] + weights["bias"]
        i, f, g, o = tf.split(gates, 4, axis=1)
        c_BH = tf.sigmoid(f) * c_BH + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c_BH), c_BH


class BlockLayer(LSTMLayer, SteppedLayer):
    """LSTMBlockCell: one fused operation a time step."""

    GATES = (0, 2, 1, 3)

    @override
    def step(self, weights: Mapping[str, tf.Tensor], x_BI: tf.Tensor, state: LayerState) -> LayerState:
        h_BH, c_BH = state
        return block_cell(x_BI, h_BH, c_BH, weights["weight"], weights["bias"])


class BlockFusedLayer(LSTMLayer):
    """BlockLSTMV2: one operation for the sequence."""

    @override
    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        h_TBH, c_TBH = block_lstm(x_TBI, *state, *map(tf.convert_to_tensor, self.variables))
        if lengths_B is None:
            return h_TBH, (h_TBH[-1], c_TBH[-1])
        last_B2 = tf.stack([lengths_B - 1, tf.range(tf.size(lengths_B))], 1)
        return h_TBH, (tf.gather_nd(h_TBH, last_B2), tf.gather_nd(c_TBH, last_B2))


class KerasLayer(Layer):
    """keras.layers.LSTM as its users write it: on a CPU, Keras's own loop over elementary operations.

    Raises:
        UserError: Keras was imported before, and computes with another library.
    """

    @override
    def new_weights(self, dtype: tf.DType) -> dict[str, tf.Variable]:
        keras = import_keras()
        # Where there is a GPU, Keras would try cuDNN on the CPU too.
        self.lstm = keras.layers.LSTM(
            self.hidden_size, return_sequences=True, return_state=True, use_cudnn=False, dtype=dtype.name
        )
        self.lstm.build((None, None, self.input_size))
        variables = (variable.value for variable in self.lstm.trainable_variables)
        return dict(zip(("kernel", "recurrent_kernel", "bias"), variables, strict=True))

    @override
    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        # Keras holds the state where the mask is false.
        mask_BT = None if lengths_B is None else tf.sequence_mask(lengths_B, tf.shape(x_TBI)[0])
        output_BTH, h_BH, c_BH = self.lstm(
            tf.transpose(x_TBI, [1, 0, 2]), initial_state=list(state), mask=mask_BT
        )
        return tf.transpose(output_BTH, [1, 0, 2]), (h_BH, c_BH)


class CudnnLayer(LSTMLayer):
    """CudnnRNNV3: cuDNN's LSTM on a GPU. On a CPU it is KerasLayer."""

    cpu_type = KerasLayer

    @override
    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        h_BH, c_BH = state
        steps, batch = tf.unstack(tf.shape(x_TBI)[:2])
        weight, bias = self.variables
        kernel, recurrent_kernel = tf.split(weight, [self.input_size, self.hidden_size])
        # cuDNN keeps each gate's matrix transposed, and two biases where the canonical model has one. The
        # second stays zero: trained as well, the pair would move twice as fast under SGD as the one.
        parts = [tf.transpose(kernel), tf.transpose(recurrent_kernel), bias, tf.zeros_like(bias)]
        after = tf.raw_ops.CudnnRNNV3(
            input=x_TBI,
            input_h=h_BH[None],
            input_c=c_BH[None],
            params=tf.concat([tf.reshape(part, [-1]) for part in parts], 0),
            sequence_lengths=tf.fill([batch], steps) if lengths_B is None else lengths_B,
            rnn_mode="lstm",
            time_major=True,
        )
        return after.output, (after.output_h[0], after.output_c[0])


def import_keras() -> Any:
    """Return Keras on TensorFlow, whatever it computes with elsewhere: it asks once.

    Raises:
        UserError: Keras was imported before, and computes with another library.
    """
    with set_variables({"KERAS_BACKEND": "tensorflow"}):
        import keras  # here, because it takes seconds and no other layer needs it

    if (found := keras.config.backend()) != "tensorflow":
        raise UserError(
            f"Keras on TensorFlow is needed, and this process has imported Keras on {found}; start another "
            "one, or choose another model"
        )
    return keras
