"""A whole LSTM layer as one operation for autograd.

What does not depend on the step before is done for all steps in one product: the input projection, and in
the backward pass the gradients of the kernels and of the input. The loop over time keeps one small product
and the pointwise work, in place.

Shapes: T = time steps, B = batch, I = input width, H = hidden units; gates in the order i, f, g, o along 4H.
"""

from typing import Any

import torch
from torch import Tensor

from ptb_lm.torch_backend.repeated import by_transpose


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
        # Views are made for all steps at once: in a small layer, one at a time costs as much as the products.
        h, c, tanh_c = h_SBH.unbind(), c_SBH.unbind(), tanh_c_TBH.unbind()
        through_sigmoid = gates_TBG[..., : 2 * hidden].unbind()
        i, f, g, o = (gate_TBH.unbind() for gate_TBH in gates_TBG.split(hidden, dim=2))
        for t, gates in enumerate(gates_TBG.unbind()):
            gates.addmm_(h[t], recurrent_kernel)
            through_sigmoid[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], g[t])
            torch.tanh(c[t + 1], out=tanh_c[t])
            torch.mul(o[t], tanh_c[t], out=h[t + 1])
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
        # gate before its nonlinearity is its factor times d_c, or for o times d_h. With h = o tanh(c):
        #   i: g i (1 - i)   f: c_before f (1 - f)   g: i (1 - g g)   o: h (1 - o)   d_c by d_h: o - h tanh(c)
        d_gates_TBG = torch.empty_like(gates_TBG)  # the factors first
        by_i, by_f, by_g, by_o = d_gates_TBG.split(hidden, dim=2)
        h_TBH = h_SBH[1:]
        torch.mul(i, g, out=by_g)
        torch.addcmul(by_g, by_g, i, value=-1, out=by_i)
        torch.addcmul(i, by_g, g, value=-1, out=by_g)
        torch.addcmul(f, f, f, value=-1, out=by_f).mul_(c_SBH[:-1])
        torch.addcmul(h_TBH, h_TBH, o, value=-1, out=by_o)
        through_TBH = torch.addcmul(o, h_TBH, tanh_c_TBH, value=-1)
        d_h_BH, d_c_BH = torch.zeros_like(d_c_last_BH), d_c_last_BH.clone()
        d_c_B1H = d_c_BH[:, None]
        by_c = d_gates_TBG[..., : 3 * hidden].view(steps, batch, 3, hidden).unbind()
        d_output, d_gates, by_h, through, forgotten = (
            every.unbind() for every in (d_output_TBH, d_gates_TBG, by_o, through_TBH, f)
        )
        through_recurrence = by_transpose(recurrent_kernel, batch)
        for t in reversed(range(steps)):
            d_h_BH.add_(d_output[t])
            d_c_BH.addcmul_(d_h_BH, through[t])
            by_c[t].mul_(d_c_B1H)
            by_h[t].mul_(d_h_BH)
            d_h_BH = through_recurrence(d_gates[t])
            d_c_BH.mul_(forgotten[t])
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
