"""The state that rows carry from window to window, as a run's saved state holds it: of all ranks' rows.

Each array is one part of the state, such as h, [L, B, H]. Zeros fill up the layers that are narrower than H.

Shapes: L = layers, B = rows, H = units of the widest layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.model.backend import Arrays
from ptb_lm.model.ranks import Ranks

State = Sequence[Sequence[NDArray[Any]]]  # of each layer the parts, [rows, units of the layer]


def pack(state: State, names: Sequence[str]) -> Arrays:
    """Return the carried state of a rank's rows by the names of its parts."""
    width = max(layer[0].shape[1] for layer in state)
    return {
        name: np.stack([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])
        for name, parts in zip(names, zip(*state, strict=True), strict=True)
    }


def gather(own: Arrays, ranks: Ranks, *, stream: str) -> Arrays:
    """Return the carried state of all ranks' rows, and their random streams, [ranks, ...] of several.

    Args:
        own: Result of `pack`, and the state of this rank's random stream.
        ranks: The processes that train together.
        stream: Name of the random stream's state.
    """
    if ranks.size == 1:
        return own
    everywhere = ranks.gather(own)
    return {
        name: np.stack(arrays) if name == stream else np.concatenate(arrays, axis=1)
        for name, arrays in ((name, [there[name] for there in everywhere]) for name in own)
    }


def unpack(
    arrays: Mapping[str, NDArray[Any]], names: Sequence[str], hidden_sizes: Sequence[int], ranks: Ranks
) -> State:
    """Return the carried state of this rank's rows.

    Args:
        arrays: The parts for the rows of all ranks; other names are left alone.
        names: The names of the parts.
        hidden_sizes: Units of each layer.
        ranks: The processes that train together.
    """
    layers = zip(
        *(array[:, ranks.share(array.shape[1])] for array in map(arrays.__getitem__, names)), strict=True
    )
    return [[part[:, :units] for part in layer] for layer, units in zip(layers, hidden_sizes, strict=True)]
