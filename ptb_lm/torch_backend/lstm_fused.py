"""The LSTM (ptb_lm.model.cells.lstm) in torch, block_fused: a whole layer as one operation for autograd.

One product for all steps computes what does not depend on the step before: the input projection, and in the
backward pass the gradients with respect to the kernels and the input. The loop over time keeps one small
product and the pointwise work, in place. On a CPU the loop itself is a kernel of our own
(ptb_lm.torch_backend.native), if there is one.

Packed sequences are as torch's: first the first step of each sample, then the second of each that has one,
and so on. Samples are sorted by length, the longest first. If all are of one length that is the flattened [T,
B].

Shapes: T = time steps, B = batch, P = steps of all samples, I = input width, H = hidden units; gates in the
order i, f, g, o along G = 4H.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.cells import LayerState, LSTMState, PackedLayer
from ptb_lm.torch_backend.native import Kernels


class BlockFusedLayer(PackedLayer):
    """One operation for the sequence, with its own gradient.

    In half precision the carried c, a sum that grows at every step, is of float32.
    """

    float32_states = ("c",)

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor

    @override
    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        steps, batch, _ = x_TBI.shape
        output_PH, last = self.forward_packed(x_TBI.flatten(0, 1), state, (batch,) * steps)
        return output_PH.view(steps, batch, -1), last

    @override
    def forward_packed(
        self, x_PI: Tensor, state: LayerState, batch_sizes: tuple[int, ...]
    ) -> tuple[Tensor, LSTMState]:
        output_PH, c_BH = FusedSequence.apply(  # type: ignore[no-untyped-call]
            x_PI, *state, self.kernel, self.recurrent_kernel, self.bias, batch_sizes
        )
        return output_PH, (take_last_steps(output_PH, batch_sizes), c_BH)


class FusedSequence(torch.autograd.Function):
    """(x_PI, h_BH, c_BH, kernel, recurrent_kernel, bias, batch_sizes) -> (output_PH, c_BH).

    `batch_sizes` is the number of samples that have a step, for each of T. The returned c is that after each
    sample's last step. c is of float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_PI: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        kernel: Tensor,
        recurrent_kernel: Tensor,
        bias: Tensor,
        batch_sizes: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last cell states; keep the activations for the backward pass."""
        batch, hidden = h_BH.shape
        kernels = cpu.find_recurrence_kernels(x_PI)
        tanh_c: list[Tensor] = []  # one tensor without kernels; they compute it again
        # The state before the first step, then after each.
        h_all = new_matrix(kernels, h_BH, batch + len(x_PI), hidden)
        c_all = c_BH.new_empty(batch + len(x_PI), hidden)
        h_all[:batch], c_all[:batch] = h_BH, c_BH
        padded_PI = cpu.pad_rows(x_PI)
        if kernels is not None:
            gates_PG = cpu.multiply(padded_PI, kernel)[: len(x_PI)]
            kernels.lstm_forward(gates_PG, bias, recurrent_kernel, h_all, c_all, batch_sizes)
        else:
            with cpu.use_float32_library(x_PI):
                gates_PG = torch.addmm(bias, padded_PI, kernel)[: len(x_PI)]
                steps = ForwardSteps(gates_PG, h_all, c_all, batch_sizes)
                for t, gates in enumerate(steps.gates):
                    gates.addmm_(steps.h_before[t], recurrent_kernel)
                    steps.apply_gates(t)
            tanh_c.append(steps.tanh_c_PH)
        ctx.batch_sizes, ctx.kernels = batch_sizes, kernels
        ctx.save_for_backward(x_PI, kernel, recurrent_kernel, gates_PG, h_all, c_all, *tanh_c)
        return h_all[batch:], take_last_steps(c_all[batch:], batch_sizes)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to each input; None if it is not needed."""
        x_PI, kernel, recurrent_kernel, gates_PG, h_all, c_all, *tanh_c = ctx.saved_tensors
        batch_sizes, kernels = ctx.batch_sizes, ctx.kernels
        d_output_PH, d_c_last_BH = grad_outputs  # the last h is among the outputs
        d_c_BH = d_c_last_BH.clone(memory_format=torch.contiguous_format)
        if kernels is not None:
            d_gates_PG, d_h_BH = kernels.lstm_backward(
                gates_PG, c_all, d_output_PH.contiguous(), recurrent_kernel, d_c_BH, batch_sizes
            )
        else:
            steps = BackwardSteps(gates_PG, h_all, c_all, tanh_c[0], batch_sizes, d_output_PH, d_c_BH)
            with cpu.use_float32_library(x_PI):
                for t in reversed(range(len(batch_sizes))):
                    d_gates, d_h = steps.backprop_gates(t)
                    torch.mm(d_gates, recurrent_kernel.T, out=d_h)
            d_gates_PG, d_h_BH = steps.d_gates_PG, steps.d_h_BH
        return (
            # Not needed with respect to data.
            cpu.multiply(d_gates_PG, kernel.T) if ctx.needs_input_grad[0] else None,
            d_h_BH.to(x_PI.dtype),
            d_c_BH,
            cpu.multiply_transposed(x_PI, d_gates_PG),
            cpu.multiply_transposed(states_before(h_all, batch_sizes), d_gates_PG),
            d_gates_PG.sum(0),
            None,
        )


