"""Softmax cross-entropy by hand, in as few passes over the logits as possible.

They are the largest tensors of a step, and bound by memory. TensorFlow's own operation
(SparseSoftmaxCrossEntropyWithLogits) takes twice as long on a CPU.

Shapes: N = tokens, V = vocabulary.
"""

import tensorflow as tf


class SoftmaxCrossEntropy:
    """The loss of some logits, and on request its gradient.

    The exponentials are not divided by their sums: that would be a pass over [N, V]. Their users can
    divide something narrow instead.

    Attributes:
        nll_N: The negative log likelihood of each target, in nats; finite for the least likely ones too.

    Args:
        logits_NV: In a graph, the exponentials take their place if nobody else reads them.
        targets_N: Target ids.
    """

    def __init__(self, logits_NV: tf.Tensor, targets_N: tf.Tensor) -> None:
        shifted_NV = logits_NV - tf.reduce_max(logits_NV, 1, keepdims=True)
        self._places_N2 = tf.stack([tf.range(tf.size(targets_N), dtype=targets_N.dtype), targets_N], 1)
        of_targets_N = tf.gather_nd(shifted_NV, self._places_N2)
        # Read this before the exponentials overwrite it; otherwise they would need new memory.
        with tf.control_dependencies([of_targets_N]):
            self._exp_NV = tf.exp(shifted_NV)
        self._sum_N = tf.reduce_sum(self._exp_NV, 1)
        # The target's own logit, not the logarithm of its probability, which may have become zero.
        self.nll_N = tf.math.log(self._sum_N) - of_targets_N

    def gradient(self, scale: float) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (d_NV, factor_N1), whose product is the gradient of scale * sum(nll_N) by the logits."""
        # This copies. XLA does not know the operation that does not copy (ScatterNdNonAliasingAdd).
        d_NV = tf.tensor_scatter_nd_sub(self._exp_NV, self._places_N2, self._sum_N)
        return d_NV, (scale / self._sum_N)[:, None]
