"""Inverted dropout in TensorFlow, with its own random stream.

Its own stream makes the masks the same for every layer implementation, and a run resumable. XLA makes other
masks of the same stream than TensorFlow's own operation does.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, places
from ptb_lm.tf_backend import streams

Dropout = Callable[[tf.Tensor], tf.Tensor]


class InvertedDropout:
    """Dropout with a fresh mask at each call.

    Args:
        keep_prob: Probability that a unit is kept; kept units are divided by it.
        seed: Of the stream.
    """

    def __init__(self, keep_prob: float, *, seed: int) -> None:
        self.keep_prob = keep_prob
        self.generator = streams.new(seed)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return x with a fresh mask applied."""
        if self.keep_prob == 1:
            return x
        return x * _mask(self.generator, tf.shape(x), self.keep_prob, x.dtype)


class WindowDropout:
    """Draws a language model's masks, window by window.

    Args:
        config: The hyper-parameters.
        vocabulary_size: V.
        dtype: Of the masks.
        seed: Of the stream.
    """

    def __init__(self, config: Config, vocabulary_size: int, *, dtype: tf.DType, seed: int) -> None:
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.dtype = dtype
        self.generator = streams.new(seed)

    def draw(self, batch: int, steps: int) -> Masks[tf.Tensor]:
        """Return the next window's masks; see ptb_lm.model.dropout_places.

        Args:
            batch: B.
            steps: T.
        """
        drawn = places(self.config, self.vocabulary_size, batch=batch, steps=steps)
        return Masks(
            {name: _mask(self.generator, *place, self.dtype) for name, place in drawn.weights.items()},
            [_mask(self.generator, *place, self.dtype) for place in drawn.units],
        )


def no_dropout(x: tf.Tensor) -> tf.Tensor:
    """Return x unchanged; evaluation uses this."""
    return x


def one_after_another(masks: Sequence[tf.Tensor]) -> Dropout:
    """Return a function that applies one mask per call; without masks it changes nothing."""
    if not masks:
        return no_dropout
    remaining = iter(masks)
    return lambda x: x * next(remaining)


def _mask(
    generator: tf.random.Generator, shape: Sequence[int] | tf.Tensor, keep_prob: float, dtype: tf.DType
) -> tf.Tensor:
    kept = generator.uniform(shape) < keep_prob
    return tf.cast(kept, dtype) / keep_prob
