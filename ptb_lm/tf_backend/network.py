"""The whole language model: its variables, and its two steps as functions to be traced, compiled or run.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, H = hidden units, V = vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.backend import Arrays
from ptb_lm.config import Config
from ptb_lm.tf_backend.cells import Layer
from ptb_lm.tf_backend.loss import SoftmaxLayer, sum_by_word
from ptb_lm.tf_backend.model import InvertedDropout, LSTMStack, no_dropout
from ptb_lm.tf_backend.time_loop import LayerState

State = Sequence[LayerState]
Loss: TypeAlias = tf.Tensor  # [2] in float64: negative log likelihood, gradient norm


class Network:
    """Embedding, LSTM layers with dropout, softmax; trained by SGD with clipping.

    Args:
        config: The hyper-parameters.
        layer: The implementation of a layer.
        vocabulary_size: V.
        unroll: See time_loop.
        dtype: In which precision.
        seed: Of dropout.
    """

    def __init__(
        self,
        config: Config,
        layer: type[Layer],
        *,
        vocabulary_size: int,
        unroll: str,
        dtype: tf.DType,
        seed: int,
    ) -> None:
        width, hidden_sizes = config.embedding_width, config.layer_sizes
        self.max_grad_norm = config.max_grad_norm
        self.dtype = dtype
        self.embedding_VE = tf.Variable(tf.zeros([vocabulary_size, width], dtype))
        self.stack = LSTMStack(layer, width, hidden_sizes, unroll=unroll, dtype=dtype)
        self.softmax = SoftmaxLayer(hidden_sizes[-1], vocabulary_size, dtype=dtype)
        self.dropout = InvertedDropout(config.keep_prob, seed=seed)

    def train(
        self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, learning_rate: tf.Tensor
    ) -> tuple[State, Loss]:
        """Do one step of SGD; the shape of the window is known as it is traced."""
        batch, steps = x_BT.shape
        ids_N, targets_N = _time_major(x_BT), _time_major(y_BT)
        x_TBE = tf.reshape(tf.gather(self.embedding_VE, ids_N), [steps, batch, -1])
        with tf.GradientTape() as tape:
            tape.watch(x_TBE)
            output_TBH, state = self.stack(x_TBE, state, dropout=self.dropout)
            output_TBH = self.dropout(output_TBH)
        output_NH = tf.reshape(output_TBH, [steps * batch, -1])
        nll_N, d_output_NH, d_softmax = self.softmax.loss_and_gradients(output_NH, targets_N, 1 / batch)
        d_x_TBE, *gradients = tape.gradient(
            output_TBH, [x_TBE, *self.stack.trained], tf.reshape(d_output_NH, [steps, batch, -1])
        )
        d_x_NE = tf.reshape(d_x_TBE, [steps * batch, -1])
        norm = self._update(ids_N, d_x_NE, [d_softmax, *gradients], learning_rate)
        return state, _loss(nll_N, norm)

    def evaluate(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, Loss]:
        """Score a window of any shape, without dropout."""
        x_TBE = tf.gather(self.embedding_VE, tf.transpose(x_BT))
        output_TBH, state = self.stack(x_TBE, state, dropout=no_dropout)
        output_NH = tf.reshape(output_TBH, [-1, output_TBH.shape[2]])
        nll_N = self.softmax.losses(output_NH, _time_major(y_BT))
        return state, _loss(nll_N, tf.zeros([], self.dtype))

    def canonical(self) -> Arrays:
        """Return the parameters by canonical name."""
        weight = self.softmax.weight.numpy()
        return {
            "embedding": self.embedding_VE.numpy(),
            **self.stack.canonical(),
            "softmax.kernel": weight[:-1],
            "softmax.bias": weight[-1],
        }

    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        arrays = {name: array.astype(self.dtype.as_numpy_dtype) for name, array in canonical.items()}
        self.embedding_VE.assign(arrays["embedding"])
        self.stack.load(arrays)
        self.softmax.weight.assign(np.vstack([arrays["softmax.kernel"], arrays["softmax.bias"]]))

    def _update(
        self, ids_N: tf.Tensor, d_x_NE: tf.Tensor, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor
    ) -> tf.Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        The embedding's gradient has rows only for the words of the window; no others are touched.
        """
        d_embedding_NE = sum_by_word(d_x_NE, ids_N, self.embedding_VE.shape[0])
        norm = tf.linalg.global_norm([d_embedding_NE, *gradients])
        scale = learning_rate * self.max_grad_norm / tf.maximum(norm, self.max_grad_norm)
        self.embedding_VE.scatter_sub(tf.IndexedSlices(scale * d_embedding_NE, ids_N))
        for variable, gradient in zip([self.softmax.weight, *self.stack.trained], gradients, strict=True):
            # In one pass, where assign_sub(scale * gradient) takes two.
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=scale, delta=gradient)
        return norm


def _time_major(ids_BT: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.transpose(ids_BT), [-1])


def _loss(nll_N: tf.Tensor, norm: tf.Tensor) -> Loss:
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    loss: Loss = tf.stack([tf.reduce_sum(tf.cast(nll_N, tf.float64)), tf.cast(norm, tf.float64)])
    return loss
