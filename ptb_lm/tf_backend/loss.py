"""The ends of the network by hand: the softmax with its cross-entropy, and the embedding's gradient.

Between them lies the gradient tape. The two ends touch every word of the vocabulary, so that passes over it
that the tape would add (a scale on the logits' gradient, a sum for the bias, dense embedding gradients) cost
as much as the LSTM itself on a CPU.

The logits are the largest tensors of a step, and bound by memory: there are as few passes over them as
possible. TensorFlow's own operation (SparseSoftmaxCrossEntropyWithLogits) takes twice as long on a CPU.

Shapes: N = tokens of a window, H = hidden units, V = vocabulary, E = embedding width.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.backend import Arrays

Loss: TypeAlias = tf.Tensor  # [2] in float64: negative log likelihood, gradient norm


class SoftmaxCrossEntropy:
    """The loss of some logits, and on request its gradient.

    The exponentials are not divided by their sums: that would be a pass over [N, V]. Their users can
    divide something narrow instead.

    Attributes:
        nll_N: The negative log likelihood of each target, in nats; finite for the least likely ones too.

    Args:
        logits_NV: The logits. In a graph, the exponentials take their place if nobody else reads them.
        targets_N: Target ids.
    """

    def __init__(self, logits_NV: tf.Tensor, targets_N: tf.Tensor) -> None:
        shifted_NV = logits_NV - tf.reduce_max(logits_NV, 1, keepdims=True)
        self._places_N2 = tf.stack([tf.range(tf.size(targets_N), dtype=targets_N.dtype), targets_N], 1)
        target_logits_N = tf.gather_nd(shifted_NV, self._places_N2)
        # Read this before the exponentials overwrite it; otherwise they would need new memory.
        with tf.control_dependencies([target_logits_N]):
            self._exp_NV = tf.exp(shifted_NV)
        self._sum_N = tf.reduce_sum(self._exp_NV, 1)
        # The target's own logit, not the logarithm of its probability, which may have become zero.
        self.nll_N = tf.math.log(self._sum_N) - target_logits_N

    def gradient(self, scale: float) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (d_NV, factor_N1), whose product is the gradient of scale * sum(nll_N).

        The gradient is with respect to the logits.
        """
        # This copies. XLA does not know the operation that does not copy (ScatterNdNonAliasingAdd).
        d_NV = tf.tensor_scatter_nd_sub(self._exp_NV, self._places_N2, self._sum_N)
        return d_NV, (scale / self._sum_N)[:, None]


class SoftmaxLayer:
    """The projection onto the vocabulary with softmax and cross-entropy.

    The bias is the last row of the weight, and the input has a last column of ones: the products compute
    the bias and its gradient on the way, and no pass over the logits is spent on either.

    Attributes:
        variable: The kernel above the bias, [H + 1, V], to be trained by whoever owns this object.

    Args:
        hidden_size: H.
        vocabulary_size: V.
        dtype: The precision.
    """

    def __init__(self, hidden_size: int, vocabulary_size: int, *, dtype: tf.DType) -> None:
        self.variable = tf.Variable(tf.zeros([hidden_size + 1, vocabulary_size], dtype))

    def to_canonical(self, weight: NDArray[Any]) -> Arrays:
        """Return by canonical name an array in the layout of the weight."""
        return {"softmax.kernel": weight[:-1], "softmax.bias": weight[-1]}

    def from_canonical(self, canonical: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return arrays by canonical name in the layout of the weight."""
        return np.vstack([canonical["softmax.kernel"], canonical["softmax.bias"]])

    def logits(self, hidden_NH: tf.Tensor) -> tf.Tensor:
        """Return the logits of every word [N, V]."""
        return _with_ones(hidden_NH) @ self.variable

    def loss_and_gradients(
        self, hidden_NH: tf.Tensor, targets_N: tf.Tensor, scale: float
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return (negative log likelihoods [N], d_hidden_NH, [gradient with respect to the `variable`]).

        Args:
            hidden_NH: The top layer's output.
            targets_N: Target word ids.
            scale: Factor of the loss: scale * sum of the negative log likelihoods.
        """
        inputs = _with_ones(hidden_NH)
        softmax = SoftmaxCrossEntropy(inputs @ self.variable, targets_N)
        d_logits_NV, factor_N1 = softmax.gradient(scale)
        d_weight = tf.matmul(factor_N1 * inputs, d_logits_NV, transpose_a=True)
        d_hidden_NH = factor_N1 * tf.matmul(d_logits_NV, self.variable[:-1], transpose_b=True)
        return softmax.nll_N, d_hidden_NH, [d_weight]


class TiedSoftmaxLayer:
    """The projection onto the vocabulary by the embedding itself, with softmax and cross-entropy.

    Attributes:
        variable: The bias [V], to be trained, as the embedding is, by whoever owns this object.

    Args:
        embedding_VE: The embedding, E = H.
    """

    def __init__(self, embedding_VE: tf.Variable) -> None:
        self.embedding_VE = embedding_VE
        self.variable = tf.Variable(tf.zeros([embedding_VE.shape[0]], embedding_VE.dtype))

    def to_canonical(self, bias_V: NDArray[Any]) -> Arrays:
        """Return by canonical name an array in the layout of the bias."""
        return {"softmax.bias": bias_V}

    def from_canonical(self, canonical: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the bias from arrays by canonical name."""
        return canonical["softmax.bias"]

    def logits(self, hidden_NH: tf.Tensor) -> tf.Tensor:
        """Return the logits of every word [N, V]."""
        return tf.matmul(hidden_NH, self.embedding_VE, transpose_b=True) + self.variable

    def loss_and_gradients(
        self, hidden_NH: tf.Tensor, targets_N: tf.Tensor, scale: float
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return as SoftmaxLayer's does; the gradients are its part of the embedding's, and the bias's."""
        softmax = SoftmaxCrossEntropy(self.logits(hidden_NH), targets_N)
        d_logits_NV, factor_N1 = softmax.gradient(scale)
        d_embedding_VE = tf.matmul(d_logits_NV, factor_N1 * hidden_NH, transpose_a=True)
        d_bias_V = tf.linalg.matvec(d_logits_NV, factor_N1[:, 0], transpose_a=True)
        return softmax.nll_N, factor_N1 * (d_logits_NV @ self.embedding_VE), [d_embedding_VE, d_bias_V]


def pack_loss(nll_N: tf.Tensor, norm: tf.Tensor) -> Loss:
    """Return a window's loss.

    Args:
        nll_N: Negative log likelihood of each target.
        norm: Norm of the gradient, [].
    """
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    return tf.stack([tf.reduce_sum(tf.cast(nll_N, tf.float64)), tf.cast(norm, tf.float64)])


def sum_by_word(gradient_NE: tf.Tensor, ids_N: tf.Tensor, vocabulary_size: int) -> tf.Tensor:
    """Return an embedding's gradient [N, E], summed by word: at the first token of each, zero at the others.

    The global norm needs the sum over the occurrences of each word. Subtracting these rows from the words'
    embeddings has the same result in any order, because only one row a word is not zero. Shapes are static
    (no tf.unique), so that XLA compiles it.
    """
    tokens = tf.shape(ids_N)[0]
    first_V = tf.math.unsorted_segment_min(tf.range(tokens), ids_N, vocabulary_size)
    return tf.math.unsorted_segment_sum(gradient_NE, tf.gather(first_V, ids_N), tokens)


def _with_ones(hidden_NH: tf.Tensor) -> tf.Tensor:
    return tf.concat([hidden_NH, tf.ones_like(hidden_NH[:, :1])], 1)
