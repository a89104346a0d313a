"""The steps that a worker times, done as the trainer does them."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ptb_lm import classifier
from ptb_lm.bench.workloads import ClassifierTask, LanguageTask, Task
from ptb_lm.classifier import Classifier
from ptb_lm.data import corpus
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays, Backend

WINDOWS = 32  # distinct ones, over and over


class TimedSteps(Protocol):
    """What a worker times."""

    engine: str

    def loss(self) -> float:
        """Return a loss of the initial weights without dropout, in nats: the same for every variant."""

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
        weights = parameters.initial(task.config, task.vocabulary_size, seed=seed)
        self.task, self.seed = task, seed
        self.backend: Backend = build(task.config, weights)
        self.engine = self.backend.engine
        self.export_weights, self.environment = self.backend.export_weights, self.backend.environment
        self.device_memory = self.backend.device_memory
        rows_BL = self.backend.place(task.rows(WINDOWS, seed=seed))
        self.windows = itertools.cycle(list(corpus.windows(rows_BL, task.config.num_steps)))
        self.state = self.backend.zero_state(task.batch_size)

    def loss(self) -> float:
        """Return the loss of a word of the first window, less its last step.

        Less a step, because a window of another shape than training's is not compiled anew.
        """
        x_BT, y_BT = self.task.window(seed=self.seed)
        x_BT, y_BT = x_BT[:, :-1], y_BT[:, :-1]
        _, loss = self.backend.evaluate_step(x_BT, y_BT, self.backend.zero_state(len(x_BT)))
        return self.backend.read([loss])[0].nll / y_BT.size

    def block(self, pass_name: str, steps: int, *, untimed: int) -> float:
        """Do some steps; return the wall seconds of those that are timed."""
        windows = list(itertools.islice(self.windows, untimed + steps))
        before = self._steps(pass_name, windows[:untimed])
        start = time.perf_counter()
        losses = self._steps(pass_name, windows[untimed:])
        seconds = time.perf_counter() - start
        _check_finite([*before, *losses])
        return seconds

    def _steps(self, pass_name: str, windows: Sequence[tuple[Any, Any]]) -> list[float]:
        """Do a step for each window; return their losses, which the device has computed by then."""
        backend, state, rate = self.backend, self.state, self.task.config.learning_rate
        losses = []
        for x_BT, y_BT in windows:
            if pass_name == "train":
                state, loss = backend.train_step(x_BT, y_BT, state, learning_rate=rate)
            else:
                state, loss = backend.evaluate_step(x_BT, y_BT, state)
            losses.append(loss)
        self.state = state
        return [loss.nll for loss in backend.read(losses)]


class ClassifierSteps:
    """A sequence classifier's training or forward steps, on one batch."""

    def __init__(self, task: ClassifierTask, build: Callable[..., Any], *, seed: int) -> None:
        self.model: Classifier = build(task.config, classifier.initial(task.config, seed=seed))
        self.engine = self.model.engine
        self.export_weights, self.environment = self.model.export_weights, self.model.environment
        self.device_memory = self.model.device_memory
        self.batch = task.batch(seed=seed)

    def loss(self) -> float:
        """Return the batch's loss."""
        return self.model.read([self.model.forward_step(self.batch)])[0]

    def block(self, pass_name: str, steps: int, *, untimed: int) -> float:
        """Do some steps; return the wall seconds of those that are timed."""
        step = self.model.train_step if pass_name == "train" else self.model.forward_step
        before = self.model.read([step(self.batch) for _ in range(untimed)])
        start = time.perf_counter()
        losses = self.model.read([step(self.batch) for _ in range(steps)])
        seconds = time.perf_counter() - start
        _check_finite([*before, *losses])
        return seconds


def prepare(task: Task, build: Callable[..., Any], *, seed: int) -> TimedSteps:
    """Return a task, ready to be timed."""
    if isinstance(task, LanguageTask):
        return LanguageSteps(task, build, seed=seed)
    return ClassifierSteps(task, build, seed=seed)


def _check_finite(losses: list[float]) -> None:
    for index, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss of step {index} of a block is {loss}")
