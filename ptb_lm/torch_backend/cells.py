"""The base of the layers: one layer over a sequence, in one direction, and its canonical parameters.

Each cell has a file. All models of a cell compute the same function of the same canonical parameters, which
ptb_lm.model.cells declares.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays

LayerState = tuple[Tensor, ...]  # the arrays that a layer carries from step to step, each [B, H]; first h_BH
LSTMState = tuple[Tensor, Tensor]  # h_BH, c_BH; TorchScript needs the number of them


class Canonical(NamedTuple):
    """The place of a canonical parameter."""

    parameter: Tensor
    transposed: bool = False  # torch's own modules keep [4H, I], and the canonical shape is [I, 4H]
    part: slice | None = None  # rows of the tensor, if torch keeps more than the parameter in it

    @property
    def value(self) -> Tensor:
        """The parameter's numbers: a view of canonical shape."""
        return self._canonical(self.parameter.detach())

    @property
    def gradient(self) -> Tensor:
        """The gradient's numbers: a view of canonical shape."""
        assert self.parameter.grad is not None
        return self._canonical(self.parameter.grad)

    def _canonical(self, tensor: Tensor) -> Tensor:
        if self.part is not None:
            tensor = tensor[self.part]
        return tensor.T if self.transposed else tensor


def export_arrays(canonical: Mapping[str, Canonical]) -> Arrays:
    """Return a copy of the parameters' numbers, by the same names."""
    return {name: place.value.cpu().numpy().copy() for name, place in canonical.items()}


def load_arrays(canonical: Mapping[str, Canonical], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set parameters from arrays of the same names, in canonical shapes."""
    for name, place in canonical.items():
        place.value.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


class Layer(nn.Module, ABC):
    """One layer over a sequence, in one direction.

    Attributes:
        cell_name: Name of its cell in ptb_lm.model.cells.CELLS.

    Args:
        input_size: I.
        hidden_size: H.
    """

    cell_name: ClassVar[str] = cells.LSTM

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size

    @abstractmethod
    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by the names that the cell declares: kernel, recurrent_kernel ..."""

    def zero_state(self, batch_size: int) -> LayerState:
        """Return the zero state for a batch."""
        zeros = next(self.parameters()).new_zeros
        return tuple(zeros(batch_size, self.hidden_size) for _ in cells.get(self.cell_name).state_names)

    @abstractmethod
    def forward(self, x_TBI: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the output [T, B, H] and the state after the last step; a state is a LayerState."""


class CanonicalLayer(Layer):
    """A layer with the parameters that its cell declares, by the same names."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        for name, shape in cells.get(self.cell_name).shapes(input_size, hidden_size).items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    @override
    def canonical(self) -> dict[str, Canonical]:
        return {name: Canonical(parameter) for name, parameter in self.named_parameters()}


def widen_cell(state: LayerState) -> LayerState:
    """Return an LSTM's state whose c, a sum that grows at every step, is of float32 at least."""
    h_BH, c_BH = state
    return h_BH, c_BH.to(torch.promote_types(c_BH.dtype, torch.float32))
