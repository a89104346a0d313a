"""Canonical parameters: names, shapes and initial values in NumPy, one truth for all backends.

V = vocabulary, E = embedding width, I = a layer's input width, H = hidden units, 4H = the gates in the order
i (input), f (forget), g (candidate), o (output).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ptb_lm.errors import UserError
from ptb_lm.model.config import Config

Weights = dict[str, NDArray[np.floating]]
Shapes = dict[str, tuple[int, ...]]


def shapes(config: Config, vocabulary_size: int) -> Shapes:
    """Return the shape of every parameter of a language model by its canonical name, in a fixed order.

    With tied weights there is no `softmax.kernel`: it is the embedding, transposed.
    """
    table = {
        "embedding": (vocabulary_size, config.embedding_width),
        **lstm_shapes(config.embedding_width, config.layer_sizes),
        "softmax.kernel": (config.layer_sizes[-1], vocabulary_size),
        "softmax.bias": (vocabulary_size,),
    }
    if config.tie_weights:
        del table["softmax.kernel"]
    return table


def lstm_shapes(input_size: int, hidden_sizes: Sequence[int], *, bidirectional: bool = False) -> Shapes:
    """Return the shape of every parameter of a stack of LSTM layers, in a fixed order.

    A bidirectional layer has a second set, `lstm.0.reverse.kernel` and so on, which reads the sequence from
    its end; its output is both directions' [.., 2H], the forward one first.

    Args:
        input_size: I of the bottom layer.
        hidden_sizes: H of each layer, from the bottom to the top.
        bidirectional: Whether each layer reads the sequence in both directions.
    """
    table: Shapes = {}
    for layer, hidden in enumerate(hidden_sizes):
        for prefix in directions(layer, bidirectional=bidirectional):
            table[prefix + "kernel"] = (input_size, 4 * hidden)
            table[prefix + "recurrent_kernel"] = (hidden, 4 * hidden)
            table[prefix + "bias"] = (4 * hidden,)
        input_size = 2 * hidden if bidirectional else hidden
    return table


def directions(layer: int, *, bidirectional: bool) -> tuple[str, ...]:
    """Return the prefix of the canonical names of each direction of a layer."""
    forward = f"lstm.{layer}."
    return (forward, forward + "reverse.") if bidirectional else (forward,)


def initial(config: Config, vocabulary_size: int, *, seed: int) -> Weights:
    """Draw a language model's initial weights, as the tutorial does; see `uniform`."""
    return uniform(shapes(config, vocabulary_size), scale=config.init_scale, seed=seed)


def uniform(shapes: Mapping[str, tuple[int, ...]], *, scale: float, seed: int) -> Weights:
    """Draw weights uniform in [-scale, scale], float32, with LSTM biases zero.

    As the tutorial does: its variable scope initialises all but the cells' biases, which TensorFlow's
    cells set to zero (and forget_bias is 0).
    """
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in shapes.items():
        if name.startswith("lstm.") and name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:
            # The doubles of a bit generator are a stable stream; float32 draws would be another one.
            weights[name] = (scale * (rng.random(shape) * 2 - 1)).astype(np.float32)
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
