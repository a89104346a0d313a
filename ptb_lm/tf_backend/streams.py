"""The random stream of dropout on each device: all differ, and each is saved with a run's state."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks

NAME = "tensorflow.generator"  # in a run's state: [numbers] of one device, [devices, numbers] of several
COUNTER = (0, 0)  # where the numbers of a key begin


def seed(seed: int, device: int) -> int:
    """Return the seed of a device's stream, from that of the run, which the first has itself."""
    return seed if device == 0 else _derived(str(seed).encode(), device)


def new(seed: int) -> tf.random.Generator:
    """Return the stream of a seed."""
    # The seed is the key. from_seed makes it the counter: the streams of neighbouring seeds would then be one
    # stream, a few numbers apart.
    return tf.random.Generator.from_key_counter(seed, COUNTER, alg="philox")


def begin(stream: tf.random.Generator, seed: int) -> None:
    """Let a stream go on as a new one of a seed does."""
    stream.reset_from_key_counter(seed, COUNTER)


def export(streams: Sequence[tf.random.Generator]) -> NDArray[Any]:
    """Return the state of each device's stream."""
    states = [stream.state.numpy() for stream in streams]
    return states[0] if len(states) == 1 else np.stack(states)


def load(streams: Sequence[tf.random.Generator], saved: NDArray[Any], ranks: Ranks = SINGLE_PROCESS) -> None:
    """Go on with what was exported; if it was of another number of devices, begin anew.

    Such streams depend on those that were saved, so that no masks of before come again.

    Args:
        streams: Of the devices of this process.
        saved: Of all devices, [numbers] or [devices, numbers].
        ranks: The processes, each with as many devices.

    Raises:
        ValueError: They are not of such a generator.
    """
    of_devices = np.atleast_2d(saved)
    for device, stream in enumerate(streams, start=ranks.rank * len(streams)):
        stream.reset(of_devices[device % len(of_devices)])
        if len(of_devices) != ranks.size * len(streams):
            begin(stream, _derived(np.ascontiguousarray(saved).tobytes(), device))


def _derived(origin: bytes, device: int) -> int:
    digest = hashlib.sha256(origin + f" {device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
