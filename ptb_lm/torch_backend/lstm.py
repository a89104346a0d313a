"""The LSTM (ptb_lm.model.cells.lstm) in torch, four ways: basic, block, cudnn and persistent.

The fifth, block_fused, is in ptb_lm.torch_backend.lstm_fused.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ptb_lm.model.cells.cell import Cell
from ptb_lm.torch_backend.cells import (
    CanonicalLayer,
    Layer,
    LibraryLayer,
    LSTMState,
    ParameterView,
    freeze_second_bias,
    library_parameters,
)

MAX_UNITS, MAX_ROWS, MIN_MULTIPROCESSORS = 1024, 128, 98  # of cuDNN's persistent kernel
UNIT_MULTIPLE, ROW_MULTIPLE = 128, 8  # of H and I, and of B, for cuDNN's persistent kernel


class SteppedLayer(Layer):
    """A layer that is a Python loop over time, of a cell that carries h and c."""

    @override
    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        outputs = []
        for x_BI in x_TBI.unbind():
            state = self.step(x_BI, state)
            outputs.append(state[0])
        return torch.stack(outputs), state

    @abstractmethod
    def step(self, x_BI: Tensor, state: LSTMState) -> LSTMState:
        """Return the state after a step."""


class BasicLayer(CanonicalLayer, SteppedLayer):
    """Gates written out of elementary operations."""

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor

    @override
    def step(self, x_BI: Tensor, state: LSTMState) -> LSTMState:
        h_BH, c_BH = state
        gates = x_BI @ self.kernel + h_BH @ self.recurrent_kernel + self.bias
        i, f, g, o = gates.chunk(4, dim=-1)
        c_BH = torch.sigmoid(f) * c_BH + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c_BH), c_BH


class BlockLayer(SteppedLayer):
    """torch.nn.LSTMCell: one fused operation a time step."""

    def __init__(self, input_size: int, hidden_size: int, cell: Cell) -> None:
        super().__init__(input_size, hidden_size, cell)
        self.module = nn.LSTMCell(input_size, hidden_size, device="meta").to_empty(device="cpu")
        freeze_second_bias(self.module.bias_hh)

    @override
    def canonical_views(self) -> dict[str, ParameterView]:
        return library_parameters(self.module)

    @override
    def step(self, x_BI: Tensor, state: LSTMState) -> LSTMState:
        return self.module(x_BI, state)


class CudnnLayer(LibraryLayer):
    """torch.nn.LSTM: cuDNN on a GPU, oneDNN or ATen on a CPU."""

    module_type = nn.LSTM


class PersistentLayer(Layer):
    """One LSTM layer, padded to the sizes that cuDNN's persistent kernel takes, and computed by torch's own.

    That kernel keeps the recurrent weights on the chip for the whole sequence, and cuDNN's standard one reads
    them again at every step. torch asks for it in float16 alone, for one layer a call, in one direction, with
    H and I divisible by 128 and B by 8, H at most 1024 and B at most 128, on a GPU of 98 multiprocessors or
    more (aten/src/ATen/native/cudnn/RNN.cpp, use_persist_common_heuristics and its neighbours). Zeros make up
    the difference in size: a unit whose weights are all zero stays zero and hands on no gradient, and a row
    of the batch has no influence on the others. So the numbers are those of the layer as it is.
    """

    def __init__(self, input_size: int, hidden_size: int, cell: Cell) -> None:
        super().__init__(input_size, hidden_size, cell)
        self.weight_ih = nn.Parameter(torch.zeros(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.zeros(4 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.zeros(4 * hidden_size))

    @override
    def canonical_views(self) -> dict[str, ParameterView]:
        return library_parameters(self)

    @override
    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        batch, hidden = state[0].shape
        pad_rows, pad_units, pad_inputs = (
            -batch % ROW_MULTIPLE,
            -hidden % UNIT_MULTIPLE,
            -self.input_size % UNIT_MULTIPLE,
        )
        bias = functional.pad(self.bias_ih.view(4, hidden), (0, pad_units)).flatten()
        weights = _place_side_by_side(
            functional.pad(self.weight_ih.view(4, hidden, -1), (0, pad_inputs, 0, pad_units)).flatten(0, 1),
            functional.pad(self.weight_hh.view(4, hidden, -1), (0, pad_units, 0, pad_units)).flatten(0, 1),
            bias,
            torch.zeros_like(bias),  # of torch's two biases the model has one
        )
        before = [functional.pad(part, (0, pad_units, 0, pad_rows))[None] for part in state]
        output, h, c = torch.lstm(
            functional.pad(x_TBI, (0, pad_inputs, 0, pad_rows)),
            before,
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),
            bidirectional=False,
            batch_first=False,
        )
        return output[:, :batch, :hidden], (h[0, :batch, :hidden], c[0, :batch, :hidden])


def uses_persistent_kernel(hidden_size: int, batch: int, device: torch.device) -> bool:
    """Return whether cuDNN's persistent kernel computes a `PersistentLayer` in float16 on a GPU.

    Args:
        hidden_size: H.
        batch: B.
        device: The GPU. For compute capability 7.0 torch also looks at B and T, which is not checked here.
    """
    gpu = torch.cuda.get_device_properties(device)
    can = gpu.multi_processor_count >= MIN_MULTIPROCESSORS or (gpu.major, gpu.minor) == (7, 0)
    return can and hidden_size <= MAX_UNITS and batch <= MAX_ROWS


def _place_side_by_side(*weights: Tensor) -> list[Tensor]:
    # As cuDNN wants them, in one piece of memory; torch would warn, and copy them there itself.
    flat = torch.cat([weight.flatten() for weight in weights])
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
