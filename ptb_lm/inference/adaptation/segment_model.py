"""A language model over one row of text, a segment at a time, with its gradient in factors.

Dynamic evaluation changes all weights after a handful of words, so that its cost is that of reading and
writing them. Here the gradient of a matrix is never made: it is the product of two factors of T rows, which
is added to the weights in one pass. The gradient of the embedding is some of its rows.

Shapes: T = time steps of a segment, V = vocabulary, E = embedding width, I = a layer's input width,
H = hidden units. The batch is one row, and has no axis. Gates lie in the order i, f, g, o along 4H.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.data.text import Ids
from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config

State = list[tuple[Tensor, Tensor]]  # (h_H, c_H) of each layer


class SegmentScores(NamedTuple):
    """The scores of a segment.

    Attributes:
        log_p_T: The log-probability of each target, in nats.
        hidden_TH: The top layer's output, from which each target was predicted.
        state: The state after the segment.
    """

    log_p_T: Tensor
    hidden_TH: Tensor
    state: State


class Gradients(NamedTuple):
    """The gradient of a segment's negative log likelihood, summed over its steps.

    Attributes:
        factors: A matrix's name -> (left_TM, right_TN): its gradient [M, N] is left transposed times right.
        vectors: A bias's name -> its gradient.
        words_T: The input words, some perhaps more than once.
        rows_TE: The gradient with respect to the embedding's row of each.
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    vectors: dict[str, Tensor]
    words_T: Tensor
    rows_TE: Tensor


class _LayerTape(NamedTuple):
    """The record of a layer's forward pass, for its backward pass."""

    input_TI: Tensor
    before_TH: Tensor  # h before each step
    gates_T4H: Tensor
    cells_TH: Tensor
    first_cell_H: Tensor  # c before the first step


class SegmentModel:
    """An LSTM language model whose weights may change from segment to segment.

    Attributes:
        weights: Canonical parameters (model/parameters.py) as tensors of this model's own.
        is_tied: True if the softmax's kernel is the embedding, transposed.

    Args:
        config: The hyper-parameters.
        weights: Canonical parameters; they are copied.
        device: The device that computes.

    Raises:
        UserError: The cell is not the LSTM.
    """

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], *, device: torch.device | None = None
    ) -> None:
        if (cell := config.cell) != LSTM:
            raise UserError(
                f"only a model with the cell lstm can adapt to a text, but this model's cell is {cell}"
            )
        self.weights = {name: torch.tensor(array, device=device) for name, array in weights.items()}
        self.is_tied = "softmax.kernel" not in weights
        self._layers = config.num_layers

    def place(self, ids: Ids) -> Tensor:
        """Return word ids on the model's device, int64."""
        return torch.from_numpy(ids).to(self.weights["embedding"].device, torch.int64)

    def zero_state(self) -> State:
        """Return the state before the first word."""
        kernels = [self.weights[f"lstm.{layer}.recurrent_kernel"] for layer in range(self._layers)]
        return [(kernel.new_zeros(len(kernel)), kernel.new_zeros(len(kernel))) for kernel in kernels]

    def score(self, x_T: Tensor, y_T: Tensor, state: State) -> SegmentScores:
        """Score the targets y_T of a segment's input words x_T."""
        return self._forward(x_T, y_T, state)[0]

    def score_and_gradients(self, x_T: Tensor, y_T: Tensor, state: State) -> tuple[SegmentScores, Gradients]:
        """Score a segment's targets; return the gradient of their negative log likelihood, too."""
        scores, log_p_TV, tape = self._forward(x_T, y_T, state)
        d_logits_TV = log_p_TV.exp_()
        d_logits_TV[torch.arange(len(y_T), device=y_T.device), y_T] -= 1
        kernel_HV = self._softmax_kernel()
        factors = {"softmax.kernel": (scores.hidden_TH, d_logits_TV)}
        if self.is_tied:
            factors = {"embedding": (d_logits_TV, scores.hidden_TH)}
        vectors = {"softmax.bias": d_logits_TV.sum(0)}
        d_output_TH = d_logits_TV @ kernel_HV.T
        for layer in reversed(range(self._layers)):
            name, record = f"lstm.{layer}.", tape[layer]
            d_gates_T4H = _layer_backward(record, self.weights[name + "recurrent_kernel"], d_output_TH)
            factors[name + "kernel"] = record.input_TI, d_gates_T4H
            factors[name + "recurrent_kernel"] = record.before_TH, d_gates_T4H
            vectors[name + "bias"] = d_gates_T4H.sum(0)
            d_output_TH = d_gates_T4H @ self.weights[name + "kernel"].T
        return scores, Gradients(factors, vectors, x_T, d_output_TH)

    def _softmax_kernel(self) -> Tensor:
        return self.weights["embedding"].T if self.is_tied else self.weights["softmax.kernel"]

    def _forward(
        self, x_T: Tensor, y_T: Tensor, state: State
    ) -> tuple[SegmentScores, Tensor, list[_LayerTape]]:
        """Return (the segment's scores, log_p_TV, the record of each layer for the backward pass)."""
        output_TH, after, tape = self.weights["embedding"][x_T], State(), []
        for layer, (h_H, c_H) in enumerate(state):
            name = f"lstm.{layer}."
            gates_T4H = torch.addmm(self.weights[name + "bias"], output_TH, self.weights[name + "kernel"])
            record = _LayerTape(
                output_TH,
                h_H.new_empty(len(x_T), len(h_H)),
                gates_T4H,
                h_H.new_empty(len(x_T), len(h_H)),
                c_H,
            )
            output_TH, c_H = _layer_forward(record, self.weights[name + "recurrent_kernel"], h_H)
            after.append((output_TH[-1], c_H))
            tape.append(record)
        logits_TV = torch.addmm(self.weights["softmax.bias"], output_TH, self._softmax_kernel())
        log_p_TV = torch.log_softmax(logits_TV, dim=-1)
        log_p_T = log_p_TV.gather(1, y_T[:, None])[:, 0]
        return SegmentScores(log_p_T, output_TH, after), log_p_TV, tape


