"""Timed steps: the plan of a variant's blocks, and the steps, done as the trainer does them."""

import functools
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from typing_extensions import override

from ptb_lm.bench.check.bounds import WrongError
from ptb_lm.bench.check.dropout import hides_masks
from ptb_lm.bench.workloads import LanguageTask, Task, Workload
from ptb_lm.data import corpus
from ptb_lm.model import parameters
from ptb_lm.model.backend import Backend

WINDOWS = 32  # distinct ones, over and over
FIRST_STEPS = 3  # of a run; the loss of the third depends on the gradients of the first two
# A block is planned longer than its workload says by this factor: a processor that speeds up after the
# warm-up makes it shorter than planned, at times by half.
ROOM = 1.5
WARM_UP_PART = 0.2  # of the limit for the blocks of a pass: what its warm-up may take


class WarmUp(NamedTuple):
    """The steps of a worker before it was timed."""

    first_step_seconds: float  # with tracing and compilation
    warm_up_seconds: float  # of all these steps
    warm_up_steps: int
    step_seconds: float  # estimate of a step: the second, or the mean of the last ones if it is less


@dataclass(frozen=True)
class Plan:
    """The number of steps and rounds by which a variant's pass is timed.

    Both numbers are fixed before the first block, by the time of a step in the warm-up. The time of a block
    changes neither, so that no variant is measured more often because it came out slow or fast.

    Attributes:
        steps: Steps of a block.
        full_steps: Steps that would fill a block.
        most_rounds: Number of blocks that the limit leaves time for.
        limit: Seconds for all blocks together.
    """

    steps: int
    full_steps: int
    most_rounds: int
    limit: float

    def note(self, warm_up: WarmUp, workload: Workload) -> str | None:
        """Say what was cut, and by which limit; None if nothing was."""
        cuts = [
            f"{done} of {wanted} {what} (limit: {part * self.limit:g} s)"
            for done, wanted, what, part in (
                (self.most_rounds, workload.rounds, "rounds", 1),
                (self.steps, self.full_steps, "steps a round", 1),
                (warm_up.warm_up_steps, workload.warm_up_steps, "steps to warm up", WARM_UP_PART),
            )
            if done < wanted
        ]
        return ", ".join(cuts) or None


def plan_blocks(workload: Workload, *, step_seconds: float, limit: float, steps: int | None = None) -> Plan:
    """Return the plan for a variant's pass.

    Args:
        workload: Workload with its number of rounds, and its least number of steps.
        step_seconds: Seconds of a step in the warm-up of the first process.
        limit: Seconds for all blocks together. One step of one round is done whatever it takes.
        steps: Steps of the blocks that an interrupted run has measured; None if there are none.
    """
    affordable = int(min(limit / step_seconds, 1e12))  # steps, in all rounds
    full = max(workload.min_steps, math.ceil(ROOM * workload.min_seconds / step_seconds))
    steps = steps or max(1, min(full, affordable // workload.rounds))
    return Plan(steps=steps, full_steps=full, most_rounds=max(1, affordable // steps), limit=limit)


class TimedSteps(ABC):
    """The steps of a task, as a worker times them.

    Attributes:
        model: Model of the task's configuration, which is compared with the reference, too.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def restart(self) -> None:
        """Begin a training run anew: its weights, windows and, where they are known, masks of dropout."""

    def first_losses(self, passes: Collection[str]) -> list[float] | None:
        """Begin anew; return the first losses of each pass, which are the same in every process of a program.

        Each step's loss hangs on all that the steps before it computed, to the last bit. None, and
        nothing is done, where masks of dropout are drawn that nobody knows.
        """
        self.restart()
        return [loss for pass_name in sorted(passes) for loss in self.losses(pass_name, FIRST_STEPS)]

    def losses(self, pass_name: str, steps: int) -> list[float]:
        """Do some steps; return their losses, which the device has computed by then.

        Raises:
            WrongError: The model tells another number of losses: nobody knows that it has done all steps.
        """
        losses = self.do(pass_name, steps)
        if len(losses) != steps:
            raise WrongError(
                f"its read returns {len(losses)} and not {steps} losses: some steps may still be running"
            )
        return losses

    @abstractmethod
    def do(self, pass_name: str, steps: int) -> list[float]:
        """Do some steps; return what the model's `read` makes of their losses."""

    def block(self, pass_name: str, steps: int, *, untimed: int) -> float:
        """Do some steps; return the wall seconds of those that are timed, with the device synchronised.

        Args:
            pass_name: "forward" or "train".
            steps: Number of timed steps.
            untimed: Number of steps before them. They refill the caches, which another process has used.

        Raises:
            ArithmeticError: A loss is not finite.
            WrongError: The model does not tell the loss of each step.
        """
        before = self.losses(pass_name, untimed)
        start = time.perf_counter()
        losses = self.losses(pass_name, steps)
        seconds = time.perf_counter() - start
        for index, loss in enumerate([*before, *losses]):
            if not math.isfinite(loss):
                raise ArithmeticError(f"the loss of step {index} of a block is {loss}")
        return seconds


class LanguageSteps(TimedSteps):
    """A language model's training or evaluation steps, window after window with the state carried."""

    def __init__(self, task: LanguageTask, build: Callable[..., Any], *, seed: int) -> None:
        self.task, self.seed = task, seed
        super().__init__(build(task.config, self._initial()))
        self._rows_BL = self.model.to_device(task.rows(WINDOWS, seed=seed))
        self._begin()
        reports_masks = task.config.has_dropout and not hides_masks(task, self.model)
        self._training_state = self.model.export_training_state(self.state) if reports_masks else {}

    def _begin(self) -> None:
        self.windows = self._windows(self._rows_BL)
        self.state = self.model.zero_state(self.task.batch_size)

    @override
    def restart(self) -> None:
        self.model.load_weights(self._initial())
        self._begin()
        if self._training_state:
            self.state = self.model.load_training_state(self._training_state)

    @override
    def first_losses(self, passes: Collection[str]) -> list[float] | None:
        if not hides_masks(self.task, self.model):
            return super().first_losses(passes)
        without = getattr(self.model, "without_dropout", None)  # None if it cannot switch its dropout off
        if without is None:
            return None
        with without():
            return super().first_losses(passes)

    @override
    def do(self, pass_name: str, steps: int) -> list[float]:
        backend: Backend = self.model
        state, rate = self.state, self.task.config.learning_rate
        losses = []
        for x_BT, y_BT in itertools.islice(self.windows, steps):
            if pass_name == "train":
                state, loss = backend.train_step(x_BT, y_BT, state, learning_rate=rate)
            else:
                state, loss = backend.evaluate_step(x_BT, y_BT, state)
            losses.append(loss)
        self.state = state
        return [loss.nll for loss in backend.read(losses)]

    def _windows(self, rows_BL: corpus.TokenArray) -> Iterator[tuple[corpus.TokenArray, corpus.TokenArray]]:
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
