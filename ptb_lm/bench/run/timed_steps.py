"""The steps that a worker times, done as the trainer does them."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ptb_lm.bench.workloads import LanguageTask, Task
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Words
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays, Backend

WINDOWS = 32  # distinct ones, over and over


class TimedSteps(Protocol):
    """What a worker times."""

    model: Any  # as it was built of the task's configuration, to be compared with the reference

    @property
    def engine(self) -> str:
        """What computes the layers: what did, once a step is done."""

    def restart(self) -> None:
        """Begin anew at a training run's initial weights."""

    def block(self, pass_name: str, steps: int, *, untimed: int) -> float:
        """Do some steps; return the wall seconds of all but the first, with the device synchronised.

        Args:
            pass_name: "forward" or "train".
            steps: How many are timed.
            untimed: How many come before: they bring back to the caches what another process drove out.

        Raises:
            ArithmeticError: A loss is not finite.
        """

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name."""

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""

    def device_memory(self) -> int | None:
        """Return the peak of bytes allocated on the device since it was last asked for; None on a CPU."""


class LanguageSteps:
    """A language model's training or evaluation steps, window after window with the state carried."""

    def __init__(self, task: LanguageTask, build: Callable[..., Any], *, seed: int) -> None:
        self.task, self.seed = task, seed
        self.model: Backend = build(task.config, self._initial())
        self.export_weights, self.environment = self.model.export_weights, self.model.environment
        self.device_memory = self.model.device_memory
        self.windows = self._windows(self.model.place(task.rows(WINDOWS, seed=seed)))
        self.state = self.model.zero_state(task.batch_size)

    @property
    def engine(self) -> str:
        """What computes the layers."""
        return self.model.engine

    def restart(self) -> None:
        """Begin anew at the initial weights and the zero state."""
        self.model.load_weights(self._initial())
        self.state = self.model.zero_state(self.task.batch_size)

    def block(self, pass_name: str, steps: int, *, untimed: int) -> float:
        """Do some steps; return the wall seconds of those that are timed."""
        before = self._steps(pass_name, untimed)
        start = time.perf_counter()
        losses = self._steps(pass_name, steps)
        seconds = time.perf_counter() - start
        check_finite([*before, *losses])
        return seconds

    def _steps(self, pass_name: str, steps: int) -> list[float]:
        """Do some steps; return their losses, which the device has computed by then."""
        backend, state, rate = self.model, self.state, self.task.config.learning_rate
        losses = []
        for x_BT, y_BT in itertools.islice(self.windows, steps):
            if pass_name == "train":
                state, loss = backend.train_step(x_BT, y_BT, state, learning_rate=rate)
            else:
                state, loss = backend.evaluate_step(x_BT, y_BT, state)
            losses.append(loss)
        self.state = state
        return [loss.nll for loss in backend.read(losses)]

    def _windows(self, rows_BL: Words) -> Iterator[tuple[Words, Words]]:
        """Yield windows without end, each cut when it is needed, as in the trainer.

        So a slice of the text on the device is inside of the clock, whoever cuts it.
        """
        while True:
            yield from corpus.windows(rows_BL, self.task.config.num_steps)

    def _initial(self) -> parameters.Weights:
        return parameters.draw_initial(self.task.config, self.task.vocabulary_size, seed=self.seed)


@functools.singledispatch
def prepare(task: Task, build: Callable[..., Any], *, seed: int) -> TimedSteps:
    """Return a task's steps, ready to be timed."""
    raise NotImplementedError(type(task))


prepare.register(LanguageTask)(LanguageSteps)


def check_finite(losses: list[float]) -> None:
    """Raise an ArithmeticError if a loss of a block is not finite."""
    for index, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss of step {index} of a block is {loss}")