def _layer_forward(record: _LayerTape, recurrent_kernel: Tensor, h_H: Tensor) -> tuple[Tensor, Tensor]:
    """Go through a layer's steps; fill in the record, whose gates hold the input's share at first.

    Returns:
        (output_TH, c_H): the last c is the state after the segment.
    """
    output_TH, c_H, hidden = torch.empty_like(record.before_TH), record.first_cell_H, len(h_H)
    recurrent_4HH = recurrent_kernel.T
    for t, gates_4H in enumerate(record.gates_T4H):
        record.before_TH[t] = h_H
        gates_4H.addmv_(recurrent_4HH, h_H)
        gates_4H[: 2 * hidden].sigmoid_()
        gates_4H[2 * hidden : 3 * hidden].tanh_()
        gates_4H[3 * hidden :].sigmoid_()
        i_H, f_H, g_H, o_H = gates_4H.split(hidden)
        c_H = torch.addcmul(f_H * c_H, i_H, g_H)
        record.cells_TH[t] = c_H
        h_H = torch.mul(o_H, c_H.tanh(), out=output_TH[t])
    return output_TH, c_H


def _layer_backward(record: _LayerTape, recurrent_kernel: Tensor, d_output_TH: Tensor) -> Tensor:
    """Return the gradient with respect to the gates before their nonlinearities.

    None flows into the state before the segment.
    """
    steps, hidden = d_output_TH.shape
    i_TH, f_TH, g_TH, o_TH = record.gates_T4H.split(hidden, dim=1)
    tanh_TH = record.cells_TH.tanh()
    earlier_TH = torch.cat([record.first_cell_H[None], record.cells_TH[:-1]])
    # All that does not depend on the gradient of a later step, for all steps at once.
    to_cell_TH = o_TH * (1 - tanh_TH * tanh_TH)
    slopes_T4H = torch.cat(
        [
            g_TH * i_TH * (1 - i_TH),
            earlier_TH * f_TH * (1 - f_TH),
            i_TH * (1 - g_TH * g_TH),
            tanh_TH * o_TH * (1 - o_TH),
        ],
        dim=1,
    )
    d_gates_T4H = torch.empty_like(record.gates_T4H)
    d_h_H, d_c_H = d_output_TH[-1], torch.zeros_like(d_output_TH[0])
    for t in range(steps - 1, -1, -1):
        d_c_H = torch.addcmul(d_c_H, d_h_H, to_cell_TH[t])
        d_gates_4H, slopes_4H = d_gates_T4H[t], slopes_T4H[t]
        torch.mul(slopes_4H.view(4, hidden)[:3], d_c_H, out=d_gates_4H.view(4, hidden)[:3])
        torch.mul(slopes_4H[3 * hidden :], d_h_H, out=d_gates_4H[3 * hidden :])
        d_c_H = d_c_H * f_TH[t]
        if t:
            d_h_H = torch.addmv(d_output_TH[t - 1], recurrent_kernel, d_gates_4H)
    return d_gates_T4H
