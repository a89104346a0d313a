"""The whole language model in torch: its parameters, and what it computes where nothing is trained.

Shapes: B = batch, T = time steps, N = T * B tokens, L = length of a row, E = embedding width,
H = hidden units, V = vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common import host
from ptb_lm.data.corpus import Words
from ptb_lm.data.text import Ids
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.torch_backend import cpu, words
from ptb_lm.torch_backend.base import TorchModel, computation, enough_memory
from ptb_lm.torch_backend.cells import Canonical
from ptb_lm.torch_backend.dropout import no_dropout
from ptb_lm.torch_backend.execution import executed
from ptb_lm.torch_backend.loss import SoftmaxLayer
from ptb_lm.torch_backend.precision import Masters
from ptb_lm.torch_backend.stack import RecurrentStack, State

# [2]: negative log likelihood, gradient norm; in float64, as their sums over a split must be. In float16 [3]:
# and the loss scale of the next step if this one was skipped, else 0.
Loss = Tensor


class Network(TorchModel):
    """Embedding, recurrent layers, softmax.

    Attributes:
        stack: The layers, for windows of any shape.
        executed_stack: The same layers as --execution runs them, for windows of training's shape.
        window: That shape, (B, T).
        masters: The parameters of the layers as they are kept.

    Args:
        config: The hyper-parameters.
        choice: How to compute.
        vocabulary_size: V.
        rows: B of a window in training.

    Raises:
        UserError: There is no such device, it cannot do what is asked for, or there is no compiler.
    """

    def __init__(self, config: Config, choice: Choice, *, vocabulary_size: int, rows: int) -> None:
        super().__init__(choice, cell=config.cell)
        if self.device.type == "cpu":
            host.keep_freed_memory()
            cpu.get_implementation()  # now: kernels that must be compiled are not left to the first call
        self.config, self.window = config, (rows, config.num_steps)
        self.stack = RecurrentStack.build(
            choice.model, config.embedding_width, config.layer_sizes, cell=config.cell
        )
        self.stack.to(self.device, self.precision.compute)
        self.executed_stack = self.stack.executed(
            partial(executed, execution=self.execution, window=self.window)
        )
        self.masters = Masters(self.stack.trained(), self.precision.master)
        self.softmax = SoftmaxLayer(
            config.layer_sizes[-1],
            vocabulary_size,
            device=self.device,
            precision=self.precision,
            by_word=config.tie_weights,
        )
        if config.tie_weights:
            self.embedding_VE = self.softmax.kernel.T
        else:
            kept: dict[str, Any] = {"device": self.device, "dtype": self.precision.master}
            self.embedding_VE = torch.zeros(vocabulary_size, config.embedding_width, **kept)

    @property
    def engine(self) -> str:
        """What computes the LSTM and, on a CPU, all else."""
        return super().engine + (
            f"; {cpu.describe_implementation(self.dtype)}" if self.device.type == "cpu" else ""
        )

    def canonical(self) -> dict[str, Canonical]:
        """Return the parameters by canonical name (ptb_lm.model.parameters)."""
        layers = self.stack.canonical().items()
        table = {
            "embedding": Canonical(self.embedding_VE),
            **{name: where._replace(parameter=self.masters[where.parameter]) for name, where in layers},
            "softmax.kernel": Canonical(self.softmax.kernel),
            "softmax.bias": Canonical(self.softmax.bias),
        }
        if self.config.tie_weights:
            del table["softmax.kernel"]
        return table

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays of the right names and shapes."""
        super().load_weights(weights)
        self.refresh()

    def refresh(self) -> None:
        """Use the new values of the parameters after they were set from outside."""
        self.masters.refresh()
        self.softmax.refresh()

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        return self.stack.zero_state(batch_size)

    @enough_memory()
    def place(self, rows_BL: Ids) -> Tensor:
        """Return the rows on the device, laid out so that a window's words in time-major order are a view."""
        return words.placed(rows_BL, self.device)

    @computation
    @torch.no_grad()
    def evaluate_step(self, x_BT: Words, y_BT: Words, state: State) -> tuple[State, Loss]:
        """Score a window without dropout."""
        ids_N, targets_N = self._time_major(x_BT), self._time_major(y_BT)
        # Compiled for one shape only: it would compile again for each of many other shapes.
        stack = self.executed_stack if x_BT.shape == self.window else self.stack
        output_TBH, state = stack(self._embedded(ids_N, x_BT.shape[0]), state, dropout=no_dropout)
        nll_N = self.softmax.losses(output_TBH.flatten(0, 1), targets_N)
        zero = nll_N.new_zeros((), dtype=torch.float64)
        return state, loss_of(nll_N, *([zero] if self.precision.loss_scale == 1 else [zero, zero]))

    @computation
    @torch.no_grad()
    def log_probabilities(
        self, x_BT: Words, y_BT: Words, state: State, *, lengths_B: Ids | None = None
    ) -> tuple[State, NDArray[Any]]:
        """Return the state after a window and the log-probability of each target [B, T]."""
        hidden, state = self._outputs(x_BT, state, lengths_B)
        hidden_NH, targets_N, (batch, steps) = hidden.flatten(0, 1), self._time_major(y_BT), x_BT.shape
        if lengths_B is None:
            log_p_N = -self.softmax.losses_of_any_number(hidden_NH, targets_N)
        else:  # the softmax is the larger part of the work, and padding is none of its business
            step_TB = np.arange(steps)[:, None]
            (counts,) = torch.from_numpy((step_TB < lengths_B).ravel()).to(self.device).nonzero(as_tuple=True)
            log_p_N = hidden_NH.new_zeros(len(targets_N), dtype=self.softmax.weight.dtype)
            log_p_N[counts] = -self.softmax.losses_of_any_number(hidden_NH[counts], targets_N[counts])
        return state, log_p_N.view(steps, batch).T.cpu().numpy()

    @computation
    @torch.no_grad()
    def next_words(self, x_BT: Words, state: State) -> tuple[State, NDArray[Any]]:
        """Return the state after some words and the log-probability of every word to come next [B, V]."""
        output_TBH, state = self._outputs(x_BT, state)
        return state, self.softmax.log_probabilities(output_TBH[-1]).cpu().numpy()

    def _outputs(self, x_BT: Words, state: State, lengths_B: Ids | None = None) -> tuple[Tensor, State]:
        """Return the top layer's output [T, B, H] without dropout, and the state after."""
        embedded_TBE = self._embedded(self._time_major(x_BT), x_BT.shape[0])
        lengths = None if lengths_B is None else torch.from_numpy(lengths_B.astype(np.int64))
        # All products of the layers, some of which are torch's own: the setting is there, or not, for every
        # thread of the process, so that other calls would decide which library computes them.
        with cpu.use_float32_library(embedded_TBE):
            output_TBH, after = self.stack(embedded_TBE, state, dropout=no_dropout, lengths_B=lengths)
        return output_TBH, after

    def _embedded(self, ids_N: Tensor, batch: int) -> Tensor:
        """Return the words' vectors, [T, B, E]."""
        return self.embedding_VE[ids_N].to(self.precision.compute).view(-1, batch, self.embedding_VE.shape[1])

    def _time_major(self, ids_BT: Words) -> Tensor:
        """Return a window's words on the device, [N]."""
        return words.time_major(ids_BT, self.device).flatten()


def loss_of(nll_N: Tensor, *more: Tensor) -> Loss:
    """Return a window's loss from the negative log likelihoods, and from what else is measured, each []."""
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    return torch.stack([nll_N.sum(dtype=torch.float64), *more])
