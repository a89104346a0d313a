"""One layer over a sequence: what it is, and how most cells run over time. Each cell has a file of its own.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays
from ptb_lm.tf_backend.time_loop import LayerState, over_time


class Layer(ABC):
    """One layer over a sequence.

    Attributes:
        cell_name: What its cells are, a name in ptb_lm.model.cells.CELLS.
        trained: The variables to train.

    Args:
        input_size: I.
        hidden_size: H.
        dtype: In which precision.
        unroll: How the layer's own loop over time, if it has one, enters the graph; see time_loop.
    """

    cell_name: ClassVar[str] = cells.LSTM
    trained: list[tf.Variable]

    @abstractmethod
    def __init__(self, input_size: int, hidden_size: int, *, dtype: tf.DType, unroll: str) -> None:
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.unroll = unroll

    @classmethod
    def on(cls, *, gpu: bool) -> "type[Layer]":
        """Return the class that computes this on a GPU, or on a CPU."""
        return cls

    @abstractmethod
    def by_name(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return what belongs to the trained variables (their values, or gradients) by their cell's names."""

    @abstractmethod
    def recurrent_factors(self, mask_HG: tf.Tensor) -> list[tf.Tensor | None]:
        """Return a mask of the recurrent kernel as a factor of each trained variable; None: of 1."""

    @abstractmethod
    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by their cell's names."""

    @abstractmethod
    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        """Return the output [T, B, H] and the state after each sample's last step.

        Args:
            x_TBI: The input, finite everywhere.
            state: Before the first step.
            lengths_B: Steps of each sample, 1 to T; beyond them the output is finite but
                undefined. None: all T.
        """


class CanonicalLayer(Layer):
    """A layer with the parameters that its cell declares: `self.weights`, by the same names."""

    def __init__(self, input_size: int, hidden_size: int, *, dtype: tf.DType, unroll: str) -> None:
        super().__init__(input_size, hidden_size, dtype=dtype, unroll=unroll)
        shapes = cells.get(self.cell_name).shapes(input_size, hidden_size)
        self.weights = {name: tf.Variable(tf.zeros(shape, dtype)) for name, shape in shapes.items()}
        self.trained = list(self.weights.values())

    def by_name(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return what belongs to the trained variables by their cell's names."""
        return dict(zip(self.weights, arrays, strict=True))

    def recurrent_factors(self, mask_HG: tf.Tensor) -> list[tf.Tensor | None]:
        """Return a mask of the recurrent kernel as a factor of each trained variable."""
        return [mask_HG if name == "recurrent_kernel" else None for name in self.weights]

    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by their cell's names."""
        for name, variable in self.weights.items():
            variable.assign(canonical[name])

    @abstractmethod
    def step(self, weights: Mapping[str, tf.Tensor], x_BI: tf.Tensor, state: Any) -> LayerState:
        """Return the state after a step; `weights` are `self.weights`, read once for all steps."""

    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        """Return the output [T, B, H] and the state after each sample's last step."""
        weights = {name: tf.convert_to_tensor(variable) for name, variable in self.weights.items()}
        step = partial(self.step, weights)
        return over_time(step, x_TBI, state, unroll=self.unroll, lengths_B=lengths_B)


def layer_type(model: str, *, cell: str = cells.LSTM, gpu: bool) -> type[Layer]:
    """Return the class that computes layers of a cell by a model's name."""
    named: type[Layer] = cells.layer_class(cell, "tensorflow", model)
    return named.on(gpu=gpu)
