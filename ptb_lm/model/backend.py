"""The contract between the trainer and a framework.

The trainer owns tokens, their order, initial weights, schedule, stopping, the clock and the files. A backend
owns the graph, loss, gradients, clipping, update, dropout and compilation. Arrays cross this line as NumPy;
word ids may be on the backend's device, where its `to_device` put them.

Shapes: B = batch, T = time steps, L = layers, or the length of a row, H = hidden units.
"""

from __future__ import annotations

import contextlib
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ptb_lm.data.corpus import TokenArray
    from ptb_lm.data.text import Ids
    from ptb_lm.model.dropout_places import Masks

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
State = Any  # opaque to the trainer: the carried h and c, in the framework's own tensors
Loss = Any  # opaque: a window's measurements, possibly still being computed
MAX_LOGITS = 1 << 25  # in a call of `log_probabilities`, or numbers in a layer: 128 MiB in float32
VALUES_PER_UNIT = 8  # numbers in a layer for a word, about: four gates, the cell, its output, and copies
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def max_tokens_per_call(vocabulary_size: int, width: int) -> int:
    """Return the largest number of words for a call of `log_probabilities`.

    Args:
        vocabulary_size: V.
        width: Units of the widest layer or of the embedding. If the vocabulary is small, as one of characters
            is, the layers take more memory than the logits.
    """
    return max(1, MAX_LOGITS // max(vocabulary_size, VALUES_PER_UNIT * width))


class StepMetrics(NamedTuple):
    """The numbers behind a `Loss`, of one window."""

    nll: float  # negative log likelihood of the window's targets in nats, summed over batch and time
    # Global norm before clipping, of the gradients of the loss and its penalties; 0 for an evaluation step.
    gradient_norm: float
    # Loss scale of the next step, if this one was skipped because its gradient overflowed float16; else 0.
    new_loss_scale: float = 0.0


class Model(ABC):
    """A model of one framework on one device: a language model (Backend) or a sequence classifier."""

    @property
    @abstractmethod
    def engine(self) -> str:
        """A description of the implementation for people: "torch.nn.LSTM on cpu (oneDNN)"."""

    @abstractmethod
    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name (model/parameters.py): float64 in fp64, else float32."""

    @abstractmethod
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays of the right names and shapes."""

    @abstractmethod
    def device_memory(self) -> int | None:
        """Return the peak of bytes allocated on the device since the last call; None on a CPU."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads, for the run's record."""


def in_model_context(
    method: Callable[Concatenate[Any, _Arguments], _Result],
) -> Callable[Concatenate[Any, _Arguments], _Result]:
    """Run a method in its model's `context`."""

    @functools.wraps(method)
    def compute(self: Any, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        with self.context():
            return method(self, *arguments, **named)

    return compute


class Backend(Model):
    """A language model of one framework on one device, with its optimiser.

    Attributes:
        ranks: Processes that train the model together. Rows, windows and states are then this one's share,
            and the losses of `train_step` are those of all.
        training: The framework's training step and its state, made when it is first used. It has
            `update_averages`, `swap_averages`, `export_state` and `load_state`, which methods here call.
    """

    ranks: Ranks = SINGLE_PROCESS
    training: Any

    @abstractmethod
    def context(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the model's device, or the framework's settings that it computes with.

        A failed allocation in it becomes an OutOfMemoryError.
        """

    @property
    def hints(self) -> Sequence[str]:
        """Advice for the user, one sentence each: what would be faster on this machine."""
        return ()

    @in_model_context
    def prepare_training(self) -> None:
        """Make what only training needs; all ranks call it together. Otherwise the first step does it.

        Raises:
            UserError: There is not enough memory.
        """
        _ = self.training

    @abstractmethod
    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""

    @abstractmethod
    def to_device(self, rows_BL: Ids) -> TokenArray:
        """Copy rows of word ids to the device, where windows are cheap to cut. Steps take NumPy rows, too."""

    @abstractmethod
    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD or Adam with dropout and clipping; may return before the device is done.

        The loss for the gradient is summed over time and averaged over the batch, and the penalties' means
        are multiplied by T; weight decay, times T too, is added after clipping. The given state cannot be
        used again: the returned one may be the same memory.
        """

    @abstractmethod
    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that dropout will keep in the next training window; its random stream stays.

        The benchmark's check computes the same step in NumPy with them.

        Args:
            batch: B of that window.
            steps: T of that window.
        """

    @abstractmethod
    def evaluate_step(self, x_BT: TokenArray, y_BT: TokenArray, state: State) -> tuple[State, Loss]:
        """Score a window without dropout; may return before the device is done."""

    @abstractmethod
    def log_probabilities(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, lengths_B: Ids | None = None
    ) -> tuple[State, NDArray[np.floating]]:
        """Return the state after a window and the log-probability of each target [B, T], in nats.

        Without dropout; the state given stays as it is. It waits for the device, and its memory is that of
        B * T * V logits and of the layers over B * T words: the caller bounds B * T by `max_tokens_per_call`.
        Several threads may call it and `next_word_log_probabilities` at once; all other methods are for one
        thread.

        Args:
            x_BT: Word ids to read.
            y_BT: Targets: the words after them.
            state: State before the window.
            lengths_B: Number of valid words in each row, from 1 to T; None: all. The results for the others,
                and the state of such a row, are arbitrary.
        """

    @abstractmethod
    def next_word_log_probabilities(
        self, x_BT: TokenArray, state: State
    ) -> tuple[State, NDArray[np.floating]]:
        """Read words; return the state and the log-probability of every possible next word, [B, V], in nats.

        Memory, threads and state are as in `log_probabilities`, but for B * V logits.
        """

    @abstractmethod
    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses: the only synchronisation.

        An empty list waits, too.
        """

    @in_model_context
    def update_averages(self, weight: float) -> None:
        """Move the averages of the parameters towards them: average += weight * (parameter - average).

        The very first call makes them equal to the parameters; the weight does not matter then.
        """
        self.training.update_averages(weight)

    @in_model_context
    def swap_averages(self) -> None:
        """Exchange the parameters and their averages; a second call undoes it, to the bit."""
        self.training.swap_averages()

    @contextlib.contextmanager
    def use_averages(self) -> Iterator[None]:
        """Return a context in which the averages replace the parameters; `update_averages` was called before.

        Scoring, exporting and loading then use the averages; nothing is trained. Afterwards the parameters
        are as before, to the bit.
        """
        self.swap_averages()
        try:
            yield
        finally:
            self.swap_averages()

    @in_model_context
    def export_training_state(self, state: State) -> Arrays:
        """Return the state of the training of all ranks, without the parameters and their averages.

        The next step depends on it. The arrays that the cell carries have its names, each [L, B, H]: "h" and
        "c" for an LSTM. H is that of the widest layer, and zeros fill up the others. Other names are the
        framework's (random generators, the optimiser).
        """
        return self.training.export_state(state)

    @in_model_context
    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set a state that `export_training_state` returned, and return the carried state."""
        return self.training.load_state(arrays)


_process: int | None = None  # the process that has built a model


def check_not_forked() -> None:
    """Check that this process can compute.

    Raises:
        UserError: It was forked from a process that had built a model: it has lost the frameworks' threads,
            and would wait for them forever.
    """
    global _process
    _process = _process or os.getpid()
    if os.getpid() != _process:
        raise UserError(
            "this process was forked from one that has loaded a model, and cannot compute; start it by the "
            'method "spawn" or "forkserver" of multiprocessing, and load the model in it'
        )


def build(
    config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = SINGLE_PROCESS
) -> Backend:
    """Build a framework's backend; only that framework is imported.

    Args:
        config: Hyper-parameters.
        weights: Canonical parameters to start from.
        choice: Choice of framework, model, execution, device and precision.
        ranks: Processes that train it together, if there are others; the framework's `join` returned it.

    Raises:
        UserError: The model does not compute the configuration's cell; or the framework is not installed, or
            does not train on several devices; or its device is missing or cannot do what was chosen; or
            `check_not_forked` raises it.
    """
    check_not_forked()
    choice.check_cell(config.cell)
    if ranks.devices > 1 and not choice.framework_row.trains_on_devices:
        raise UserError(f"{choice.framework} trains on one device in each process")
    together = {"ranks": ranks} if ranks.size * ranks.devices > 1 else {}
    return choice.builder()(config, weights, choice, **together)
