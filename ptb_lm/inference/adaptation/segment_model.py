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
        return self._forward(self.weights["embedding"][x_T], y_T, state)[0]

    def score_and_gradients(self, x_T: Tensor, y_T: Tensor, state: State) -> tuple[SegmentScores, Gradients]:
        """Score a segment's targets; return the gradient of their negative log likelihood, too.

        None flows into the state before the segment.
        """
        with torch.enable_grad():
            rows_TE = self.weights["embedding"][x_T].requires_grad_()
            scores, outputs, gates, logits_TV = self._forward(rows_TE, y_T, state)
            nll = -scores.log_p_T.sum()
        # With respect to the gates before their nonlinearities: that is the right factor of each matrix.
        d_rows_TE, d_logits_TV, *d_gates = torch.autograd.grad(nll, [rows_TE, logits_TV, *gates])
        outputs = [output_TH.detach() for output_TH in outputs]
        after = [(h_H.detach(), c_H.detach()) for h_H, c_H in scores.state]
        scores = SegmentScores(scores.log_p_T.detach(), outputs[-1], after)
        factors = {"softmax.kernel": (scores.hidden_TH, d_logits_TV)}
        if self.is_tied:
            factors = {"embedding": (d_logits_TV, scores.hidden_TH)}
        vectors = {"softmax.bias": d_logits_TV.sum(0)}
        inputs = [rows_TE.detach(), *outputs]
        for layer, d_gates_T4H in enumerate(d_gates):
            before_TH = torch.cat([state[layer][0][None], outputs[layer][:-1]])
            factors[f"lstm.{layer}.kernel"] = inputs[layer], d_gates_T4H
            factors[f"lstm.{layer}.recurrent_kernel"] = before_TH, d_gates_T4H
            vectors[f"lstm.{layer}.bias"] = d_gates_T4H.sum(0)
        return scores, Gradients(factors, vectors, x_T, d_rows_TE)

    def _forward(
        self, rows_TE: Tensor, y_T: Tensor, state: State
    ) -> tuple[SegmentScores, list[Tensor], list[Tensor], Tensor]:
        """Return (the segment's scores, each layer's output, the input's share in its gates, logits_TV).

        Args:
            rows_TE: The embeddings of the input words.
            y_T: The targets.
            state: The state before the segment.
        """
        output_TH, outputs, after, gates = rows_TE, list[Tensor](), State(), list[Tensor]()
        for layer, (h_H, c_H) in enumerate(state):
            name = f"lstm.{layer}."
            recurrent_4HH = self.weights[name + "recurrent_kernel"].T
            gates.append(torch.addmm(self.weights[name + "bias"], output_TH, self.weights[name + "kernel"]))
            steps = list[Tensor]()
            for gates_4H in gates[-1].unbind():
                i_H, f_H, g_H, o_H = torch.addmv(gates_4H, recurrent_4HH, h_H).chunk(4)
                c_H = torch.addcmul(f_H.sigmoid() * c_H, i_H.sigmoid(), g_H.tanh())
                h_H = o_H.sigmoid() * c_H.tanh()
                steps.append(h_H)
            output_TH = torch.stack(steps)
            outputs.append(output_TH)
            after.append((h_H, c_H))
        kernel_HV = self.weights["embedding"].T if self.is_tied else self.weights["softmax.kernel"]
        logits_TV = torch.addmm(self.weights["softmax.bias"], output_TH, kernel_HV)
        log_p_T = torch.log_softmax(logits_TV, dim=-1).gather(1, y_T[:, None])[:, 0]
        return SegmentScores(log_p_T, output_TH, after), outputs, gates, logits_TV
