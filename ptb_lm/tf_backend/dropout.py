"""Inverted dropout in TensorFlow, with a random stream of its own on each device.

Its own stream makes the masks the same for every layer implementation, and a run resumable. XLA makes other
masks of the same stream than TensorFlow's own operation does. The streams of all devices differ, and each is
saved with a run's state.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, hash_to_seed, mask_specs
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.tf_backend.runtime import apply_execution

STREAMS = "tensorflow.generator"  # in a run's state: [numbers] of one device, [devices, numbers] of several
COUNTER = (0, 0)  # where the numbers of a key begin


class WindowDropout:
    """Draws a language model's masks, window by window.

    Args:
        config: The hyper-parameters.
        vocabulary_size: V.
        dtype: The precision of the masks.
        seed: Seed of the stream.
        execution: Execution of the training step, which draws.
    """

    def __init__(
        self, config: Config, vocabulary_size: int, *, dtype: tf.DType, seed: int, execution: str
    ) -> None:
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.dtype = dtype
        self.generator = new_stream(seed)
        self._draw_as_executed = apply_execution(self.draw, "xla") if execution == "xla" else self.draw

    def draw(self, batch: int, steps: int) -> Masks[tf.Tensor]:
        """Return the next window's masks; see ptb_lm.model.dropout_places.

        Args:
            batch: B.
            steps: T.
        """
        specs = mask_specs(self.config, self.vocabulary_size, batch=batch, steps=steps)
        return specs.map(lambda spec: draw_mask(self.generator, *spec, self.dtype))

    def preview(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that the next window's masks will keep, without advancing the random stream."""
        state = tf.identity(self.generator.state)
        masks: Masks[tf.Tensor] = self._draw_as_executed(batch, steps)
        self.generator.reset(state)
        return masks.map(lambda mask: mask.numpy() != 0)


def draw_mask(
    generator: tf.random.Generator, shape: Sequence[int] | tf.Tensor, keep_prob: float, dtype: tf.DType
) -> tf.Tensor:
    """Return a mask: 0 with probability 1 - keep_prob, else 1 / keep_prob."""
    kept = generator.uniform(shape) < keep_prob
    return tf.cast(kept, dtype) / keep_prob


def device_seed(seed: int, device: int) -> int:
    """Return the seed of a device's stream. The first has the run's; the others' are derived from it."""
    return seed if device == 0 else hash_to_seed(f"{seed}".encode(), f"{device}")


def new_stream(seed: int) -> tf.random.Generator:
    """Return the stream of a seed."""
    # The seed is the key. from_seed makes it the counter: the streams of neighbouring seeds would then be one
    # stream, a few numbers apart.
    return tf.random.Generator.from_key_counter(seed, COUNTER, alg="philox")


def export_streams(streams: Sequence[tf.random.Generator]) -> NDArray[Any]:
    """Return the state of each device's stream."""
    states = [stream.state.numpy() for stream in streams]
    return states[0] if len(states) == 1 else np.stack(states)


def load_streams(
    streams: Sequence[tf.random.Generator], states: NDArray[Any], ranks: Ranks = SINGLE_PROCESS
) -> None:
    """Go on with exported streams; if they are of another number of devices, begin anew.

    New streams depend on those that were saved, so that no masks of before come again.

    Args:
        streams: The streams of the devices of this process.
        states: The states of all devices, [numbers] or [devices, numbers].
        ranks: The processes, each with as many devices.

    Raises:
        ValueError: They are not of such a generator.
    """
    if states.dtype != np.int64 or not states.size:
        raise ValueError(f"it is {states.dtype}, of shape {states.shape}")
    by_device = np.atleast_2d(states)
    for device, stream in enumerate(streams, start=ranks.rank * len(streams)):
        stream.reset(by_device[device % len(by_device)])
        if len(by_device) != ranks.size * len(streams):
            seed = hash_to_seed(np.ascontiguousarray(states).tobytes(), f"{device}")
            stream.reset_from_key_counter(seed, COUNTER)
