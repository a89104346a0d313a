"""The Mogrifier (ptb_lm.model.cells.mogrifier_lstm) in torch, block_fused: one operation for a sequence.

Each product of a step needs the one before it. What is left for all steps at once are the slopes of the
nonlinearities and the gradients with respect to the weights. What the steps compute lies in buffers that are
made once.

A round's gate is 2 sigmoid(z) = 1 + tanh(z / 2). So a round is x + x tanh, one operation, and in half
precision a tanh keeps digits that a gate near 1 would lose.

Shapes: T = time steps, B = batch, P = steps of all samples, packed as ptb_lm.torch_backend.lstm_fused
describes; I = input width, H = hidden units, G = 4H, k = rank; W = width of what a round gates, I or H, and V
= width of the other, by which it is gated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from ptb_lm.model.cells.mogrifier_lstm import BIAS, GATES, RIGHT
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.cells import LayerState, LSTMState, PackedLayer, widen_cell
from ptb_lm.torch_backend.lstm_fused import slopes, split_steps, states_before, take_last_steps


class BlockFusedLayer(PackedLayer):
    """One operation for the sequence, with its own gradient.

    In half precision the carried c, a sum that grows at every step, is of float32.
    """

    @override
    def zero_state(self, batch_size: int) -> LayerState:
        return widen_cell(super().zero_state(batch_size))

    @override
    def forward(self, x_TBI: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        steps, batch, _ = x_TBI.shape
        output_PH, last = self.forward_packed(x_TBI.flatten(0, 1), state, (batch,) * steps)
        return output_PH.view(steps, batch, -1), last

    @override
    def forward_packed(
        self, x_PI: Tensor, state: LayerState, running: tuple[int, ...]
    ) -> tuple[Tensor, LSTMState]:
        weights = dict(self.named_parameters())
        output_PH, c_BH = FusedSequence.apply(  # type: ignore[no-untyped-call]
            running, tuple(weights), x_PI, *state, *weights.values()
        )
        return output_PH, (take_last_steps(output_PH, running), c_BH)


class Weights(NamedTuple):
    """The weights of a round, or the gradients with respect to them."""

    side: int  # 0: it gates x; 1: it gates h
    kernel: Tensor  # [V, W]; of a rank [V, k]
    right_kW: Tensor | None
    bias_W: Tensor


class Round:
    """A round over a sequence, step by step forward, then step by step back.

    Args:
        weights: Its weights.
        packed: P.
        running: The number of samples that have a step, for each of T.
    """

    def __init__(self, weights: Weights, packed: int, running: tuple[int, ...]) -> None:
        self.side, self.kernel, self.right_kW, bias_W = weights
        self.running = running
        self.gated_PW, self.tanh_PW = bias_W.new_empty(2, packed, len(bias_W))  # x or h after it
        self.inner_Pk = None if self.right_kW is None else bias_W.new_empty(packed, len(self.right_kW))
        # The argument of tanh is z / 2. To halve a factor is exact.
        self.half_bias_W = bias_W / 2
        self.half_factor = (self.kernel if self.right_kW is None else self.right_kW) / 2
        # Views are made for all steps at once: in a small layer, one at a time costs as much as the products.
        self.gated, self.tanh = self.gated_PW.split(running), self.tanh_PW.split(running)
        self.inner = None if self.inner_Pk is None else self.inner_Pk.split(running)

    def gate(self, t: int, pair: list[Tensor]) -> None:
        """Replace x or h of a pair by what the round makes of it at step t."""
        by, gated = pair[1 - self.side], pair[self.side]
        if self.inner is not None:
            by = torch.mm(by, self.kernel, out=self.inner[t])
        torch.addmm(self.half_bias_W, by, self.half_factor, out=self.tanh[t]).tanh_()
        pair[self.side] = torch.addcmul(gated, gated, self.tanh[t], out=self.gated[t])

    def prepare_backward(self, pair_P: list[Tensor]) -> None:
        """Compute for all steps what `gate_back` needs, and replace x or h of a pair as `gate` does.

        Args:
            pair_P: x and h of all steps, before the round.
        """
        self.by_PV, before_PW = pair_P[1 - self.side], pair_P[self.side]
        # The slope by z: before (1 - tanh tanh) / 2. `gate_back` makes of it the gradient with respect to z.
        self.d_z_PW = torch.addcmul(before_PW, before_PW * self.tanh_PW, self.tanh_PW, value=-1).div_(2)
        self.d_inner_Pk = None if self.inner_Pk is None else torch.empty_like(self.inner_Pk)
        self.d_z = self.d_z_PW.split(self.running)
        self.d_inner = None if self.d_inner_Pk is None else self.d_inner_Pk.split(self.running)
        pair_P[self.side] = self.gated_PW

    def gate_back(self, t: int, d_pair: Sequence[Tensor]) -> None:
        """Replace the gradients with respect to x and h after the round, at step t, by those before it."""
        d_gated, d_z = d_pair[self.side], self.d_z[t]
        d_z.mul_(d_gated)
        d_gated.addcmul_(d_gated, self.tanh[t])
        if self.right_kW is not None and self.d_inner is not None:
            d_z = torch.mm(d_z, self.right_kW.T, out=self.d_inner[t])
        d_pair[1 - self.side].addmm_(d_z, self.kernel.T)

    def write_gradients(self, d_weights: Weights) -> None:
        """Write the gradients with respect to the weights, of all steps, to their places."""
        torch.sum(self.d_z_PW, 0, out=d_weights.bias_W)
        d_product = self.d_z_PW
        if d_weights.right_kW is not None and self.inner_Pk is not None and self.d_inner_Pk is not None:
            cpu.multiply_transposed(self.inner_Pk, d_product, out=d_weights.right_kW)
            d_product = self.d_inner_Pk
        cpu.multiply_transposed(self.by_PV, d_product, out=d_weights.kernel)


class FusedSequence(torch.autograd.Function):
    """(running, names, x_PI, h_BH, c_BH, *weights) -> (output_PH, each sample's last c_BH).

    `running` is the number of samples that have a step, for each of T; `names` are those of the weights. c is
    of float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        running: tuple[int, ...],
        names: tuple[str, ...],
        x_PI: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last cell states; keep the activations for the backward pass."""
        weights = dict(zip(names, parameters, strict=True))
        kernel, recurrent_kernel, bias = (weights[name] for name in ("kernel", "recurrent_kernel", "bias"))
        packed, (batch, hidden) = len(x_PI), h_BH.shape
        # The state before the first step, then after each.
        h_all, c_all = (part_BH.new_empty(batch + packed, hidden) for part_BH in (h_BH, c_BH))
        h_all[:batch], c_all[:batch] = h_BH, c_BH
        gates_PG, tanh_c_PH = x_PI.new_empty(packed, 4 * hidden), x_PI.new_empty(packed, hidden)
        rounds = [Round(each, packed, running) for each in take_apart(weights)]
        (h_before, h_after), (c_before, c_after) = (split_steps(every, running) for every in (h_all, c_all))
        x, gates, tanh_c = (every.split(running) for every in (x_PI, gates_PG, tanh_c_PH))
        through_sigmoid = gates_PG[:, : 2 * hidden].split(running)
        i, f, g, o = (gate_PH.split(running) for gate_PH in gates_PG.split(hidden, dim=1))
        with cpu.use_float32_library(x_PI):
            for t in range(len(running)):
                pair = [x[t], h_before[t]]
                for each in rounds:
                    each.gate(t, pair)
                torch.addmm(bias, pair[0], kernel, out=gates[t]).addmm_(pair[1], recurrent_kernel)
                through_sigmoid[t].sigmoid_()
                g[t].tanh_()
                o[t].sigmoid_()
                torch.mul(f[t], c_before[t], out=c_after[t]).addcmul_(i[t], g[t])
                torch.tanh(c_after[t], out=tanh_c[t])
                torch.mul(o[t], tanh_c[t], out=h_after[t])
        ctx.running, ctx.names, ctx.rounds = running, names, rounds
        ctx.save_for_backward(x_PI, h_all, c_all, gates_PG, tanh_c_PH, *parameters)
        return h_all[batch:], take_last_steps(c_all[batch:], running).clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to each input; None if it is not needed."""
        d_output_PH, d_c_last_BH = grad_outputs
        x_PI, h_all, c_all, gates_PG, tanh_c_PH, *parameters = ctx.saved_tensors
        weights = dict(zip(ctx.names, parameters, strict=True))
        running, rounds, (batch, hidden) = ctx.running, ctx.rounds, d_c_last_BH.shape
        d_gates_PG, through_PH = slopes(gates_PG, states_before(c_all, running), h_all[batch:], tanh_c_PH)
        pair_P = [x_PI, states_before(h_all, running)]
        for each in rounds:
            each.prepare_backward(pair_P)
        d_x_PI = torch.empty_like(x_PI)
        f, by_h_PH = gates_PG[:, hidden : 2 * hidden], d_gates_PG[:, 3 * hidden :]
        by_c = d_gates_PG[:, : 3 * hidden].view(len(x_PI), 3, hidden).split(running)
        d_output, d_gates, by_h, through, forgotten, d_x = (
            every.split(running) for every in (d_output_PH, d_gates_PG, by_h_PH, through_PH, f, d_x_PI)
        )
        # A sample that has ended waits in these, below the ones that run, until its last step is reached.
        d_h_BH, d_c_BH = torch.zeros_like(h_all[:batch]), d_c_last_BH.clone()
        with cpu.use_float32_library(x_PI):
            for t in reversed(range(len(running))):
                d_h, d_c = d_h_BH[: running[t]], d_c_BH[: running[t]]
                d_h.add_(d_output[t])
                d_c.addcmul_(d_h, through[t])
                by_c[t].mul_(d_c[:, None])
                by_h[t].mul_(d_h)
                d_c.mul_(forgotten[t])
                torch.mm(d_gates[t], weights["kernel"].T, out=d_x[t])
                torch.mm(d_gates[t], weights["recurrent_kernel"].T, out=d_h)
                for each in reversed(rounds):
                    each.gate_back(t, (d_x[t], d_h))
        d_weights = {name: torch.empty_like(weight) for name, weight in weights.items()}
        for each, places in zip(rounds, take_apart(d_weights), strict=True):
            each.write_gradients(places)
        for name, last_P in zip(("kernel", "recurrent_kernel"), pair_P, strict=True):
            cpu.multiply_transposed(last_P, d_gates_PG, out=d_weights[name])
        torch.sum(d_gates_PG, 0, out=d_weights["bias"])
        return None, None, d_x_PI, d_h_BH, d_c_BH, *d_weights.values()


def take_apart(weights: Mapping[str, Tensor]) -> list[Weights]:
    """Return views of the weights of each round, or of their gradients, in the order of the rounds."""
    apart = []
    for number in range(sum(len(weights[name]) for name in GATES if name in weights)):
        index, side = divmod(number, 2)
        name = GATES[side]
        right = weights[name + RIGHT][index] if name + RIGHT in weights else None
        apart.append(Weights(side, weights[name][index], right, weights[name + BIAS][index]))
    return apart
