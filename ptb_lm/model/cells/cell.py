"""What a recurrent cell is: the declaration that all backends follow, and the oracle that they are tested by.

Shapes: B = batch, I = input width, H = hidden units.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
LayerState = tuple[Array, ...]  # what a layer carries from step to step, as Cell.state_names names it


class MemoryGates(NamedTuple):
    """The part of a bias that says for how long units remember, and how much they take in.

    Attributes:
        bias: The parameter, [gates * H]. A gate's H values lie side by side.
        gates: How many gates it is of.
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
    What all cells share: a `recurrent_kernel` [H, ...], which multiplies h, and which --recurrent-keep-prob
    drops weights of.

    Attributes:
        name: As --cell calls it. It opens the canonical names.
        carried: The names of the arrays that are carried, each [B, H]. The first is "h", a layer's output.
        constants: The initial value of each parameter that is not drawn at random.
        memory: The gates that the benchmark's check sets to remember for long, so that the first steps of a
            long sequence show in its end. None: their biases are drawn as any others.
    """

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    constants: ClassVar[Mapping[str, float]]
    memory: ClassVar[MemoryGates | None] = None

    @abstractmethod
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter of a layer, in a fixed order."""

    @abstractmethod
    def step(self, weights: Mapping[str, Array], x_BI: Array, state: LayerState) -> tuple[LayerState, Any]:
        """Do a step.

        Args:
            weights: A layer's parameters.
            x_BI: The step's input.
            state: What is carried into the step.

        Returns:
            (state, tape): what is carried out of it, and what step_back needs of it.
        """

    @abstractmethod
    def step_back(
        self, weights: Mapping[str, Array], tape: Any, d_state: LayerState
    ) -> tuple[Array, LayerState, dict[str, Array]]:
        """Take the gradient of some loss back through a step.

        Args:
            weights: Those of the step.
            tape: What the step returned.
            d_state: The loss's gradient by the state after the step; that of h has the output's in it.

        Returns:
            (d_x_BI, d_state, gradients): the gradient by the input, by the state before, and by each of the
            parameters.
        """


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), in the precision of x."""
    # By tanh, because exp(-x) overflows for large negative x.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), x.dtype)
