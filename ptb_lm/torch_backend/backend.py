"""The torch backend: the contract of ptb_lm.model.backend.

Shapes: B = batch, T = time steps, N = T * B tokens, L = layers, or the length of a row, E = embedding width,
H = hidden units, V = vocabulary.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm import host
from ptb_lm.data.corpus import Words
from ptb_lm.data.text import Ids
from ptb_lm.errors import UserError
from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays, Backend, Measured
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout import Masks
from ptb_lm.model.ranks import ALONE, Ranks
from ptb_lm.torch_backend import cpu, rank_state, words
from ptb_lm.torch_backend.base import TorchModel, enough_memory
from ptb_lm.torch_backend.cells import Canonical
from ptb_lm.torch_backend.dropout import WindowDropout, multiplied, no_dropout, one_after_another
from ptb_lm.torch_backend.execution import executed, of_ranks
from ptb_lm.torch_backend.graph import CudaGraph, Graph, GraphedStep, Step
from ptb_lm.torch_backend.loss import SoftmaxLayer, add_by_word, global_norm, sum_by_word
from ptb_lm.torch_backend.loss_scale import LossScale, zeroed
from ptb_lm.torch_backend.moving_average import MovingAverage
from ptb_lm.torch_backend.precision import Masters
from ptb_lm.torch_backend.stack import RecurrentStack, State
from ptb_lm.torch_backend.window import Window, exchange_of

# [2]: negative log likelihood, gradient norm; in float64, as their sums over a split must be. In float16 [3]:
# and the loss scale of the next step if this one was skipped, else 0.
Loss = Tensor


@enough_memory()
def build(
    config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = ALONE
) -> "TorchBackend":
    """Build the backend; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, it cannot do what is asked for, or it has not enough memory; or
            there is no compiler.
    """
    return TorchBackend(config, weights, choice, ranks)


class TorchBackend(TorchModel, Backend):
    """An LSTM language model in torch, with SGD."""

    preferred: ClassVar[Mapping[str, str]] = {"cpu": "eager", "cuda": "graph"}

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = ALONE
    ) -> None:
        self.ranks = ranks
        super().__init__(of_ranks(choice, ranks), cell=config.cell)
        if self.device.type == "cpu":
            host.keep_freed_memory()
        self.config = config
        vocabulary_size = len(weights["embedding"])
        self.stack = RecurrentStack.build(
            choice.model, config.embedding_width, config.layer_sizes, cell=config.cell
        )
        self.carried = cells.get(config.cell).carried
        self.stack.to(self.device, self.precision.compute)
        self.window = (config.batch_size // ranks.size, config.num_steps)
        self.executed_stack = self.stack.executed(
            partial(executed, execution=self.execution, window=self.window)
        )
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
        self.dropout = WindowDropout(
            config,
            vocabulary_size,
            device=self.device,
            dtype=self.dtype,
            seed=rank_state.seed(choice.seed, ranks),
        )
        self.exchange = exchange_of(
            ranks, device=self.device, precision=self.precision, vocabulary_size=vocabulary_size
        )
        self.trained = self.stack.trained()
        self.masters = Masters(self.trained, self.precision.master)
        self.loss_scale = None
        if self.precision.loss_scale != 1:
            self.loss_scale = LossScale(self.precision.loss_scale, device=self.device)
        self.rate = torch.zeros((), device=self.device, dtype=torch.float64)
        self.learning_rate = 0.0  # what `rate` holds
        self.moving_average: MovingAverage | None = None
        self.step: Step = self._step
        if self.execution == "graph":
            self.step = self.graphed(CudaGraph(self.device, self.dropout.generator))
        self.load_weights(weights)

    @property
    def engine(self) -> str:
        """What computes the LSTM and, on a CPU, all else."""
        return super().engine + (f"; {cpu.described(self.dtype)}" if self.device.type == "cpu" else "")

    def environment(self) -> dict[str, Any]:
        """Return versions, device, threads, and how many processes there are if there are several."""
        return {**super().environment(), **self.exchange.environment()}

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
        self._refresh()

    @enough_memory()
    def average(self, weight: float) -> None:
        """Move the averages of the parameters towards them."""
        if self.moving_average is None:
            self.moving_average = MovingAverage([kept.value for kept in self.canonical().values()])
        else:
            self.moving_average.update(weight)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Return a context in which the averages are the parameters."""
        self._swap_averages()
        try:
            yield
        finally:
            self._swap_averages()

    @enough_memory()
    def _swap_averages(self) -> None:
        assert self.moving_average is not None
        self.moving_average.swap()
        self._refresh()

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        return self.stack.zero_state(batch_size)

    @enough_memory()
    def place(self, rows_BL: Ids) -> Tensor:
        """Return the rows on the device, laid out so that a window's words in time-major order are a view."""
        return words.placed(rows_BL, self.device)

    @enough_memory()
    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        self.hold_precision()
        if learning_rate != self.learning_rate:
            self.rate.fill_(learning_rate)
            self.learning_rate = learning_rate
        return self.step(self._time_major(x_BT), self._time_major(y_BT), state)

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return what dropout will keep in the next training window; it is drawn outside of what is compiled.

        A CUDA graph's replay draws what the stream would give to the same operations outside of it.
        """
        return self.dropout.next_kept(batch, steps)

    @enough_memory()
    @torch.no_grad()
    def evaluate_step(self, x_BT: Words, y_BT: Words, state: State) -> tuple[State, Loss]:
        """Score a window without dropout."""
        self.hold_precision()
        ids_N, targets_N = self._time_major(x_BT), self._time_major(y_BT)
        # Compiled for one shape only: it would compile again for each of many other shapes.
        stack = self.executed_stack if x_BT.shape == self.window else self.stack
        output_TBH, state = stack(self._embedded(ids_N, x_BT.shape[0]), state, dropout=no_dropout)
        nll_N = self.softmax.losses(output_TBH.flatten(0, 1), targets_N)
        zero = torch.zeros_like(self.rate)
        return state, _measured(nll_N, *([zero, zero] if self.loss_scale else [zero]))

    @enough_memory()
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

    @enough_memory()
    @torch.no_grad()
    def next_words(self, x_BT: Words, state: State) -> tuple[State, NDArray[Any]]:
        """Return the state after some words and the log-probability of every word to come next [B, V]."""
        output_TBH, state = self._outputs(x_BT, state)
        return state, self.softmax.log_probabilities(output_TBH[-1]).cpu().numpy()

    def read(self, losses: Sequence[Loss]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            self.wait()
            return []
        return [Measured(*numbers) for numbers in torch.stack(list(losses)).tolist()]

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state, the state of the dropout stream, and in float16 the loss scale."""
        carried = {
            name: torch.stack(parts).to("cpu", self.precision.master).numpy()
            for name, parts in zip(self.carried, zip(*state, strict=True), strict=True)
        }
        return {
            **rank_state.of_all(carried, self.dropout.generator, self.ranks),
            # A run continues with its own way to compute, even if this machine would choose another.
            **({"torch.cpu": cpu.saved()} if self.device.type == "cpu" else {}),
            **(self.loss_scale.export() if self.loss_scale else {}),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""
        try:
            rank_state.load(self.dropout.generator, arrays[rank_state.GENERATOR], self.ranks)
        except (RuntimeError, TypeError) as error:
            # A GPU's generator has another state than a CPU's.
            raise UserError(
                f"the random stream of dropout was not saved on {self.device.type} ({error})"
            ) from None
        if self.device.type == "cpu" and "torch.cpu" in arrays:
            cpu.restore(arrays["torch.cpu"])
        if self.loss_scale:
            self.loss_scale.load(arrays)
        mine = self.ranks.share(arrays[self.carried[0]].shape[1])
        saved = [torch.from_numpy(arrays[name][:, mine].copy()) for name in self.carried]
        state = self.zero_state(saved[0].shape[1])
        for layer, saved_layer in zip(state, zip(*saved, strict=True), strict=True):
            for part_BH, saved_BH in zip(layer, saved_layer, strict=True):
                part_BH.copy_(saved_BH)
        return state

    def graphed(self, graph: Graph) -> GraphedStep:
        """Return the training step as a graph that is captured at its first call."""
        kept = [self.loss_scale.state] if self.loss_scale else []
        return GraphedStep(
            self._step, rate=self.rate, kept=kept, generator=self.dropout.generator, graph=graph
        )

    def _step(self, ids_N: Tensor, targets_N: Tensor, state: State) -> tuple[State, Loss]:
        """Do a training step at the learning rate in `rate`; nothing here waits for the device."""
        batch = len(state[0][0])
        masks = self.dropout.draw(batch, len(ids_N) // batch)
        factors = self.stack.factors(masks.weights)
        embedded_TBE = self._embedded(ids_N, batch).requires_grad_()
        x_TBE = embedded_TBE
        if "embedding" in masks.weights:
            x_TBE = x_TBE * masks.weights["embedding"][ids_N].view(-1, batch, 1)
        with multiplied(factors):
            output_TBH, state = self.executed_stack(x_TBE, state, dropout=one_after_another(masks.units))
            scale = self.precision.loss_scale / (batch * self.exchange.size)
            part = self.loss_scale.part if self.loss_scale else None
            nll_N, d_output_NH = self.softmax.loss_and_gradients(
                output_TBH.detach().flatten(0, 1), targets_N, scale, part=part
            )
            self.exchange.begin(self.softmax.gradient)
            d_embedded_TBE, *gradients = torch.autograd.grad(
                output_TBH, [embedded_TBE, *self.trained], d_output_NH.view_as(output_TBH)
            )
        gradients = [
            gradient * factors[parameter] if parameter in factors else gradient
            for parameter, gradient in zip(self.trained, gradients, strict=True)
        ]
        window = self.exchange.finish(Window(nll_N, ids_N, d_embedded_TBE.flatten(0, 1), gradients))
        measured = [self._update(window.ids, window.d_embedded, window.gradients)]
        if self.loss_scale:
            measured.append(self.loss_scale.move(measured[0].isfinite()))
        return [tuple([part.detach() for part in layer]) for layer in state], _measured(window.nll, *measured)

    def _update(self, ids_N: Tensor, d_embedded_NE: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        In float16 nothing moves where the norm is not finite.

        Args:
            ids_N: The window's words.
            d_embedded_NE: The gradient by each one's embedding, as the bottom layer's input. It has rows for
                the words of the window only; the other rows stay, unless the softmax uses them all.
            gradients: By the stack's parameters.
        """
        of_words: list[Tensor] = []
        if self.config.tie_weights:
            add_by_word(self.softmax.kernel_gradient.T, ids_N, d_embedded_NE)
        else:
            d_embedded_NE = d_embedded_NE.to(self.embedding_VE.dtype)
            of_words = [sum_by_word(d_embedded_NE, ids_N)]
        scaled_norm = global_norm([*of_words, self.softmax.gradient, *gradients])
        norm = self.exchange.agreed(scaled_norm / self._loss_scale())
        scale = self._scale(norm)
        if self.loss_scale:
            finite = norm.isfinite()
            self.softmax.gradient.masked_fill_(~finite, 0)
            scale, d_embedded_NE, *gradients = zeroed(finite, [scale, d_embedded_NE, *gradients])
        if not self.config.tie_weights:
            self.embedding_VE.index_add_(0, ids_N, d_embedded_NE * scale)
        self.softmax.update(scale)
        self.masters.add(gradients, scale)
        return norm

    def _scale(self, norm: Tensor) -> Tensor:
        """Return what a gradient is multiplied by, to be added to its parameter, []."""
        bound = self.config.max_grad_norm
        # Tensors, not numbers: the device's step is not waited for.
        scale = -self.rate * bound / (norm.clamp(min=bound) * self._loss_scale())
        return scale.to(self.precision.master)

    def _loss_scale(self) -> Tensor | float:
        """Return what the gradients of this step are multiplied by."""
        return self.loss_scale.scale if self.loss_scale else self.precision.loss_scale

    def _outputs(self, x_BT: Words, state: State, lengths_B: Ids | None = None) -> tuple[Tensor, State]:
        """Return the top layer's output [T, B, H] without dropout, and the state after."""
        self.hold_precision()
        embedded_TBE = self._embedded(self._time_major(x_BT), x_BT.shape[0])
        lengths = None if lengths_B is None else torch.from_numpy(lengths_B.astype(np.int64))
        output_TBH, after = self.stack(embedded_TBE, state, dropout=no_dropout, lengths_B=lengths)
        return output_TBH, after

    def _refresh(self) -> None:
        """Use the new values of the parameters after they were set from outside."""
        self.masters.refresh()
        self.softmax.refresh()

    def _embedded(self, ids_N: Tensor, batch: int) -> Tensor:
        """Return the words' vectors, [T, B, E]."""
        return self.embedding_VE[ids_N].to(self.precision.compute).view(-1, batch, self.embedding_VE.shape[1])

    def _time_major(self, ids_BT: Words) -> Tensor:
        """Return a window's words on the device, [N]."""
        return words.time_major(ids_BT, self.device).flatten()


def _measured(nll_N: Tensor, *more: Tensor) -> Loss:
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    return torch.stack([nll_N.sum(dtype=torch.float64), *more])
