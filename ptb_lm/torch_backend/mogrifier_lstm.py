"""The Mogrifier (ptb_lm.model.cells.mogrifier_lstm) in torch, basic.

The other way, block_fused, is in ptb_lm.torch_backend.mogrifier_fused.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

import torch
from torch import Tensor
from typing_extensions import override

from ptb_lm.model.cells.cell import Cell
from ptb_lm.torch_backend import lstm
from ptb_lm.torch_backend.cells import LSTMState

# The parameters that some numbers of rounds and ranks do not have: there they are None, as TorchScript wants.
OPTIONAL = ("x_gates", "x_gates_right", "x_gates_bias", "h_gates", "h_gates_right", "h_gates_bias")


class BasicLayer(lstm.BasicLayer):
    """Gates written out of elementary operations."""

    x_gates: Tensor | None
    x_gates_right: Tensor | None
    x_gates_bias: Tensor | None
    h_gates: Tensor | None
    h_gates_right: Tensor | None
    h_gates_bias: Tensor | None

    def __init__(self, input_size: int, hidden_size: int, cell: Cell) -> None:
        super().__init__(input_size, hidden_size, cell)
        for name in OPTIONAL:
            if name not in self._parameters:
                self.register_parameter(name, None)

    @override
    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        h_BH, c_BH = state
        outputs = []
        # A gradient of each step's own would be of all rounds' weights: they are taken apart once.
        x_gates, h_gates = _unbind_rounds(self.x_gates), _unbind_rounds(self.h_gates)
        x_right, h_right = _unbind_rounds(self.x_gates_right), _unbind_rounds(self.h_gates_right)
        x_bias, h_bias = _unbind_rounds(self.x_gates_bias), _unbind_rounds(self.h_gates_bias)
        for x_BI in x_TBI.unbind():
            for index in range(len(x_gates)):
                x_BI = _gate(x_BI, h_BH, x_gates, x_right, x_bias, index)
                if index < len(h_gates):
                    h_BH = _gate(h_BH, x_BI, h_gates, h_right, h_bias, index)
            h_BH, c_BH = self.step(x_BI, (h_BH, c_BH))
            outputs.append(h_BH)
        return torch.stack(outputs), (h_BH, c_BH)


def _unbind_rounds(weights: Tensor | None) -> list[Tensor]:
    """Return the weights of each round; none if there are no such weights."""
    if weights is None:
        empty: list[Tensor] = []
        return empty
    return list(weights.unbind())


def _gate(
    gated: Tensor, other: Tensor, gates: list[Tensor], right: list[Tensor], bias: list[Tensor], index: int
) -> Tensor:
    """Return x or h after a round."""
    product = other @ gates[index]
    if len(right) > 0:
        product = product @ right[index]
    return 2 * torch.sigmoid(product + bias[index]) * gated
