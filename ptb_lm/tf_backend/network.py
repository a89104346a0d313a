"""The whole language model: its variables, and its two steps as functions to be traced, compiled or run.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, H = hidden units, V = vocabulary.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.backend import Arrays
from ptb_lm.model.config import Config
from ptb_lm.tf_backend.cells import Layer
from ptb_lm.tf_backend.dropout import WindowDropout, no_dropout, one_after_another
from ptb_lm.tf_backend.loss import SoftmaxLayer, TiedSoftmaxLayer, sum_by_word
from ptb_lm.tf_backend.stack import RecurrentStack
from ptb_lm.tf_backend.time_loop import LayerState

State = Sequence[LayerState]
Loss: TypeAlias = tf.Tensor  # [2] in float64: negative log likelihood, gradient norm


class Network:
    """Embedding, LSTM layers with dropout, softmax; trained by SGD with clipping.

    Attributes:
        trained: The variables to train.

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
        self.stack = RecurrentStack(layer, width, hidden_sizes, unroll=unroll, dtype=dtype)
        self.tied = config.tie_weights
        self.softmax: SoftmaxLayer | TiedSoftmaxLayer
        if self.tied:
            self.softmax = TiedSoftmaxLayer(self.embedding_VE)
            self.trained = [*self.softmax.trained, *self.stack.trained]
        else:
            self.softmax = SoftmaxLayer(hidden_sizes[-1], vocabulary_size, dtype=dtype)
            self.trained = [self.embedding_VE, *self.softmax.trained, *self.stack.trained]
        self.dropout = WindowDropout(config, vocabulary_size, dtype=dtype, seed=seed)

    def train(
        self,
        x_BT: tf.Tensor,
        y_BT: tf.Tensor,
        state: State,
        learning_rate: tf.Tensor,
        exchange: Callable[..., Any] = lambda *computed: computed,
        agreed: Callable[[tf.Tensor], tf.Tensor] = lambda norm: norm,
    ) -> tuple[State, Loss]:
        """Do one step of SGD; the shape of the window is known as it is traced.

        Args:
            x_BT: Words.
            y_BT: The words that follow.
            state: Before the window.
            learning_rate: [].
            exchange: Makes of (losses, words, gradients by their embeddings, other gradients) those of all
                replicas, the gradients as of the mean of their losses.
            agreed: Makes of the gradient's norm that by which all replicas clip.
        """
        batch, steps = x_BT.shape
        ids_N, targets_N = _time_major(x_BT), _time_major(y_BT)
        masks = self.dropout.draw(batch, steps)
        dropout = one_after_another(masks.units)
        factors = self.stack.recurrent_factors(masks.weights)
        embedded_NE = tf.gather(self.embedding_VE, ids_N)
        with _multiplied(self.stack.trained, factors):
            with tf.GradientTape() as tape:
                tape.watch(embedded_NE)
                x_NE = embedded_NE
                if "embedding" in masks.weights:
                    x_NE *= tf.gather(masks.weights["embedding"], ids_N)
                x_TBE = tf.reshape(x_NE, [steps, batch, -1])
                output_TBH, state = self.stack(x_TBE, state, dropout=dropout)
                output_NH = tf.reshape(dropout(output_TBH), [steps * batch, -1])
            nll_N, d_output_NH, d_softmax = self.softmax.loss_and_gradients(output_NH, targets_N, 1 / batch)
            by = [embedded_NE, *self.stack.trained]
            d_embedded_NE, *gradients = tape.gradient(output_NH, by, d_output_NH)
        gradients = [
            gradient if factor is None else gradient * factor
            for gradient, factor in zip(gradients, factors, strict=True)
        ]
        nll_N, ids_N, d_embedded_NE, gradients = exchange(
            nll_N, ids_N, d_embedded_NE, [*d_softmax, *gradients]
        )
        norm = self._update(ids_N, d_embedded_NE, gradients, learning_rate, agreed)
        return state, _loss(nll_N, norm)

    def evaluate(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, Loss]:
        """Score a window of any shape, without dropout."""
        state, nll_N = self._losses(x_BT, y_BT, state)
        return state, _loss(nll_N, tf.zeros([], self.dtype))

    def log_probabilities(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
        """Return the state after a window and the log-probability of each target [B, T], without dropout."""
        state, nll_N = self._losses(x_BT, y_BT, state)
        return state, -tf.transpose(tf.reshape(nll_N, tf.shape(tf.transpose(y_BT))))

    def next_words(self, x_BT: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
        """Return the state after some words and the log-probability of every word to come next [B, V]."""
        output_TBH, state = self._outputs(x_BT, state)
        return state, self.softmax.log_probabilities(output_TBH[-1])

    def canonical(self) -> Arrays:
        """Return the parameters by canonical name."""
        return {
            "embedding": self.embedding_VE.numpy(),
            **self.stack.canonical(),
            **self.softmax.canonical(),
        }

    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        arrays = {name: array.astype(self.dtype.as_numpy_dtype) for name, array in canonical.items()}
        self.embedding_VE.assign(arrays["embedding"])
        self.stack.load(arrays)
        self.softmax.load(arrays)

    def _losses(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
        """Return the state after a window and the negative log likelihood of each target [N]."""
        output_TBH, state = self._outputs(x_BT, state)
        output_NH = tf.reshape(output_TBH, [-1, output_TBH.shape[2]])
        return state, self.softmax.losses(output_NH, _time_major(y_BT))

    def _outputs(self, x_BT: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """Return the top layer's output [T, B, H] without dropout, and the state after."""
        x_TBE = tf.gather(self.embedding_VE, tf.transpose(x_BT))
        return self.stack(x_TBE, state, dropout=no_dropout)

    def _update(
        self,
        ids_N: tf.Tensor,
        d_embedded_NE: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        agreed: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        Args:
            ids_N: The window's words.
            d_embedded_NE: The gradient by each one's embedding, as the bottom layer's input.
            gradients: By the softmax's and the stack's variables.
            learning_rate: [].
            agreed: See `train`.
        """
        if self.tied:
            d_softmax_VE, *others = gradients
            gradients = [tf.tensor_scatter_nd_add(d_softmax_VE, ids_N[:, None], d_embedded_NE), *others]
            norm = agreed(tf.linalg.global_norm(gradients))
            _descend(self.trained, gradients, self._scale(learning_rate, norm))
            return norm
        # The embedding's gradient has rows only for the words of the window; the other rows are not touched.
        d_embedding_NE = sum_by_word(d_embedded_NE, ids_N, self.embedding_VE.shape[0])
        norm = agreed(tf.linalg.global_norm([d_embedding_NE, *gradients]))
        scale = self._scale(learning_rate, norm)
        self.embedding_VE.scatter_sub(tf.IndexedSlices(scale * d_embedding_NE, ids_N))
        _descend(self.trained[1:], gradients, scale)
        return norm

    def _scale(self, learning_rate: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
        # The quotient first, which is 1 at most: the product may be beyond a float.
        return learning_rate * (self.max_grad_norm / tf.maximum(norm, self.max_grad_norm))


@contextlib.contextmanager
def _multiplied(variables: Sequence[tf.Variable], factors: Sequence[tf.Tensor | None]) -> Iterator[None]:
    """Multiply variables by factors while this is entered; None leaves one alone.

    In place, so that every layer reads its weights as it always does, cuDNN's and Keras's too.
    """
    changed = [pair for pair in zip(variables, factors, strict=True) if pair[1] is not None]
    kept = [tf.identity(variable) for variable, _ in changed]
    for (variable, factor), value in zip(changed, kept, strict=True):
        variable.assign(value * factor)
    yield
    for (variable, _), value in zip(changed, kept, strict=True):
        variable.assign(value)


def _time_major(ids_BT: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.transpose(ids_BT), [-1])


def _loss(nll_N: tf.Tensor, norm: tf.Tensor) -> Loss:
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    loss: Loss = tf.stack([tf.reduce_sum(tf.cast(nll_N, tf.float64)), tf.cast(norm, tf.float64)])
    return loss


def _descend(variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor], scale: tf.Tensor) -> None:
    """Subtract scale * gradient from each variable."""
    for variable, gradient in zip(variables, gradients, strict=True):
        # In one pass, where assign_sub(scale * gradient) takes two.
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=scale, delta=gradient)
