"""The torch backend: the contract of ptb_lm.model.backend, and the training step.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, H = hidden units, V = vocabulary.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.data.corpus import Words
from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays, Backend, StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend import cpu, rank_state
from ptb_lm.torch_backend.base import computation, enough_memory
from ptb_lm.torch_backend.dropout import WindowDropout, multiplied, one_after_another
from ptb_lm.torch_backend.execution import of_ranks
from ptb_lm.torch_backend.graph import CudaGraph, Graph, GraphedStep, Step
from ptb_lm.torch_backend.loss import add_by_word, global_norm, of_known_gradient, sum_by_word
from ptb_lm.torch_backend.loss_scale import LossScale, zeroed
from ptb_lm.torch_backend.moving_average import MovingAverage
from ptb_lm.torch_backend.network import Loss, Network, loss_of
from ptb_lm.torch_backend.settings import flushed_denormals
from ptb_lm.torch_backend.stack import State
from ptb_lm.torch_backend.window import Window, exchange_of


@enough_memory()
@flushed_denormals()  # the threads that are started meanwhile inherit it
def build(
    config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = SINGLE_PROCESS
) -> "TorchBackend":
    """Build the backend; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, it cannot do what is asked for, or it has not enough memory; or
            there is no compiler.
    """
    cpu.forget_restored()
    return TorchBackend(config, weights, choice, ranks)


class TorchBackend(Network, Backend):
    """An LSTM language model in torch, with SGD."""

    preferred: ClassVar[Mapping[str, str]] = {"cpu": "eager", "cuda": "graph"}

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        size = len(weights["embedding"])
        super().__init__(
            config, of_ranks(choice, ranks), vocabulary_size=size, rows=config.batch_size // ranks.size
        )
        self.ranks = ranks
        self.carried = cells.get(config.cell).state_names
        self.trained = self.stack.trained()
        self.dropout = WindowDropout(
            config,
            size,
            device=self.device,
            dtype=self.dtype,
            seed=rank_state.derive_seed(choice.seed, ranks),
        )
        self.exchange = exchange_of(ranks, device=self.device, precision=self.precision, vocabulary_size=size)
        self.loss_scale: LossScale | None = None
        if self.precision.loss_scale != 1:
            self.loss_scale = LossScale(self.precision.loss_scale, device=self.device)
        self.rate = torch.zeros((), device=self.device, dtype=torch.float64)
        self.learning_rate = 0.0  # what `rate` holds
        self.moving_average: MovingAverage | None = None
        self.step: Step = self._step
        if self.execution == "graph":
            self.step = self.graphed(CudaGraph(self.device, self.dropout.generator))
        self.load_weights(weights)

    def environment(self) -> dict[str, Any]:
        """Return versions, device, threads, and how many processes there are if there are several."""
        return {**super().environment(), **self.exchange.environment()}

    @computation
    def average(self, weight: float) -> None:
        """Move the averages of the parameters towards them."""
        if self.moving_average is None:
            self.moving_average = MovingAverage([kept.value for kept in self.canonical().values()])
        else:
            self.moving_average.update(weight)

    @contextlib.contextmanager
    def use_averages(self) -> Iterator[None]:
        """Return a context in which the averages are the parameters."""
        self._swap_averages()
        try:
            yield
        finally:
            self._swap_averages()

    @computation
    def _swap_averages(self) -> None:
        assert self.moving_average is not None
        self.moving_average.swap()
        self.refresh()

    @computation
    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        if learning_rate != self.learning_rate:
            self.rate.fill_(learning_rate)
            self.learning_rate = learning_rate
        return self.step(self._time_major(x_BT), self._time_major(y_BT), state)

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return what dropout will keep in the next training window; it is drawn outside of what is compiled.

        A CUDA graph's replay draws what the stream would give to the same operations outside of it.
        """
        return self.dropout.next_kept(batch, steps)

    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            self.wait()
            return []
        return [StepMetrics(*numbers) for numbers in torch.stack(list(losses)).tolist()]

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state, the state of the dropout stream, and in float16 the loss scale."""
        carried = rank_state.export_carried(state, self.carried, self.precision.master)
        return {
            **rank_state.gather_state(carried, self.dropout.generator, self.ranks),
            # A run continues with its own way to compute, even if this machine would choose another.
            **({"torch.cpu": cpu.export_implementation()} if self.device.type == "cpu" else {}),
            **(self.loss_scale.export() if self.loss_scale else {}),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""
        rank_state.restore_generator(self.dropout.generator, arrays[rank_state.GENERATOR], self.ranks)
        if self.device.type == "cpu" and "torch.cpu" in arrays:
            cpu.restore_implementation(arrays["torch.cpu"])
        if self.loss_scale:
            self.loss_scale.load(arrays)
        return rank_state.restore_carried(arrays, self.carried, self.zero_state, self.ranks)

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
                of_known_gradient(output_TBH, d_output_NH.view_as(output_TBH)), [embedded_TBE, *self.trained]
            )
        gradients = [
            gradient * factors[parameter] if parameter in factors else gradient
            for parameter, gradient in zip(self.trained, gradients, strict=True)
        ]
        window = self.exchange.finish(Window(nll_N, ids_N, d_embedded_TBE.flatten(0, 1), gradients))
        measured = [self._update(window.ids, window.d_embedded, window.gradients)]
        if self.loss_scale:
            measured.append(self.loss_scale.move(measured[0].isfinite()))
        return [tuple([part.detach() for part in layer]) for layer in state], loss_of(window.nll, *measured)

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
