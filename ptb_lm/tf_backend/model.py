"""The language model's middle: a stack of LSTM layers with dropout in all its places.

Shapes: T = time steps, B = batch, H = hidden units.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ptb_lm.tf_backend.cells import Layer
from ptb_lm.tf_backend.time_loop import LayerState

Dropout = Callable[[tf.Tensor], tf.Tensor]


class LSTMStack:
    """LSTM layers with dropout on the input, between the layers and on the top output.

    Args:
        layers: From the bottom to the top.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.trained = [variable for layer in layers for variable in layer.trained]

    def __call__(
        self, x_TBH: tf.Tensor, state: Sequence[LayerState], dropout: Dropout
    ) -> tuple[tf.Tensor, list[LayerState]]:
        """Return the output [T, B, H] and each layer's state after the last step."""
        after = []
        x_TBH = dropout(x_TBH)
        for layer, layer_state in zip(self.layers, state, strict=True):
            x_TBH, layer_state = layer(x_TBH, layer_state)
            after.append(layer_state)
            x_TBH = dropout(x_TBH)
        return x_TBH, after


class InvertedDropout:
    """Inverted dropout with a random stream of its own: a fresh mask at each call.

    Its own stream makes the masks the same for every layer implementation, and a run resumable. XLA makes
    other masks of the same stream than TensorFlow's own operation does.

    Args:
        keep_prob: Probability that a unit is kept; kept units are divided by it.
        seed: Of the stream.
    """

    def __init__(self, keep_prob: float, *, seed: int) -> None:
        self.keep_prob = keep_prob
        self.generator = tf.random.Generator.from_seed(seed, alg="philox")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return x with a fresh mask applied."""
        if self.keep_prob == 1:
            return x
        kept = self.generator.uniform(tf.shape(x)) < self.keep_prob
        return x * (tf.cast(kept, x.dtype) / self.keep_prob)


def no_dropout(x: tf.Tensor) -> tf.Tensor:
    """Return x: what evaluation uses."""
    return x