def new_matrix(kernels: Kernels | None, like: Tensor, rows: int, width: int) -> Tensor:
    """Return a new matrix [rows, width] with the type and device of `like`.

    Without kernels it is uninitialised. For kernels it is the left part of a matrix of zeros whose rows are
    `kernels.state_width` wide, which is `width` or more.
    """
    if kernels is None:
        return like.new_empty(rows, width)
    return like.new_zeros(rows, kernels.state_width(width, like.dtype))[:, :width]


class ForwardSteps:
    """The element-wise part of an LSTM's steps, in place; the caller does the matrix products.

    Views are made for all steps at once: in a small layer, one at a time costs as much as the products.

    Attributes:
        gates: Each step's gates, to be filled with their sums before `apply_gates`.
        h_before: h before each step.
        tanh_c_PH: tanh(c) after each of the steps done so far.

    Args:
        gates_PG: The gates. Each step replaces its sums by the activations.
        h_all: [B + P, H]: the state before the first step, then after each.
        c_all: The same of c.
        batch_sizes: Number of samples that have a step, for each of T.
    """

    def __init__(self, gates_PG: Tensor, h_all: Tensor, c_all: Tensor, batch_sizes: tuple[int, ...]) -> None:
        hidden = h_all.shape[1]
        self.tanh_c_PH = gates_PG.new_empty(len(gates_PG), hidden)
        self.h_before, self._h_after = split_steps(h_all, batch_sizes)
        self._c_before, self._c_after = split_steps(c_all, batch_sizes)
        self.gates, self._tanh_c = gates_PG.split(batch_sizes), self.tanh_c_PH.split(batch_sizes)
        self._input_and_forget = gates_PG[:, : 2 * hidden].split(batch_sizes)
        self._i, self._f, self._g, self._o = (
            gate_PH.split(batch_sizes) for gate_PH in gates_PG.split(hidden, dim=1)
        )

    def apply_gates(self, t: int) -> None:
        """Compute a step's activations, c and h from the sums of its gates."""
        self._input_and_forget[t].sigmoid_()
        self._g[t].tanh_()
        self._o[t].sigmoid_()
        torch.mul(self._f[t], self._c_before[t], out=self._c_after[t]).addcmul_(self._i[t], self._g[t])
        torch.tanh(self._c_after[t], out=self._tanh_c[t])
        torch.mul(self._o[t], self._tanh_c[t], out=self._h_after[t])


