"""The LSTM with layer normalisation (ptb_lm.model.cells.layer_norm_lstm) in torch.

Shapes: B = batch, I = input width, H = hidden units.
"""

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ptb_lm.model.cells.layer_norm_lstm import EPSILON
from ptb_lm.torch_backend.cells import CanonicalLayer, LSTMState
from ptb_lm.torch_backend.lstm import SteppedLayer


class BasicLayer(CanonicalLayer, SteppedLayer):
    """Elementary operations and torch's layer normalisation.

    In half precision only the products and h are halves: a normalisation would enlarge their rounding, and c
    is added to at every step.
    """

    float32_states = ("c",)

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor
    kernel_gain: Tensor
    recurrent_gain: Tensor
    cell_gain: Tensor
    cell_bias: Tensor

    @override
    def step(self, x_BI: Tensor, state: LSTMState) -> LSTMState:
        h_BH, c_BH = state
        from_x = _normalise(x_BI @ self.kernel, self.kernel_gain, self.bias)
        from_h = _normalise(h_BH @ self.recurrent_kernel, self.recurrent_gain, None)
        i, f, g, o = (from_x + from_h).chunk(4, dim=-1)
        c_BH = torch.sigmoid(f) * c_BH + torch.sigmoid(i) * torch.tanh(g)
        h_BH = torch.sigmoid(o) * torch.tanh(_normalise(c_BH, self.cell_gain, self.cell_bias))
        return h_BH.to(x_BI.dtype), c_BH


def _normalise(x: Tensor, gain: Tensor, bias: Tensor | None, epsilon: float = EPSILON) -> Tensor:
    """Return each row with mean 0 and variance 1, times the gain, plus the bias; in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    wide_bias = None if bias is None else bias.to(wide)
    return functional.layer_norm(x.to(wide), gain.shape, gain.to(wide), wide_bias, epsilon)
