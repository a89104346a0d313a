"""The whole language model: its variables, and what it computes where nothing is trained.

The functions are traced, compiled or run as they are; ptb_lm.tf_backend.backend decides.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, H = hidden units, V = vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.config import Config
from ptb_lm.tf_backend.cells import Layer, LayerState, assign
from ptb_lm.tf_backend.loss import Loss, SoftmaxCrossEntropy, SoftmaxLayer, TiedSoftmaxLayer, pack_loss
from ptb_lm.tf_backend.stack import RecurrentStack

State = Sequence[LayerState]


class Network:
    """Embedding, recurrent layers, softmax.

    Attributes:
        variables: The variables to train.
        shapes: The shape of each parameter by canonical name.

    Args:
        config: The hyper-parameters.
        layer: The implementation of a layer.
        vocabulary_size: V.
        unroll: The form of a loop over time; see ptb_lm.tf_backend.cells.run_over_time.
        dtype: The precision.
    """

    def __init__(
        self, config: Config, layer: type[Layer], *, vocabulary_size: int, unroll: str, dtype: tf.DType
    ) -> None:
        width, hidden_sizes = config.embedding_width, config.hidden_sizes
        self.dtype = dtype
        self.shapes = parameters.shapes(config, vocabulary_size)
        self.embedding_VE = tf.Variable(tf.zeros([vocabulary_size, width], dtype))
        self.stack = RecurrentStack(
            layer, width, hidden_sizes, cell=config.cell_declaration, unroll=unroll, dtype=dtype
        )
        self.softmax: SoftmaxLayer | TiedSoftmaxLayer = (
            TiedSoftmaxLayer(self.embedding_VE)
            if config.tie_weights
            else SoftmaxLayer(hidden_sizes[-1], vocabulary_size, dtype=dtype)
        )
        self.variables = [self.embedding_VE, self.softmax.variable, *self.stack.variables]

    def evaluate(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, Loss]:
        """Score a window of any shape, without dropout."""
        state, nll_N = self._losses(x_BT, y_BT, state)
        return state, pack_loss(nll_N, tf.zeros([], self.dtype))

    def log_probabilities(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
        """Return the state after a window and the log-probability of each target [B, T], without dropout."""
        state, nll_N = self._losses(x_BT, y_BT, state)
        return state, -tf.transpose(tf.reshape(nll_N, tf.shape(tf.transpose(y_BT))))

    def next_word_log_probabilities(self, x_BT: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
        """Return the state after some words and the log-probability of every possible next word, [B, V]."""
        output_TBH, state = self._outputs(x_BT, state)
        return state, tf.nn.log_softmax(self.softmax.logits(output_TBH[-1]))

    def canonical(self) -> Arrays:
        """Return the parameters by canonical name."""
        return self.to_canonical([variable.numpy() for variable in self.variables])

    def to_canonical(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return by canonical name arrays that are given in the order and layout of `variables`.

        Args:
            arrays: The variables' values, or what an optimiser keeps of each.
        """
        embedding_VE, softmax, *stack = arrays
        return {
            "embedding": embedding_VE,
            **self.stack.to_canonical(stack),
            **self.softmax.to_canonical(softmax),
        }

    def from_canonical(self, canonical: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return arrays by canonical name in the order and layout of `variables`."""
        return [
            canonical["embedding"],
            self.softmax.from_canonical(canonical),
            *self.stack.from_canonical(canonical),
        ]

    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        assign(self.variables, self.from_canonical(canonical))

    def _losses(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
        """Return the state after a window and the negative log likelihood of each target [N]."""
        output_TBH, state = self._outputs(x_BT, state)
        output_NH = tf.reshape(output_TBH, [-1, output_TBH.shape[2]])
        return state, SoftmaxCrossEntropy(self.softmax.logits(output_NH), to_time_major(y_BT)).nll_N

    def _outputs(self, x_BT: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """Return the top layer's output [T, B, H] without dropout, and the state after."""
        x_TBE = tf.gather(self.embedding_VE, tf.transpose(x_BT))
        return self.stack(x_TBE, state)


def to_time_major(ids_BT: tf.Tensor) -> tf.Tensor:
    """Return a window's words in time-major order, [N]."""
    return tf.reshape(tf.transpose(ids_BT), [-1])
