"""The LSTM layer that is Keras's: cudnn on a CPU.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.backend import Arrays
from ptb_lm.tf_backend.cells import Layer
from ptb_lm.tf_backend.time_loop import LayerState


class KerasLayer(Layer):
    """keras.layers.LSTM as its users write it: on a CPU, Keras's own loop over elementary operations."""

    def __init__(self, input_size: int, hidden_size: int, *, dtype: tf.DType, unroll: str) -> None:
        super().__init__(input_size, hidden_size, dtype=dtype, unroll=unroll)
        # Where there is a GPU, Keras would try cuDNN on the CPU too.
        self.lstm = keras.layers.LSTM(
            hidden_size, return_sequences=True, return_state=True, use_cudnn=False, dtype=dtype.name
        )
        self.lstm.build((None, None, input_size))
        self.trained = [variable.value for variable in self.lstm.trainable_variables]

    def by_name(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return what belongs to the trained variables by canonical name."""
        return dict(zip(("kernel", "recurrent_kernel", "bias"), arrays, strict=True))

    def recurrent_factors(self, mask_HG: tf.Tensor) -> list[tf.Tensor | None]:
        """Return a mask of the recurrent kernel [H, 4H] as a factor of each trained variable."""
        return [None, mask_HG, None]

    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        self.lstm.set_weights([canonical[name] for name in ("kernel", "recurrent_kernel", "bias")])

    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        """Return the output [T, B, H] and the state after each sample's last step."""
        # Keras holds the state where the mask is false.
        mask_BT = None if lengths_B is None else tf.sequence_mask(lengths_B, tf.shape(x_TBI)[0])
        output_BTH, h_BH, c_BH = self.lstm(
            tf.transpose(x_TBI, [1, 0, 2]), initial_state=list(state), mask=mask_BT
        )
        return tf.transpose(output_BTH, [1, 0, 2]), (h_BH, c_BH)
