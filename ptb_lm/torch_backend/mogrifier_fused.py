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
from ptb_lm.torch_backend import cpu, lstm_fused
from ptb_lm.torch_backend.cells import LayerState, LSTMState
from ptb_lm.torch_backend.lstm_fused import slopes, split_steps, states_before, take_last_steps
from ptb_lm.torch_backend.native import Kernels, mogrifier


class BlockFusedLayer(lstm_fused.BlockFusedLayer):
    """One operation for the sequence, with its own gradient."""

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
    """A round over a sequence: its weights, and what it computes of all steps.

    Attributes:
        tanh_PW: The gate, less 1.
        gated_PW: x or h after the round.
        inner_Pk: What the first factor gives; None if there is no rank.
        d_z_PW: The gradient with respect to z; None before the backward pass.
        d_inner_Pk: The same of inner_Pk.

    Args:
        weights: Its weights.
        packed: P.
        kernels: Our own kernels, if they compute it; they want wider rows.
    """

    def __init__(self, weights: Weights, packed: int, kernels: Kernels | None) -> None:
        self.weights = weights
        self.side, self.kernel, self.right_kW, self.bias_W = weights
        self._packed, self._kernels = packed, kernels
        width, self._rank = len(self.bias_W), 0 if self.right_kW is None else len(self.right_kW)
        self.tanh_PW = self.bias_W.new_empty(packed, width)
        self.gated_PW = self._new_rows(width)
        self.inner_Pk = self._new_rows(self._rank) if self._rank else None
        self.d_z_PW: Tensor | None = None
        self.d_inner_Pk: Tensor | None = None

    def _new_rows(self, width: int) -> Tensor:
        if self._kernels is None:
            return self.bias_W.new_empty(self._packed, width)
        return new_padded(self._kernels, self.bias_W, self._packed, width)

    def connect(self, pair_P: list[Tensor]) -> None:
        """Keep x and h before the round for the backward pass, and replace one of them by that after it.

        Args:
            pair_P: x and h of all steps.
        """
        self.by_PV, self.before_PW = pair_P[1 - self.side], pair_P[self.side]
        self.d_z_PW = self._new_rows(len(self.bias_W))
        self.d_inner_Pk = self._new_rows(self._rank) if self._rank else None
        pair_P[self.side] = self.gated_PW

    def tensors(self) -> mogrifier.RoundTensors:
        """Return what the kernels read and write."""
        return mogrifier.RoundTensors(
            self.kernel,
            self.right_kW,
            self.bias_W,
            self.inner_Pk,
            self.tanh_PW,
            self.gated_PW,
            self.d_z_PW,
            self.d_inner_Pk,
        )

    def write_gradients(self, d_weights: Weights) -> None:
        """Write the gradients with respect to the weights, of all steps, to their places."""
        assert self.d_z_PW is not None
        d_product = self.d_z_PW
        torch.sum(d_product, 0, out=d_weights.bias_W)
        if self.inner_Pk is not None and self.d_inner_Pk is not None:
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
        packed, (batch, hidden) = len(x_PI), h_BH.shape
        kernels = cpu.find_recurrence_kernels(x_PI)
        rounds = [Round(each, packed, kernels) for each in take_apart(weights)]
        # The state before the first step, then after each.
        c_all = c_BH.new_empty(batch + packed, hidden)
        if kernels is None:
            h_all = h_BH.new_empty(batch + packed, hidden)
        else:
            h_all = new_padded(kernels, h_BH, batch + packed, hidden)
            x_PI = new_padded(kernels, x_PI, packed, x_PI.shape[1]).copy_(x_PI)
        h_all[:batch], c_all[:batch] = h_BH, c_BH
        gates_PG = x_PI.new_empty(packed, 4 * hidden)
        kept = [x_PI, h_all, c_all, gates_PG]
        if kernels is None:
            kept.append(_run_by_operations(weights, rounds, running, *kept))
        else:
            mogrifier.forward(
                kernels, _layer_tensors(weights, *kept), [each.tensors() for each in rounds], running
            )
        ctx.running, ctx.names, ctx.rounds, ctx.kernels = running, names, rounds, kernels
        ctx.save_for_backward(*parameters, *kept)
        return h_all[batch:], take_last_steps(c_all[batch:], running).clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to each input; None if it is not needed."""
        d_output_PH, d_c_last_BH = grad_outputs
        weights = dict(zip(ctx.names, ctx.saved_tensors, strict=False))
        kept = ctx.saved_tensors[len(weights) :]
        running, rounds, (x_PI, h_all, *_) = ctx.running, ctx.rounds, kept
        pair_P = [x_PI, states_before(h_all, running)]
        for each in rounds:
            each.connect(pair_P)
        d_c_BH = d_c_last_BH.clone(memory_format=torch.contiguous_format)
        if ctx.kernels is None:
            d_gates_PG, d_x_PI, d_h_BH = _run_back_by_operations(
                weights, rounds, running, d_output_PH, d_c_BH, *kept
            )
        else:
            layer, tensors = _layer_tensors(weights, *kept), [each.tensors() for each in rounds]
            d_gates_PG, d_x_PI, d_h_BH = mogrifier.backward(
                ctx.kernels, layer, tensors, running, d_output_PH, d_c_BH
            )
        d_weights = {name: torch.empty_like(weight) for name, weight in weights.items()}
        for each, places in zip(rounds, take_apart(d_weights), strict=True):
            each.write_gradients(places)
        for name, last_P in zip(("kernel", "recurrent_kernel"), pair_P, strict=True):
            cpu.multiply_transposed(last_P, d_gates_PG, out=d_weights[name])
        torch.sum(d_gates_PG, 0, out=d_weights["bias"])
        return None, None, d_x_PI, d_h_BH.to(x_PI.dtype), d_c_BH, *d_weights.values()


def new_padded(kernels: Kernels, like: Tensor, rows: int, width: int) -> Tensor:
    """Return a matrix of a type and a device, a part of one whose rows are as wide as the kernels want."""
    return like.new_zeros(rows, kernels.state_width(width, like.dtype))[:, :width]


def _layer_tensors(
    weights: Mapping[str, Tensor], x_PI: Tensor, h_all: Tensor, c_all: Tensor, gates_PG: Tensor
) -> mogrifier.LayerTensors:
    """Return what the kernels read and write of a layer."""
    kernel, recurrent_kernel, bias = (weights[name] for name in ("kernel", "recurrent_kernel", "bias"))
    return mogrifier.LayerTensors(x_PI, kernel, recurrent_kernel, bias, gates_PG, h_all, c_all)


def _run_by_operations(
    weights: Mapping[str, Tensor],
    rounds: Sequence[Round],
    running: tuple[int, ...],
    x_PI: Tensor,
    h_all: Tensor,
    c_all: Tensor,
    gates_PG: Tensor,
) -> Tensor:
    """Run a layer by torch's operations, as the kernels do, and return tanh(c) of all steps."""
    hidden = h_all.shape[1]
    kernel, recurrent_kernel, bias = (weights[name] for name in ("kernel", "recurrent_kernel", "bias"))
    tanh_c_PH = x_PI.new_empty(len(x_PI), hidden)
    # Views are made for all steps at once: in a small layer, one at a time costs as much as the products.
    (h_before, h_after), (c_before, c_after) = (split_steps(every, running) for every in (h_all, c_all))
    x, gates, tanh_c = (every.split(running) for every in (x_PI, gates_PG, tanh_c_PH))
    through_sigmoid = gates_PG[:, : 2 * hidden].split(running)
    i, f, g, o = (gate_PH.split(running) for gate_PH in gates_PG.split(hidden, dim=1))
    tanh, gated = (
        [part.split(running) for part in parts]
        for parts in ([each.tanh_PW for each in rounds], [each.gated_PW for each in rounds])
    )
    inner = [None if each.inner_Pk is None else each.inner_Pk.split(running) for each in rounds]
    # The argument of tanh is z / 2. To halve a factor is exact.
    last_factors = [each.kernel if each.right_kW is None else each.right_kW for each in rounds]
    halves = [(each.bias_W / 2, factor / 2) for each, factor in zip(rounds, last_factors, strict=True)]
    with cpu.use_float32_library(x_PI):
        for t in range(len(running)):
            pair = [x[t], h_before[t]]
            for number, each in enumerate(rounds):
                by, before = pair[1 - each.side], pair[each.side]
                first = inner[number]
                if first is not None:
                    by = torch.mm(by, each.kernel, out=first[t])
                half_bias, half_factor = halves[number]
                torch.addmm(half_bias, by, half_factor, out=tanh[number][t]).tanh_()
                pair[each.side] = torch.addcmul(before, before, tanh[number][t], out=gated[number][t])
            torch.addmm(bias, pair[0], kernel, out=gates[t]).addmm_(pair[1], recurrent_kernel)
            through_sigmoid[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], c_before[t], out=c_after[t]).addcmul_(i[t], g[t])
            torch.tanh(c_after[t], out=tanh_c[t])
            torch.mul(o[t], tanh_c[t], out=h_after[t])
    return tanh_c_PH


