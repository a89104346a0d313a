"""Canonical parameters: names, shapes and initial values in NumPy, the same for all backends.

V = vocabulary, E = embedding width, I = a layer's input width, H = hidden units. A layer's
parameters are those of its cell (ptb_lm.model.cells).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptb_lm.common import host
from ptb_lm.common.errors import OutOfMemoryError, UserError
from ptb_lm.model import cells
from ptb_lm.model.cells.cell import Cell
from ptb_lm.model.config import Config

Weights = dict[str, NDArray[np.floating]]
Shapes = dict[str, tuple[int, ...]]

DEFAULT_CELL = cells.get(cells.LSTM)


def shapes(config: Config, vocabulary_size: int) -> Shapes:
    """Return the shape of every parameter of a language model by its canonical name, in a fixed order.

    With tied weights there is no `softmax.kernel`: it is the embedding, transposed.
    """
    table = {
        "embedding": (vocabulary_size, config.embedding_width),
        **stack_shapes(config.embedding_width, config.hidden_sizes, cell=config.cell_declaration),
        "softmax.kernel": (config.hidden_sizes[-1], vocabulary_size),
        "softmax.bias": (vocabulary_size,),
    }
    if config.tie_weights:
        del table["softmax.kernel"]
    return table


def stack_shapes(
    input_size: int, hidden_sizes: Sequence[int], *, cell: Cell = DEFAULT_CELL, bidirectional: bool = False
) -> Shapes:
    """Return the shape of every parameter of a stack of recurrent layers, in a fixed order.

    A bidirectional layer has a second set, `lstm.0.reverse.kernel` and so on, which reads the sequence from
    its end; its output is both directions' [.., 2H], the forward one first.

    Args:
        input_size: I of the bottom layer.
        hidden_sizes: H of each layer, from the bottom to the top.
        cell: The declaration of their cell.
        bidirectional: True if each layer reads the sequence in both directions.
    """
    table: Shapes = {}
    for layer, hidden in enumerate(hidden_sizes):
        for prefix in direction_prefixes(layer, bidirectional=bidirectional, cell=cell.name):
            layer_shapes = cell.shapes(input_size, hidden)
            table |= {prefix + name: shape for name, shape in layer_shapes.items()}
        input_size = 2 * hidden if bidirectional else hidden
    return table


def direction_prefixes(layer: int, *, bidirectional: bool, cell: str = cells.LSTM) -> tuple[str, ...]:
    """Return the prefix of the canonical names of each direction of a layer."""
    forward = f"{cell}.{layer}."
    return (forward, forward + "reverse.") if bidirectional else (forward,)


def cell_of(weights: Mapping[str, NDArray[np.floating]]) -> Cell:
    """Return the cell that canonical parameters belong to, with the options that they were made with."""
    name = next(filter(None, map(owner, weights))).name
    bottom = f"{name}.0."
    shapes = {
        key.removeprefix(bottom): array.shape for key, array in weights.items() if key.startswith(bottom)
    }
    return cells.get(name, **cells.get(name).options_of(shapes))


def owner(name: str) -> Cell | None:
    """Return the cell that a canonical name belongs to; None for one of another part of the model."""
    first = name.partition(".")[0]
    return cells.get(first) if first in cells.CELLS else None


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Return whether a parameter multiplies vectors: a matrix, or one for each of several rounds.

    Biases and gains are none. A cell that has some for each of several rounds has them in two dimensions.
    """
    cell = owner(name)
    return len(shape) > 1 and not (cell and name.rpartition(".")[2] in cell.constants)


def check_fits(config: Config, vocabulary_size: int) -> None:
    """Check that the weights alone fit into the machine's memory, without building them.

    Raises:
        OutOfMemoryError: They do not.
    """
    size = 4 * sum(map(math.prod, shapes(config, vocabulary_size).values()))
    if size > host.memory_limit():
        raise OutOfMemoryError(host.describe_memory_need(size, "the weights alone need"))


