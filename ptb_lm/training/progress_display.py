"""What is seen of an epoch while it trains: a bar at a terminal, lines in a log, points in TensorBoard."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

from ptb_lm.common import cli
from ptb_lm.model.config import Config
from ptb_lm.training import metrics, progress_text
from ptb_lm.training.progress import Progress
from ptb_lm.training.scalars import Scalars

LOG_SECONDS = 30.0  # between two lines of a log
POINTS = 50  # of an epoch in TensorBoard, at most; it shows a thousand of a curve
UNKNOWN_WIDTH = 80  # of a terminal that does not tell


class Log:
    """Decides when a line of the log is due.

    Args:
        seconds: Between two lines.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._last = seconds, time.perf_counter()

    def due(self) -> bool:
        """Return whether a line is due; if it is, the time to the next one begins."""
        now = time.perf_counter()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


class Watch:
    """Shows the progress of an epoch from its first step, or from the step where a run continues, to its end.

    Args:
        progress: Of the run.
        config: The hyper-parameters.
        steps: Of an epoch.
        log: When to print a line if there is no terminal.
        scalars: TensorBoard's file.
        validation_seconds: What the validation after an epoch takes; 0 if that is not known yet.
    """

    def __init__(
        self,
        progress: Progress,
        config: Config,
        *,
        steps: int,
        log: Log,
        scalars: Scalars,
        validation_seconds: float,
    ) -> None:
        self.progress, self.config, self.steps = progress, config, steps
        self.log, self.scalars, self.validation_seconds = log, scalars, validation_seconds
        self.bar = tqdm(
            total=steps,
            initial=progress.step,
            leave=False,
            disable=None,
            dynamic_ncols=True,
            bar_format=progress_text.fitted([], 0),
        )
        self._point = metrics.Sums.of(progress)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def update(self) -> None:
        """Show the steps that have been done since the last time."""
        now = progress_text.facts(
            self.progress, self.config, steps=self.steps, validation_seconds=self.validation_seconds
        )
        if not self.bar.disable:
            self.bar.n = self.progress.step
            columns = self.bar.format_dict["ncols"] or UNKNOWN_WIDTH
            self.bar.bar_format = progress_text.fitted(now, columns)
            self.bar.refresh()
        elif sys.stdout is not None and self.log.due():
            cli.remark("  ".join(now))
        since = metrics.Sums.of(self.progress)
        if since.step == self.steps or since.step - self._point.step >= self.steps / POINTS:
            rate = self.config.learning_rate_in(self.progress.epoch)
            values = metrics.point(self._point, since, self.config, rate=rate)
            self.scalars.add(values, step=self.progress.epoch * self.steps + since.step)
            self._point = since
