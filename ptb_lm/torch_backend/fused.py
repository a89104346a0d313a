"""A whole LSTM layer as one operation for autograd.

What does not depend on the step before is done for all steps in one product: the input projection, and in
the backward pass the gradients of the kernels and of the input. The loop over time keeps one small product
and the pointwise work, in place.

Shapes: T = time steps, B = batch, I = input width, H = hidden units; gates in the order i, f, g, o along 4H.
"""

from typing import Any

import torch
from torch import Tensor


class FusedSequence(torch.autograd.Function):
    """(x_TBI, h_BH, c_BH, kernel, recurrent_kernel, bias) -> (output_TBH, the last c_BH)."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TBI: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        kernel: Tensor,
        recurrent_kernel: Tensor,
        bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last cell state; keep the activations for the backward pass."""
        steps, batch, _ = x_TBI.shape
        hidden = h_BH.shape[1]
        gates_TBG = torch.addmm(bias, x_TBI.flatten(0, 1), kernel).view(steps, batch, 4 * hidden)
        # Index t holds the state before step t.
        h_SBH, c_SBH = (state.new_empty(steps + 1, batch, hidden) for state in (h_BH, c_BH))
        tanh_c_TBH = h_BH.new_empty(steps, batch, hidden)
        h_SBH[0], c_SBH[0] = h_BH, c_BH
        for t in range(steps):
            gates = gates_TBG[t].addmm_(h_SBH[t], recurrent_kernel)
            gates[:, : 2 * hidden].sigmoid_()
            gates[:, 2 * hidden : 3 * hidden].tanh_()
            gates[:, 3 * hidden :].sigmoid_()
            i, f, g, o = gates.split(hidden, dim=1)
            torch.mul(f, c_SBH[t], out=c_SBH[t + 1]).addcmul_(i, g)
            torch.tanh(c_SBH[t + 1], out=tanh_c_TBH[t])
            torch.mul(o, tanh_c_TBH[t], out=h_SBH[t + 1])
        ctx.save_for_backward(x_TBI, kernel, recurrent_kernel, gates_TBG, h_SBH, c_SBH, tanh_c_TBH)
        return h_SBH[1:], c_SBH[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all six inputs; None for an input that wants none."""
        d_output_TBH, d_c_last_BH = grad_outputs
        x_TBI, kernel, recurrent_kernel, gates_TBG, h_SBH, c_SBH, tanh_c_TBH = ctx.saved_tensors
        steps, batch, hidden = tanh_c_TBH.shape
        i, f, g, o = gates_TBG.split(hidden, dim=2)
        # Everything but the gradient that flows back through time, for all steps at once: the gradient of a
        # gate before its nonlinearity is one of these times d_c, or for o times d_h.
        factor_TBG = torch.cat(
            [g * i * (1 - i), c_SBH[:-1] * f * (1 - f), i * (1 - g * g), tanh_c_TBH * o * (1 - o)], dim=2
        )
        through_TBH = o * (1 - tanh_c_TBH * tanh_c_TBH)  # d_c gets this share of d_h
        d_gates_TBG = torch.empty_like(gates_TBG)
        d_h_BH, d_c_BH = torch.zeros_like(d_c_last_BH), d_c_last_BH.clone()
        recurrent_transposed = recurrent_kernel.T
        for t in reversed(range(steps)):
            d_h_BH = d_h_BH.add_(d_output_TBH[t])
            d_c_BH.addcmul_(d_h_BH, through_TBH[t])
            by_c, factor = d_gates_TBG[t, :, : 3 * hidden], factor_TBG[t]
            torch.mul(
                factor[:, : 3 * hidden].view(batch, 3, hidden),
                d_c_BH[:, None],
                out=by_c.view(batch, 3, hidden),
            )
            torch.mul(factor[:, 3 * hidden :], d_h_BH, out=d_gates_TBG[t, :, 3 * hidden :])
            d_h_BH = d_gates_TBG[t] @ recurrent_transposed
            d_c_BH.mul_(f[t])
        d_gates_NG = d_gates_TBG.flatten(0, 1)
        return (
            # Nobody wants that of the data.
            (d_gates_NG @ kernel.T).view_as(x_TBI) if ctx.needs_input_grad[0] else None,
            d_h_BH,
            d_c_BH,
            x_TBI.flatten(0, 1).T @ d_gates_NG,
            h_SBH[:-1].flatten(0, 1).T @ d_gates_NG,
            d_gates_NG.sum(0),
        )