def draw_initial(config: Config, vocabulary_size: int, *, seed: int) -> Weights:
    """Draw a language model's initial weights, as the tutorial does; see `draw_uniform`."""
    return draw_uniform(
        shapes(config, vocabulary_size),
        scale=config.init_scale,
        layer_scale=config.layer_init_scale,
        seed=seed,
    )


def draw_uniform(
    shapes: Mapping[str, tuple[int, ...]], *, scale: float, layer_scale: float = 0.0, seed: int
) -> Weights:
    """Draw float32 weights uniformly from [-scale, scale], except those that a cell sets to a constant.

    Args:
        shapes: Shape of each parameter by canonical name.
        scale: Bound of the weights.
        layer_scale: Bound of those of a layer of H units, times the square root of H; 0: `scale`.
        seed: Seed of the random stream.
    """
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in shapes.items():
        cell, short_name = owner(name), name.rpartition(".")[2]
        if cell and short_name in cell.constants:
            weights[name] = np.full(shape, cell.constants[short_name], np.float32)
        else:
            bound = scale
            if cell and layer_scale:
                units = shapes[f"{name.rpartition('.')[0]}.recurrent_kernel"][0]
                bound = layer_scale / math.sqrt(units)
            # The doubles of a bit generator are a stable stream; float32 draws would be another one.
            weights[name] = (bound * (rng.random(shape) * 2 - 1)).astype(np.float32)
    return weights


def widen_layers(config: Config, weights: Mapping[str, NDArray[Any]]) -> tuple[Config, Weights]:
    """Return the same model with all layers as wide as the widest, for programs that have no others.

    A narrower layer gets further units, whose weights are zero: their state stays zero, and no score changes.

    Args:
        config: Hyper-parameters, of the cell lstm or gru.
        weights: Canonical parameters.
    """
    units = max(config.hidden_sizes)
    wide = config.replace(
        hidden_size=units,
        layer_sizes=(),
        embedding_size=0 if config.tie_weights else config.embedding_width,
    )
    padded: Weights = {}
    for name, shape in shapes(wide, len(weights["embedding"])).items():
        gates = shape[-1] // units if owner(name) else 1  # each has columns of its own
        before, after = ((*each[:-1], gates, each[-1] // gates) for each in (weights[name].shape, shape))
        padding = [(0, room - size) for size, room in zip(before, after, strict=True)]
        padded[name] = np.pad(weights[name].reshape(before), padding).reshape(shape)
    return wide, padded


def count_scalars(weights: Mapping[str, NDArray[np.floating]]) -> int:
    """Return the number of trainable scalars."""
    return sum(math.prod(array.shape) for array in weights.values())


def check(
    weights: Mapping[str, NDArray[np.floating]],
    expected: Mapping[str, tuple[int, ...]],
    *,
    dtype: DTypeLike | None = None,
    finite: bool = False,
) -> None:
    """Check that arrays have exactly the names and shapes that a model's have.

    Args:
        weights: The arrays by canonical name.
        expected: The shape of each, as `shapes` returns them.
        dtype: The type that all of them must have; None: any.
        finite: True if all numbers must be finite.

    Raises:
        UserError: A tensor is missing, unknown, of another shape or type, or has a number that is not finite;
            the message names the first.
    """
    for name in expected:  # in its order: each run of a benchmark tells the same
        if name not in weights:
            raise UserError(f"the tensor {name!r} is missing")
    for name in weights:
        if name not in expected:
            raise UserError(f"the tensor {name!r} does not belong to this model")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise UserError(f"the tensor {name!r} has shape {weights[name].shape}, not {shape}")
        if dtype is not None and weights[name].dtype != dtype:
            raise UserError(f"the tensor {name!r} has the type {weights[name].dtype}, not {np.dtype(dtype)}")
        if finite and not np.isfinite(weights[name]).all():
            raise UserError(f"the tensor {name!r} has a number that is not finite")
