"""Canonical parameters: names, shapes and initial values in NumPy, one truth for all backends.

V = vocabulary, E = embedding width (= H), I = a layer's input width, H = hidden units, 4H = the gates in the
order i (input), f (forget), g (candidate), o (output).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ptb_lm.config import Config
from ptb_lm.errors import UserError

Weights = dict[str, NDArray[np.floating]]


def shapes(config: Config, vocabulary_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its canonical name, in a fixed order."""
    hidden = config.hidden_size
    table: dict[str, tuple[int, ...]] = {"embedding": (vocabulary_size, hidden)}
    for layer in range(config.num_layers):
        table[f"lstm.{layer}.kernel"] = (hidden, 4 * hidden)
        table[f"lstm.{layer}.recurrent_kernel"] = (hidden, 4 * hidden)
        table[f"lstm.{layer}.bias"] = (4 * hidden,)
    table["softmax.kernel"] = (hidden, vocabulary_size)
    table["softmax.bias"] = (vocabulary_size,)
    return table


def initial(config: Config, vocabulary_size: int, *, seed: int) -> Weights:
    """Draw initial weights: uniform in [-init_scale, init_scale], float32, with LSTM biases zero.

    As the tutorial does: its variable scope initialises all but the cells' biases, which TensorFlow's
    cells set to zero (and forget_bias is 0).
    """
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in shapes(config, vocabulary_size).items():
        if name.startswith("lstm.") and name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:
            # The doubles of a bit generator are a stable stream; float32 draws would be another one.
            uniform = rng.random(shape) * 2 - 1
            weights[name] = (config.init_scale * uniform).astype(np.float32)
    return weights


def count(weights: Mapping[str, NDArray[np.floating]]) -> int:
    """Return the number of trainable scalars."""
    return sum(math.prod(array.shape) for array in weights.values())


def check(weights: Mapping[str, NDArray[np.floating]], config: Config, vocabulary_size: int) -> None:
    """Check that weights have exactly the names and shapes of this configuration.

    Raises:
        UserError: A tensor is missing, unknown, or of another shape.
    """
    expected = shapes(config, vocabulary_size)
    for name in expected.keys() - weights.keys():
        raise UserError(f"the tensor {name!r} is missing")
    for name in weights.keys() - expected.keys():
        raise UserError(f"the tensor {name!r} does not belong to this model")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise UserError(f"the tensor {name!r} has shape {weights[name].shape}, not {shape}")
