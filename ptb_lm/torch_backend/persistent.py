"""An LSTM layer padded to the sizes that cuDNN's persistent kernel takes.

That kernel keeps the recurrent weights on the chip for the whole sequence, where cuDNN's standard one reads
them again at every step. torch asks for it in float16 alone, for one layer a call, in one direction, with H
and I divisible by 128 and B by 8, H at most 1024 and B at most 128, on a GPU of 98 multiprocessors or more
(aten/src/ATen/native/cudnn/RNN.cpp, use_persist_common_heuristics and its neighbours). Zeros make up the
difference in size: a unit whose weights are all zero stays zero and hands on no gradient, and a row of
the batch has nothing to do with the others. So the numbers are those of the layer as it is.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ptb_lm.torch_backend.cells import Canonical, Layer, LSTMState

UNITS, ROWS = 128, 8  # what H and I, and B, must be multiples of


class PersistentLayer(Layer):
    """One LSTM layer, computed by torch's own on padded sizes."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.zeros(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.zeros(4 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.zeros(4 * hidden_size))

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name."""
        return {
            "kernel": Canonical(self.weight_ih, True),
            "recurrent_kernel": Canonical(self.weight_hh, True),
            "bias": Canonical(self.bias_ih),
        }

    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Return the output [T, B, H] and the state after the last step."""
        batch, hidden = state[0].shape
        rows, units = _missing(batch, ROWS), _missing(hidden, UNITS)
        inputs = _missing(self.input_size, UNITS)
        bias = functional.pad(self.bias_ih.view(4, hidden), (0, units)).flatten()
        weights = _side_by_side(
            functional.pad(self.weight_ih.view(4, hidden, -1), (0, inputs, 0, units)).flatten(0, 1),
            functional.pad(self.weight_hh.view(4, hidden, -1), (0, units, 0, units)).flatten(0, 1),
            bias,
            torch.zeros_like(bias),  # of torch's two biases the model has one
        )
        before = [functional.pad(part, (0, units, 0, rows))[None] for part in state]
        output, h, c = torch.lstm(
            functional.pad(x_TBI, (0, inputs, 0, rows)),
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


def _side_by_side(*weights: Tensor) -> list[Tensor]:
    # As cuDNN wants them, in one piece of memory; torch would warn, and copy them there itself.
    flat = torch.cat([weight.flatten() for weight in weights])
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _missing(size: int, multiple: int) -> int:
    return -size % multiple
