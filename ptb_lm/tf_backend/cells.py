"""One layer over a sequence: its contract, and the loop over time of most cells. Each cell has its own file.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays
from ptb_lm.model.cells.cell import Cell

# The carried tensors of a layer, each [B, H]; the first is h_BH, its output.
LayerState = tuple[tf.Tensor, ...]
CellStep = Callable[[tf.Tensor, LayerState], LayerState]  # (x_BI, state) -> state
TimedStep = Callable[[Any, tf.Tensor, LayerState], LayerState]  # (t, x_BI, state) -> state


class Layer(ABC):
    """One layer over a sequence, with the parameters that its cell declares.

    Attributes:
        weights: The variables to train, by name: those of the cell's parameters, unless `new_weights` says
            otherwise.
        variables: The same, in their order.
        cpu_type: The class that computes this on a CPU, if it is another one.

    Args:
        input_size: I.
        hidden_size: H.
        cell: The declaration of its cell.
        dtype: The precision.
        unroll: The form in which the layer's own loop over time, if it has one, enters the graph; see
            `run_over_time`.
    """

    cpu_type: "ClassVar[type[Layer] | None]" = None

    def __init__(
        self, input_size: int, hidden_size: int, cell: Cell, *, dtype: tf.DType, unroll: str
    ) -> None:
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell = cell
        self.unroll = unroll
        self.weights = self.new_weights(dtype)
        self.variables = list(self.weights.values())

    def new_weights(self, dtype: tf.DType) -> dict[str, tf.Variable]:
        """Return the variables by name, still to be loaded.

        A class that names or lays them out in another way overrides the next three methods, too.
        """
        shapes = self.cell.shapes(self.input_size, self.hidden_size)
        return {name: tf.Variable(tf.zeros(shape, dtype)) for name, shape in shapes.items()}

    def to_canonical(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return by their cell's names arrays that are given in the order and layout of `variables`.

        Args:
            arrays: The variables' values, or their gradients.
        """
        return dict(zip(self.weights, arrays, strict=True))

    def recurrent_factors(self, mask_HG: tf.Tensor) -> list[tf.Tensor | None]:
        """Return a mask of the recurrent kernel [H, 4H] as a factor of each variable; None stands for 1."""
        return [mask_HG if name == "recurrent_kernel" else None for name in self.weights]

    def from_canonical(self, canonical: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return arrays by their cell's names in the order and layout of `variables`."""
        return [canonical[name] for name in self.weights]

    @abstractmethod
    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        """Return the output [T, B, H] and the state after each sample's last step.

        Args:
            x_TBI: The input, finite everywhere.
            state: The state before the first step.
            lengths_B: Steps of each sample, 1 to T; beyond them the output is finite but
                undefined. None: all T.
        """


class SteppedLayer(Layer):
    """A layer that is a loop over time."""

    @abstractmethod
    def step(self, weights: Mapping[str, tf.Tensor], x_BI: tf.Tensor, state: Any) -> LayerState:
        """Return the state after a step; `weights` are `self.weights`, read once for all steps."""

    @override
    def __call__(
        self, x_TBI: tf.Tensor, state: LayerState, lengths_B: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, LayerState]:
        weights = {name: tf.convert_to_tensor(variable) for name, variable in self.weights.items()}
        step = partial(self.step, weights)
        return run_over_time(step, x_TBI, state, unroll=self.unroll, lengths_B=lengths_B)


def assign(variables: Sequence[tf.Variable], arrays: Sequence[NDArray[Any]]) -> None:
    """Set variables to arrays, each in the variable's precision."""
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array.astype(variable.dtype.as_numpy_dtype, copy=False))


def layer_type(model: str, *, cell: str = cells.LSTM, gpu: bool) -> type[Layer]:
    """Return the class that computes layers of a cell by a model's name."""
    row: type[Layer] = cells.layer_class(cell, "tensorflow", model)
    return row if gpu else row.cpu_type or row


def run_over_time(
    step: CellStep, x_TBI: tf.Tensor, state: LayerState, *, unroll: str, lengths_B: tf.Tensor | None = None
) -> tuple[tf.Tensor, LayerState]:
    """Return the h of every step [T, B, H] and the state after the last.

    Args:
        step: The recurrence.
        x_TBI: The input.
        state: The state before the first step.
        unroll: "static": the graph holds every step, where T is known when it is traced. In training it is;
            the one graph for windows of any length loops. "loop": the graph holds one step.
        lengths_B: Steps of each sample; from there on its state stays as it is. None: all T.
    """

    def step_or_hold(t: Any, x_BI: tf.Tensor, state: LayerState) -> LayerState:
        after = step(x_BI, state)
        if lengths_B is None:
            return after
        valid_B1 = (t < lengths_B)[:, None]
        return tuple(tf.where(valid_B1, new, old) for new, old in zip(after, state, strict=True))

    if unroll == "static" and x_TBI.shape[0] is not None:
        return _unroll(step_or_hold, x_TBI, state)
    return _loop(step_or_hold, x_TBI, state)


def _unroll(step: TimedStep, x_TBI: tf.Tensor, state: LayerState) -> tuple[tf.Tensor, LayerState]:
    outputs = []
    for t, x_BI in enumerate(tf.unstack(x_TBI)):
        state = step(t, x_BI, state)
        outputs.append(state[0])
    return tf.stack(outputs), state


def _loop(step: TimedStep, x_TBI: tf.Tensor, state: LayerState) -> tuple[tf.Tensor, LayerState]:
    steps = tf.shape(x_TBI)[0]
    inputs = tf.TensorArray(x_TBI.dtype, size=steps).unstack(x_TBI)
    outputs = tf.TensorArray(x_TBI.dtype, size=steps, element_shape=state[0].shape)

    def body(
        t: tf.Tensor, outputs: tf.TensorArray, state: LayerState
    ) -> tuple[tf.Tensor, tf.TensorArray, LayerState]:
        state = step(t, inputs.read(t), state)
        return t + 1, outputs.write(t, state[0]), state

    _, outputs, state = tf.while_loop(
        lambda t, *_: t < steps,
        body,
        (tf.constant(0), outputs, state),
        # XLA sizes the stacks that the gradient pops from by this bound.
        maximum_iterations=steps,
    )
    # A graph knows the number of steps and units of the input, but not those of the stack.
    return tf.ensure_shape(outputs.stack(), [x_TBI.shape[0], *state[0].shape]), state
