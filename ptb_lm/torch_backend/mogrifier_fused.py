"""The Mogrifier (ptb_lm.model.cells.mogrifier_lstm) in torch, block_fused: one operation for a sequence.

Each product of a step needs the one before it. What is left for all steps at once are the derivatives of the
nonlinearities and the gradients with respect to the weights. What the steps compute lies in buffers that are
made once.

A round's gate is 2 sigmoid(z) = 1 + tanh(z / 2). So a round is x + x tanh, one operation, and in half
precision a tanh keeps digits that a gate near 1 would lose; a gate near 0 loses some of its own.

Shapes: T = time steps, B = batch, P = steps of all samples, packed as ptb_lm.torch_backend.lstm_fused
describes; I = input width, H = hidden units, G = 4H, k = rank; W = width of what a round gates, I or H, and V
= width of the other, by which it is gated.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ptb_lm.model.cells.mogrifier_lstm import BIAS, GATES, RIGHT
from ptb_lm.torch_backend import cpu, lstm_fused
from ptb_lm.torch_backend.cells import LayerState, LSTMState
from ptb_lm.torch_backend.lstm_fused import (
    BackwardSteps,
    ForwardSteps,
    new_matrix,
    states_before,
    take_last_steps,
)
from ptb_lm.torch_backend.native import mogrifier
from ptb_lm.torch_backend.native.mogrifier import LayerTensors, Round, RoundGradients

LSTM_WEIGHTS = ("kernel", "recurrent_kernel", "bias")

Factors = tuple[Tensor, Tensor, Tensor]  # of a round: kernel [V, W] and right_kW of 0 rows, or [V, k]; bias_W


class BlockFusedLayer(lstm_fused.BlockFusedLayer):
    """One operation for the sequence, with its own gradient."""

    @override
    def forward_packed(
        self, x_PI: Tensor, state: LayerState, batch_sizes: tuple[int, ...]
    ) -> tuple[Tensor, LSTMState]:
        weights = dict(self.named_parameters())
        output_PH, c_BH = FusedSequence.apply(  # type: ignore[no-untyped-call]
            batch_sizes, tuple(weights), x_PI, *state, *weights.values()
        )
        return output_PH, (take_last_steps(output_PH, batch_sizes), c_BH)


class FusedSequence(torch.autograd.Function):
    """(batch_sizes, names, x_PI, h_BH, c_BH, *weights) -> (output_PH, c_BH after each sample's last step).

    `batch_sizes` is the number of samples that have a step, for each of T; `names` are those of the weights.
    c is of float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        batch_sizes: tuple[int, ...],
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
        new_rows = partial(new_matrix, kernels, x_PI)
        rounds = [
            Round(
                kernel,
                right_kW,
                bias_W,
                inner_Pk=new_rows(packed, len(right_kW)),
                tanh_PW=bias_W.new_empty(packed, len(bias_W)),
                gated_PW=new_rows(packed, len(bias_W)),
            )
            for kernel, right_kW, bias_W in split_rounds(weights)
        ]
        # The state before the first step, then after each.
        h_all, c_all = new_rows(batch + packed, hidden), c_BH.new_empty(batch + packed, hidden)
        h_all[:batch], c_all[:batch] = h_BH, c_BH
        if kernels is not None:
            x_PI = new_rows(*x_PI.shape).copy_(x_PI)
        kept = [x_PI, x_PI.new_empty(packed, 4 * hidden), h_all, c_all]
        layer = LayerTensors(*kept, *(weights[name] for name in LSTM_WEIGHTS))
        if kernels is None:
            kept.append(_run_by_operations(layer, rounds, batch_sizes))
        else:
            mogrifier.forward(kernels, layer, rounds, batch_sizes)
        ctx.batch_sizes, ctx.names, ctx.rounds, ctx.kernels = batch_sizes, names, rounds, kernels
        ctx.save_for_backward(*parameters, *kept)
        return h_all[batch:], take_last_steps(c_all[batch:], batch_sizes)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to each input; None if it is not needed."""
        d_output_PH, d_c_last_BH = grad_outputs
        weights = dict(zip(ctx.names, ctx.saved_tensors, strict=False))
        x_PI, gates_PG, h_all, c_all, *tanh_c = ctx.saved_tensors[len(weights) :]
        batch_sizes, rounds, kernels, packed = ctx.batch_sizes, ctx.rounds, ctx.kernels, len(x_PI)
        layer = LayerTensors(x_PI, gates_PG, h_all, c_all, *(weights[name] for name in LSTM_WEIGHTS))
        new_rows = partial(new_matrix, kernels, x_PI)
        pair_P, pairs = [x_PI, states_before(h_all, batch_sizes)], []  # x and h before each round
        for number, each in enumerate(rounds):
            pairs.append(tuple(pair_P))
            pair_P[number % 2] = each.gated_PW
        gradients = [
            RoundGradients(new_rows(packed, len(each.bias_W)), new_rows(packed, len(each.right_kW)))
            for each in rounds
        ]
        d_c_BH = d_c_last_BH.clone(memory_format=torch.contiguous_format)
        if kernels is None:
            back = BackwardSteps(gates_PG, h_all, c_all, tanh_c[0], batch_sizes, d_output_PH, d_c_BH)
            d_x_PI = _run_back_by_operations(layer, rounds, gradients, pairs, back, batch_sizes)
            d_gates_PG, d_h_BH = back.d_gates_PG, back.d_h_BH
        else:
            d_gates_PG, d_x_PI, d_h_BH = mogrifier.backward(
                kernels, layer, rounds, gradients, batch_sizes, d_output_PH, d_c_BH
            )
        d_weights = {name: torch.empty_like(weight) for name, weight in weights.items()}
        for number, (d_kernel, d_right_kW, d_bias_W) in enumerate(split_rounds(d_weights)):
            d_product, d_inner_Pk = gradients[number]
            torch.sum(d_product, 0, out=d_bias_W)
            if len(d_right_kW):
                cpu.multiply_transposed(rounds[number].inner_Pk, d_product, out=d_right_kW)
                d_product = d_inner_Pk
            cpu.multiply_transposed(pairs[number][1 - number % 2], d_product, out=d_kernel)
        for name, last_P in zip(LSTM_WEIGHTS, pair_P, strict=False):
            cpu.multiply_transposed(last_P, d_gates_PG, out=d_weights[name])
        torch.sum(d_gates_PG, 0, out=d_weights["bias"])
        return None, None, d_x_PI, d_h_BH.to(x_PI.dtype), d_c_BH, *d_weights.values()


def split_rounds(weights: Mapping[str, Tensor]) -> list[Factors]:
    """Return views of the weights of each round, or of their gradients, in the order of the rounds."""
    apart = []
    for number in range(sum(len(weights[name]) for name in GATES if name in weights)):
        index, side = divmod(number, 2)
        name = GATES[side]
        kernel, bias_W, right = weights[name][index], weights[name + BIAS][index], weights.get(name + RIGHT)
        right_kW = bias_W.new_empty(0, len(bias_W)) if right is None else right[index]
        apart.append((kernel, right_kW, bias_W))
    return apart


def _run_by_operations(layer: LayerTensors, rounds: Sequence[Round], batch_sizes: tuple[int, ...]) -> Tensor:
    """Run a layer by torch's operations, as `mogrifier.forward` does, and return tanh(c) of all steps."""
    steps = ForwardSteps(layer.gates_PG, layer.h, layer.c, batch_sizes)
    x = layer.x_PI.split(batch_sizes)
    inner, tanh, gated = (
        [getattr(each, name).split(batch_sizes) for each in rounds]
        for name in ("inner_Pk", "tanh_PW", "gated_PW")
    )
    # The argument of tanh is z / 2. To halve a factor is exact.
    last_factors = (each.right_kW if len(each.right_kW) else each.kernel for each in rounds)
    halves = [(each.bias_W / 2, factor / 2) for each, factor in zip(rounds, last_factors, strict=True)]
    with cpu.use_float32_library(layer.x_PI):
        for t in range(len(batch_sizes)):
            pair = [x[t], steps.h_before[t]]
            for number, each in enumerate(rounds):
                side = number % 2
                other, before = pair[1 - side], pair[side]
                if len(each.right_kW):
                    other = torch.mm(other, each.kernel, out=inner[number][t])
                half_bias, half_factor = halves[number]
                torch.addmm(half_bias, other, half_factor, out=tanh[number][t]).tanh_()
                pair[side] = torch.addcmul(before, before, tanh[number][t], out=gated[number][t])
            torch.addmm(layer.bias_G, pair[0], layer.kernel_IG, out=steps.gates[t])
            steps.gates[t].addmm_(pair[1], layer.recurrent_kernel_HG)
            steps.apply_gates(t)
    return steps.tanh_c_PH


def _run_back_by_operations(
    layer: LayerTensors,
    rounds: Sequence[Round],
    gradients: Sequence[RoundGradients],
    pairs: Sequence[Sequence[Tensor]],
    steps: BackwardSteps,
    batch_sizes: tuple[int, ...],
) -> Tensor:
    """Do the backward pass by torch's operations, and return the gradient with respect to the input [P, I].

    Args:
        layer: The layer, after `_run_by_operations`.
        rounds: Rounds of the layer, likewise.
        gradients: Out: what the rounds' gradients are computed from.
        pairs: x and h before each round, each of all steps.
        steps: The LSTM's steps. Out: its gradients.
        batch_sizes: Number of samples that have a step, for each of T.
    """
    for number, (each, gradient) in enumerate(zip(rounds, gradients, strict=True)):
        # dgated/dz = before (1 - tanh^2) / 2. Each step multiplies its part by the gradient.
        before_PW = pairs[number][number % 2]
        product_PW = before_PW * each.tanh_PW
        torch.addcmul(before_PW, product_PW, each.tanh_PW, value=-1, out=gradient.z_PW).div_(2)
    d_x_PI = torch.empty_like(layer.x_PI)
    d_x, tanh = d_x_PI.split(batch_sizes), [each.tanh_PW.split(batch_sizes) for each in rounds]
    d_z, d_inner = (
        [getattr(each, name).split(batch_sizes) for each in gradients] for name in ("z_PW", "inner_Pk")
    )
    with cpu.use_float32_library(layer.x_PI):
        for t in reversed(range(len(batch_sizes))):
            d_gates, d_h = steps.backprop_gates(t)
            torch.mm(d_gates, layer.kernel_IG.T, out=d_x[t])
            torch.mm(d_gates, layer.recurrent_kernel_HG.T, out=d_h)
            d_pair = (d_x[t], d_h)
            for number, each in reversed(list(enumerate(rounds))):
                d_gated, d_other = d_pair[number % 2], d_pair[1 - number % 2]
                d_product = d_z[number][t].mul_(d_gated)
                d_gated.addcmul_(d_gated, tanh[number][t])
                if len(each.right_kW):
                    d_product = torch.mm(d_product, each.right_kW.T, out=d_inner[number][t])
                d_other.addmm_(d_product, each.kernel.T)
    return d_x_PI
