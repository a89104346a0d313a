"""A stack of recurrent layers, which the language model and the sequence classifier share.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, K = the top layer's output width (H, or
2H if bidirectional).
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.cells.cell import Cell
from ptb_lm.model.parameters import DEFAULT_CELL
from ptb_lm.tf_backend.cells import Layer, LayerState


class RecurrentStack:
    """Recurrent layers, each in one direction or both, with dropout on the input of each.

    The top output is the caller's to drop.
    A bidirectional layer's output is both directions', the forward one first. The state is what is
    carried of each layer and direction: layer 0 forward, layer 0 reverse if there is one, layer 1 forward ...

    Attributes:
        layers: The layers, each as the list of its directions.
        variables: The variables to train.

    Args:
        layer_type: The implementation of a layer.
        input_size: I of the bottom layer.
        hidden_sizes: H of each layer, from the bottom to the top.
        cell: The declaration of their cell, which the implementation computes.
        bidirectional: True if each layer reads the sequence in both directions.
        unroll: The form of a loop over time; see ptb_lm.tf_backend.cells.run_over_time.
        dtype: The precision.
    """

    def __init__(
        self,
        layer_type: type[Layer],
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: Cell = DEFAULT_CELL,
        bidirectional: bool = False,
        unroll: str,
        dtype: tf.DType,
    ) -> None:
        self.dtype = dtype
        self.cell = cell
        self.layers: list[list[Layer]] = []
        self._by_prefix: dict[str, Layer] = {}  # prefixes of the parameters' canonical names
        for index, hidden in enumerate(hidden_sizes):
            prefixes = parameters.direction_prefixes(index, bidirectional=bidirectional, cell=cell.name)
            directions = [layer_type(input_size, hidden, cell, dtype=dtype, unroll=unroll) for _ in prefixes]
            self.layers.append(directions)
            self._by_prefix.update(zip(prefixes, directions, strict=True))
            input_size = hidden * len(prefixes)
        self.variables = [variable for layer in self._by_prefix.values() for variable in layer.variables]

    def __call__(
        self,
        x_TBI: tf.Tensor,
        state: Sequence[LayerState],
        *,
        masks: Sequence[tf.Tensor] = (),
        lengths_B: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, list[LayerState]]:
        """Return the output [T, B, K] and the state after.

        Args:
            x_TBI: The input. Beyond a sample's length it may hold anything, NaN too: nothing depends on it.
            state: The state before each layer's and direction's first step.
            masks: Dropout's mask of the input of each layer, which broadcasts to it. Empty: no dropout.
            lengths_B: Steps of each sample, 1 to T. The output beyond them is zero. A state after is the one
                after the last valid step, or, of a reverse direction, after it has read from there down to
                step 0. None: all T.
        """
        before, after = iter(state), []
        if lengths_B is not None:
            x_TBI = _zero_padding(x_TBI, lengths_B)
        for index, directions in enumerate(self.layers):
            if masks:
                x_TBI *= masks[index]
            outputs = []
            for layer, in_order in zip(directions, (_keep, _reverse), strict=False):
                output_TBH, layer_state = layer(in_order(x_TBI, lengths_B), next(before), lengths_B)
                outputs.append(in_order(output_TBH, lengths_B))
                after.append(layer_state)
            # What it holds beyond a sample's length is finite, and no valid step of the next layer reads it.
            x_TBI = outputs[0] if len(outputs) == 1 else tf.concat(outputs, 2)
        if lengths_B is not None:
            x_TBI = _zero_padding(x_TBI, lengths_B)
        return x_TBI, after

    def zero_state(self, batch_size: int | tf.Tensor) -> list[LayerState]:
        """Return the zero state for a batch."""
        shapes = [(batch_size, layer.hidden_size) for layer in self._by_prefix.values()]
        return [tuple(tf.zeros(shape, self.dtype) for _ in self.cell.state_names) for shape in shapes]

    def to_canonical(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return arrays in the layout of `variables` by canonical name.

        The names are those of ptb_lm.model.parameters.stack_shapes.

        Args:
            arrays: The variables' values or gradients, in their order.
        """
        iterator = iter(arrays)
        return {
            prefix + name: array
            for prefix, layer in self._by_prefix.items()
            for name, array in layer.to_canonical(list(islice(iterator, len(layer.variables)))).items()
        }

    def recurrent_factors(self, masks: Mapping[str, tf.Tensor]) -> list[tf.Tensor | None]:
        """Return the factor of each variable that drops recurrent weights; None stands for 1.

        Args:
            masks: Masks of recurrent kernels by canonical name; other names are left alone.
        """
        factors: list[tf.Tensor | None] = []
        for prefix, layer in self._by_prefix.items():
            mask = masks.get(prefix + "recurrent_kernel")
            factors += [None] * len(layer.variables) if mask is None else layer.recurrent_factors(mask)
        return factors

    def from_canonical(self, canonical: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return arrays by canonical name in the order and layout of `variables`, and no others."""
        return [
            array
            for prefix, layer in self._by_prefix.items()
            for array in layer.from_canonical(
                {
                    name: canonical[prefix + name]
                    for name in self.cell.shapes(layer.input_size, layer.hidden_size)
                }
            )
        ]


def _zero_padding(x_TBI: tf.Tensor, lengths_B: tf.Tensor) -> tf.Tensor:
    # Chosen, not multiplied by zero, which would leave a NaN one.
    valid_TB1 = (tf.range(tf.shape(x_TBI)[0])[:, None] < lengths_B)[..., None]
    return tf.where(valid_TB1, x_TBI, tf.zeros([], x_TBI.dtype))


def _keep(x_TBI: tf.Tensor, lengths_B: tf.Tensor | None) -> tf.Tensor:
    return x_TBI


def _reverse(x_TBI: tf.Tensor, lengths_B: tf.Tensor | None) -> tf.Tensor:
    """Reverse the valid steps of each sample in time; the padding stays where it is."""
    if lengths_B is None:
        return tf.reverse(x_TBI, [0])
    return tf.reverse_sequence(x_TBI, lengths_B, seq_axis=0, batch_axis=1)