class BackwardSteps:
    """The element-wise part of an LSTM's backward steps, in place; the caller does the matrix products.

    Attributes:
        d_gates_PG: The gradient with respect to the gates before their nonlinearities, of the steps done so
            far; of the others, `gate_derivatives`.
        d_h_BH: The gradient with respect to h before the step that was done last. The rows of shorter
            samples, which are the last ones, stay as they are until the loop, which runs backward, reaches
            their last step. So do those of d_c_BH.
        d_c_BH: The same of c.

    Args:
        gates_PG: The gates' activations.
        h_all: [B + P, H]: the state before the first step, then after each.
        c_all: The same of c.
        tanh_c_PH: tanh(c) after each step.
        batch_sizes: Number of samples that have a step, for each of T.
        d_output_PH: dL/doutput, which is that with respect to h after each step.
        d_c_BH: dL/dc_T, to be overwritten.
    """

    def __init__(
        self,
        gates_PG: Tensor,
        h_all: Tensor,
        c_all: Tensor,
        tanh_c_PH: Tensor,
        batch_sizes: tuple[int, ...],
        d_output_PH: Tensor,
        d_c_BH: Tensor,
    ) -> None:
        self._batch_sizes, (batch, hidden) = batch_sizes, d_c_BH.shape
        self.d_h_BH, self.d_c_BH = torch.zeros_like(h_all[:batch]), d_c_BH
        self.d_gates_PG, dh_dc_PH = gate_derivatives(
            gates_PG, states_before(c_all, batch_sizes), h_all[batch:], tanh_c_PH
        )
        dc_da, dh_da = self.d_gates_PG.split([3 * hidden, hidden], dim=1)
        self._dc_da = dc_da.view(len(gates_PG), 3, hidden).split(batch_sizes)
        self._dh_da, self._dh_dc = dh_da.split(batch_sizes), dh_dc_PH.split(batch_sizes)
        self._d_gates, self._d_output = self.d_gates_PG.split(batch_sizes), d_output_PH.split(batch_sizes)
        self._dc_dc_before = gates_PG[:, hidden : 2 * hidden].split(batch_sizes)  # f

    def backprop_gates(self, t: int) -> tuple[Tensor, Tensor]:
        """Take dL/dh and dL/dc of a step back to its gates.

        dL/doutput is added to d_h, and d_c becomes dL/dc before the step.

        Returns:
            (d_gates [samples, G], d_h [samples, H]). The caller overwrites d_h by
            d_gates @ recurrent_kernel.T, which is dL/dh before the step.
        """
        d_h, d_c = self.d_h_BH[: self._batch_sizes[t]], self.d_c_BH[: self._batch_sizes[t]]
        d_h.add_(self._d_output[t])
        d_c.addcmul_(d_h, self._dh_dc[t])
        self._dc_da[t].mul_(d_c[:, None])
        self._dh_da[t].mul_(d_h)
        d_c.mul_(self._dc_dc_before[t])
        return self._d_gates[t], d_h


def gate_derivatives(
    gates_PG: Tensor, c_before_PH: Tensor, h_PH: Tensor, tanh_c_PH: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the derivatives that do not depend on the gradient that flows back through time, for all steps.

    The gradient with respect to a gate before its nonlinearity, a, is d_c * dc/da; for o it is d_h * dh/da.
    These factors are
        i: g i (1 - i)   f: c_before f (1 - f)   g: i (1 - g g)   o: h (1 - o)
    With h = o tanh(c), dh/dc = o (1 - tanh(c)^2) is o - h tanh(c).

    Args:
        gates_PG: The gates' activations.
        c_before_PH: c before each step.
        h_PH: h after each step.
        tanh_c_PH: tanh(c) after each step.

    Returns:
        The gates' derivatives [P, G], and dh/dc [P, H].
    """
    i, f, g, o = gates_PG.chunk(4, dim=1)
    derivatives_PG = torch.empty_like(gates_PG)
    slope_i, slope_f, slope_g, slope_o = derivatives_PG.chunk(4, dim=1)
    torch.mul(i, g, out=slope_g)
    torch.addcmul(slope_g, slope_g, i, value=-1, out=slope_i)
    torch.addcmul(i, slope_g, g, value=-1, out=slope_g)
    torch.addcmul(f, f, f, value=-1, out=slope_f).mul_(c_before_PH)
    torch.addcmul(h_PH, h_PH, o, value=-1, out=slope_o)
    return derivatives_PG, torch.addcmul(o, h_PH, tanh_c_PH, value=-1)


def take_last_steps(every_PH: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """Return the rows of each sample's last step, [B, H], as a copy, so that a state keeps no other rows.

    Args:
        every_PH: Rows of all steps.
        batch_sizes: Number of samples that have a step, for each of T.
    """
    starts = [0, *accumulate(batch_sizes)]
    if batch_sizes[-1] == batch_sizes[0]:
        return every_PH[starts[-2] :].clone()
    rows = {}
    for start, samples, next_samples in zip(starts, batch_sizes, [*batch_sizes[1:], 0], strict=False):
        rows.update({sample: start + sample for sample in range(next_samples, samples)})
    return every_PH[[rows[sample] for sample in sorted(rows)]]


def split_steps(every: Tensor, batch_sizes: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Return views of a state [B + P, H]: before each step of those that have it, and after each."""
    parts = every.split([batch_sizes[0], *batch_sizes])
    return [part[:samples] for part, samples in zip(parts, batch_sizes, strict=False)], list(parts[1:])


def states_before(every: Tensor, batch_sizes: tuple[int, ...]) -> Tensor:
    """Return a state [B + P, H] before each step, [P, H]."""
    if batch_sizes[-1] == batch_sizes[0]:
        return every[: -batch_sizes[0]]
    return torch.cat(split_steps(every, batch_sizes)[0])