def _run_back_by_operations(
    weights: Mapping[str, Tensor],
    rounds: Sequence[Round],
    running: tuple[int, ...],
    d_output_PH: Tensor,
    d_c_BH: Tensor,
    x_PI: Tensor,
    h_all: Tensor,
    c_all: Tensor,
    gates_PG: Tensor,
    tanh_c_PH: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `mogrifier.backward` returns, by torch's operations."""
    batch, hidden = d_c_BH.shape
    d_gates_PG, through_PH = slopes(gates_PG, states_before(c_all, running), h_all[batch:], tanh_c_PH)
    for each in rounds:
        assert each.d_z_PW is not None
        # The slope by z, before (1 - tanh tanh) / 2, becomes the gradient step by step.
        by_tanh_PW = each.before_PW * each.tanh_PW
        torch.addcmul(each.before_PW, by_tanh_PW, each.tanh_PW, value=-1, out=each.d_z_PW).div_(2)
    d_x_PI = torch.empty_like(x_PI)
    f, by_h_PH = gates_PG[:, hidden : 2 * hidden], d_gates_PG[:, 3 * hidden :]
    by_c = d_gates_PG[:, : 3 * hidden].view(len(x_PI), 3, hidden).split(running)
    d_output, d_gates, by_h, through, forgotten, d_x = (
        every.split(running) for every in (d_output_PH, d_gates_PG, by_h_PH, through_PH, f, d_x_PI)
    )
    tanh, d_z = ([getattr(each, name).split(running) for each in rounds] for name in ("tanh_PW", "d_z_PW"))
    d_inner = [None if each.d_inner_Pk is None else each.d_inner_Pk.split(running) for each in rounds]
    # A sample that has ended waits in these, below the ones that run, until its last step is reached.
    d_h_BH = torch.zeros_like(h_all[:batch])
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
            d_pair = (d_x[t], d_h)
            for number, each in reversed(list(enumerate(rounds))):
                d_gated, d_product = d_pair[each.side], d_z[number][t].mul_(d_pair[each.side])
                d_gated.addcmul_(d_gated, tanh[number][t])
                first = d_inner[number]
                if first is not None and each.right_kW is not None:
                    d_product = torch.mm(d_product, each.right_kW.T, out=first[t])
                d_pair[1 - each.side].addmm_(d_product, each.kernel.T)
    return d_gates_PG, d_x_PI, d_h_BH


def take_apart(weights: Mapping[str, Tensor]) -> list[Weights]:
    """Return views of the weights of each round, or of their gradients, in the order of the rounds."""
    apart = []
    for number in range(sum(len(weights[name]) for name in GATES if name in weights)):
        index, side = divmod(number, 2)
        name = GATES[side]
        right = weights[name + RIGHT][index] if name + RIGHT in weights else None
        apart.append(Weights(side, weights[name][index], right, weights[name + BIAS][index]))
    return apart
