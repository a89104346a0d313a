"""The declaration of a recurrent cell: all backends follow it, and are tested against it.

Shapes: B = batch, I = input width, H = hidden units.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
LayerState = tuple[Array, ...]  # what a layer carries from step to step, as Cell.state_names names it


class MemoryGates(NamedTuple):
    """The gates of a bias that decide how long units remember, and how much they take in.

    Attributes:
        bias: The parameter, [gates * H]. A gate's H values lie side by side.
        gates: The number of gates in it.
        forget: The index of the gate that keeps the memory.
        input: The index of the gate that lets the input into it.
    """

    bias: str
    gates: int
    forget: int
    input: int


class Cell(ABC):
    """A recurrent cell: its parameters, what it carries from step to step, and a step of it in NumPy.

    Within a layer a parameter has a plain name; in layer 0 its canonical name is `lstm.0.kernel`.
    Every cell has a `recurrent_kernel` [H, ...], which multiplies h; --recurrent-keep-prob drops some of its
    weights. A cell that has options takes them as the arguments of its constructor, and each has a default
    there.

    Attributes:
        name: The value of --cell. It opens the canonical names.
        state_names: The names of the arrays that are carried, each [B, H]. The first is "h", a layer's
            output.
        constants: The initial value of each parameter that is not drawn at random; by default all are.
        memory_gates: The gates that the benchmark's check sets to remember for long, so that the first steps
            of a long sequence show in its end. None: their biases are drawn as any others.
        kept_values: About how many numbers a layer keeps of a step, per unit. It bounds how many words are
            read at once.
    """

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    constants: ClassVar[Mapping[str, float]] = MappingProxyType({})
    memory_gates: ClassVar[MemoryGates | None] = None
    kept_values: int = 4

    @abstractmethod
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter of a layer, in a fixed order."""

    def options_of(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return those options, by name, that the shapes of a layer's parameters tell."""
        return {}

    @abstractmethod
    def step(self, weights: Mapping[str, Array], x_BI: Array, state: LayerState) -> tuple[LayerState, Any]:
        """Do a step.

        Args:
            weights: A layer's parameters.
            x_BI: The step's input.
            state: The state before the step.

        Returns:
            (state, tape): the state after the step, and the values that step_back needs.
        """

    @abstractmethod
    def step_back(
        self, weights: Mapping[str, Array], tape: Any, d_state: LayerState
    ) -> tuple[Array, LayerState, dict[str, Array]]:
        """Take the gradient of some loss back through a step.

        Args:
            weights: The layer's parameters, as in `step`.
            tape: The second value that `step` returned.
            d_state: dL/dstate, with respect to the state after the step; dL/dh includes the output's part.

        Returns:
            (d_x_BI, d_state, gradients): dL/dx, dL/dstate with respect to the state before the step, and the
            gradient with respect to each parameter.
        """


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), in the precision of x."""
    # With tanh, because exp(-x) overflows for large negative x.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), x.dtype)
