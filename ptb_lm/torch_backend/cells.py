"""One layer over a sequence, in one direction: what it is, and three of the LSTM: basic, block, block_fused.

The LSTM's fourth, cudnn, is in ptb_lm.torch_backend.layers: it knows directions and lengths itself. All
compute the same function of the same canonical parameters (ptb_lm.model.cells.lstm). Other cells have a file
each.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ptb_lm.model import cells
from ptb_lm.torch_backend.fused import FusedSequence, last_of_each

LayerState = tuple[Tensor, ...]  # what a layer carries from step to step, each [B, H]; the first is h_BH
LSTMState = tuple[Tensor, Tensor]  # h_BH, c_BH; TorchScript wants to know how many there are


class Canonical(NamedTuple):
    """Where a canonical parameter is kept."""

    parameter: Tensor
    transposed: bool = False  # torch's own modules keep [4H, I] where canonical is [I, 4H]
    part: slice | None = None  # where it is only some of what torch keeps in one tensor

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


class Layer(nn.Module, ABC):
    """One layer over a sequence, in one direction.

    Attributes:
        cell_name: What its cells are, a name in ptb_lm.model.cells.CELLS.

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
        """Return the trained parameters by their cell's names: kernel, recurrent_kernel ..."""

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

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by their cell's names."""
        return {name: Canonical(parameter) for name, parameter in self.named_parameters()}


class BasicLayer(CanonicalLayer):
    """Gates written out of elementary operations; a Python loop over time."""

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor

    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Return the output [T, B, H] and the state after the last step."""
        h_BH, c_BH = state
        outputs = []
        for x_BI in x_TBI.unbind():
            gates = x_BI @ self.kernel + h_BH @ self.recurrent_kernel + self.bias
            i, f, g, o = gates.chunk(4, dim=-1)
            c_BH = torch.sigmoid(f) * c_BH + torch.sigmoid(i) * torch.tanh(g)
            h_BH = torch.sigmoid(o) * torch.tanh(c_BH)
            outputs.append(h_BH)
        return torch.stack(outputs), (h_BH, c_BH)


class BlockLayer(Layer):
    """torch.nn.LSTMCell: one fused operation a time step, in a Python loop."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = nn.LSTMCell(input_size, hidden_size)
        freeze_second_bias(self.cell.bias_hh)

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name."""
        return {
            "kernel": Canonical(self.cell.weight_ih, True),
            "recurrent_kernel": Canonical(self.cell.weight_hh, True),
            "bias": Canonical(self.cell.bias_ih),
        }

    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Return the output [T, B, H] and the state after the last step."""
        outputs = []
        for x_BI in x_TBI.unbind():
            state = self.cell(x_BI, state)
            outputs.append(state[0])
        return torch.stack(outputs), state


class BlockFusedLayer(CanonicalLayer):
    """One operation for the sequence, with its own gradient (ptb_lm.torch_backend.fused).

    In half precision the carried c, which is added to at every step, is of float32.
    """

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor

    def zero_state(self, batch_size: int) -> LayerState:
        """Return the zero state for a batch."""
        h_BH, c_BH = super().zero_state(batch_size)
        return h_BH, c_BH.to(torch.promote_types(c_BH.dtype, torch.float32))

    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Return the output [T, B, H] and the state after the last step."""
        steps, batch, _ = x_TBI.shape
        output_PH, last = self.packed(x_TBI.flatten(0, 1), state, (batch,) * steps)
        return output_PH.view(steps, batch, -1), last

    def packed(self, x_PI: Tensor, state: LayerState, running: tuple[int, ...]) -> tuple[Tensor, LSTMState]:
        """Return the output [P, H] and each sample's state after its last step, over packed sequences.

        Args:
            x_PI: The steps of all samples, as ptb_lm.torch_backend.fused describes.
            state: Before the first step, samples in the same order.
            running: How many samples have a step, for each of T.
        """
        output_PH, c_BH = FusedSequence.apply(  # type: ignore[no-untyped-call]
            x_PI, *state, self.kernel, self.recurrent_kernel, self.bias, running
        )
        return output_PH, (last_of_each(output_PH, running), c_BH)


def freeze_second_bias(bias: Tensor) -> None:
    """Keep one of torch's bias vectors at zero.

    torch adds two where the canonical model has one. Trained, the pair would move twice as fast under SGD as
    the one.
    """
    bias.requires_grad_(False)
    nn.init.zeros_(bias)
