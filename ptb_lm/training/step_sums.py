"""What training steps measured and how long they took, added up in the run's progress."""

import math
import time
from collections.abc import Sequence

from ptb_lm.common import cli
from ptb_lm.model.backend import Backend, Loss
from ptb_lm.model.config import Config
from ptb_lm.training.progress import Progress
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.schemas import Row
from ptb_lm.training.state import diverged


class StepSums:
    """Reads the losses of training steps, and adds them up.

    Attributes:
        warm: Whether a step was read. The first step of a process compiles, and is not clocked.

    Args:
        backend: Measures them.
        directory: The run's.
        config: The hyper-parameters.
        environment: The record of this process. It gets the seconds to the first step.
        steps: Training steps of an epoch.
        started: When the command was, by time.perf_counter.
    """

    def __init__(
        self,
        backend: Backend,
        directory: RunDirectory,
        config: Config,
        environment: Row,
        *,
        steps: int,
        started: float,
    ) -> None:
        self.backend, self.directory, self.environment = backend, directory, environment
        self.steps, self.started = steps, started
        self.tokens = config.batch_size * config.num_steps  # a step
        self.warm = False
        self._first = 0, 0.0  # the first step's tokens and seconds

    def read(self, pending: Sequence[Loss], progress: Progress, *, start: float) -> None:
        """Wait for some steps, stop the clock, and add up what they measured.

        Args:
            pending: The steps' losses.
            progress: Gets the sums.
            start: When the first of them began, by time.perf_counter.

        Raises:
            DivergenceError: A loss or gradient is not finite.
        """
        measured = self.backend.read(pending)
        seconds = time.perf_counter() - start
        if self.warm:
            progress.clocked_seconds += seconds
            progress.clocked_tokens += len(pending) * self.tokens
        else:
            # How long a user waits for it: imports, the text, the model, compilation.
            self.environment["seconds_to_first_step"] = start + seconds - self.started
            self.warm = True
            self._first = len(pending) * self.tokens, seconds
        for nll, gradient_norm, new_loss_scale in measured:
            progress.step += 1
            when = f"in epoch {progress.epoch + 1}, step {progress.step} of {self.steps}"
            if new_loss_scale and math.isfinite(nll):
                cli.remark(
                    f"{when}, a gradient overflowed float16: the step is skipped, and the loss scale is "
                    f"{new_loss_scale:g} from here on"
                )
                gradient_norm = 0.0  # it moved nothing
            if not (math.isfinite(nll) and math.isfinite(gradient_norm)):
                raise diverged(self.directory, when)
            progress.nll += nll
            progress.gradient_norms += gradient_norm

    def end_epoch(self, progress: Progress) -> None:
        """Clock the first step after all if the epoch has no other."""
        if not progress.clocked_tokens:
            progress.clocked_tokens, progress.clocked_seconds = self._first
