"""The GRU (ptb_lm.model.cells.gru) in torch, two ways: basic and cudnn.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.torch_backend.cells import CanonicalLayer, LibraryLayer, ParameterView


class BasicLayer(CanonicalLayer):
    """Gates written out of elementary operations; a Python loop over time."""

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor
    recurrent_bias: Tensor

    @override
    def forward(self, x_TBI: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        (h_BH,) = state
        outputs = []
        for x_BI in x_TBI.unbind():
            a_r, a_z, a_n = (x_BI @ self.kernel + self.bias).chunk(3, dim=-1)
            b_r, b_z, b_n = (h_BH @ self.recurrent_kernel).chunk(3, dim=-1)
            r, z = torch.sigmoid(a_r + b_r), torch.sigmoid(a_z + b_z)
            n = torch.tanh(a_n + r * (b_n + self.recurrent_bias))
            h_BH = (1 - z) * n + z * h_BH
            outputs.append(h_BH)
        return torch.stack(outputs), (h_BH,)


class CudnnLayer(LibraryLayer):
    """torch.nn.GRU: cuDNN on a GPU, ATen on a CPU."""

    module_type = nn.GRU

    @override
    def prepare_second_bias(self, bias: nn.Parameter) -> None:
        nn.init.zeros_(bias)
        bias.register_hook(self._keep_candidate)

    @override
    def direction_parameters(self, suffix: str) -> dict[str, ParameterView]:
        candidate = slice(2 * self.module.hidden_size, None)
        second = self.module.get_parameter(f"bias_hh{suffix}")
        return {
            **super().direction_parameters(suffix),
            "recurrent_bias": ParameterView(second, rows=candidate),
        }

    def _keep_candidate(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to a second bias, with zeros for all gates but the candidate."""
        kept = torch.zeros_like(gradient)
        kept[2 * self.module.hidden_size :] = gradient[2 * self.module.hidden_size :]
        return kept
