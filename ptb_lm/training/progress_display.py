"""The display of an epoch while it trains: a bar at a terminal, lines in a log, points in TensorBoard."""

import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from tqdm import tqdm

from ptb_lm.common import cli
from ptb_lm.model.config import Config
from ptb_lm.training import metrics
from ptb_lm.training.evaluation import perplexity_of
from ptb_lm.training.metrics import Progress
from ptb_lm.training.tensorboard import Scalars

LOG_SECONDS = 30.0  # between two lines of a log
POINTS = 50  # of an epoch in TensorBoard, at most; it shows a thousand of a curve
UNKNOWN_WIDTH = 80  # columns of a terminal that does not tell
UNKNOWN = "?"  # stands for a time that cannot be known yet
SHORTEST_BAR = 10  # columns


def log_timer(seconds: float) -> Callable[[], bool]:
    """Return a function that says whether a line of the log is due, and then waits for the next.

    Args:
        seconds: Time between two lines.
    """
    last = time.perf_counter()

    def is_due() -> bool:
        nonlocal last
        now = time.perf_counter()
        if now - last < seconds:
            return False
        last = now
        return True

    return is_due


class EpochDisplay:
    """Shows the progress of an epoch from its first step, or from the step where a run continues, to its end.

    Args:
        progress: Progress of the run.
        config: Hyper-parameters of the run.
        steps: Number of steps of an epoch.
        is_log_due: Function that says whether a line is printed, if there is no terminal.
        scalars: TensorBoard's file.
        validation_seconds: Duration of the validation after an epoch; 0 if it is not known yet.
    """

    def __init__(
        self,
        progress: Progress,
        config: Config,
        *,
        steps: int,
        is_log_due: Callable[[], bool],
        scalars: Scalars,
        validation_seconds: float,
    ) -> None:
        self.progress, self.config, self.steps = progress, config, steps
        self.is_log_due, self.scalars, self.validation_seconds = is_log_due, scalars, validation_seconds
        self.bar = tqdm(
            total=steps,
            initial=progress.step,
            leave=False,
            disable=None,
            dynamic_ncols=True,
            bar_format=fit_bar([], 0),
        )
        self._point = copy.copy(progress)  # where the newest point is

    def __enter__(self) -> "EpochDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def update(self) -> None:
        """Show the steps that have been done since the last time."""
        now = describe(
            self.progress, self.config, steps=self.steps, validation_seconds=self.validation_seconds
        )
        if not self.bar.disable:
            self.bar.n = self.progress.step
            columns = self.bar.format_dict["ncols"] or UNKNOWN_WIDTH
            self.bar.bar_format = fit_bar(now, columns)
            self.bar.refresh()
        elif sys.stdout is not None and self.is_log_due():
            cli.remark("  ".join(now))
        step = self.progress.step
        if step == self.steps or step - self._point.step >= self.steps / POINTS:
            rate = self.config.learning_rate_in(self.progress.epoch)
            values = metrics.point(self._point, self.progress, self.config, rate=rate)
            self.scalars.add(values, step=self.progress.epoch * self.steps + step)
            self._point = copy.copy(self.progress)


def describe(progress: Progress, config: Config, *, steps: int, validation_seconds: float) -> list[str]:
    """Return facts about where a run is, the most important ones first; a step of the epoch is done.

    Args:
        progress: Progress of the run.
        config: Hyper-parameters of the run.
        steps: Number of steps of an epoch.
        validation_seconds: Duration of the validation after an epoch; 0 if it is not known yet.
    """
    tokens, speed = config.batch_size * config.num_steps, progress.words_per_second
    a_step = tokens / speed if speed else math.nan  # nothing is clocked yet
    epoch_seconds = (steps - progress.step) * a_step + validation_seconds
    epochs_after = config.epochs - progress.epoch - 1
    run_seconds = epoch_seconds + epochs_after * (steps * a_step + validation_seconds)
    loss = progress.nll / (progress.step * tokens)
    return [
        f"epoch {progress.epoch + 1}/{config.epochs}",
        f"{100 * progress.step // steps}%",
        f"ppl {_short(perplexity_of(loss, 1))}",
        f"left {duration(run_seconds)}, epoch {duration(epoch_seconds)}",
        f"loss {loss:.3f}",
        f"{speed:,.0f} words/s",
        f"lr {config.learning_rate_in(progress.epoch):.4g}",
        f"step {progress.step:,}/{steps:,}",
    ]


def fit_bar(facts: Sequence[str], columns: int) -> str:
    """Return tqdm's format of a bar with as many facts as fit so many columns; none of them is cut."""
    while len(text := " ".join(facts)) > columns:
        facts = facts[:-1]
    if columns - len(text) > SHORTEST_BAR:
        return " ".join([*facts[:2], "{bar}", *facts[2:]])
    return text or " "  # without a format tqdm has one of its own


def duration(seconds: float) -> str:
    """Return a time in at most four characters and its unit: 95s, 12m, 1.8h, 37h, 12d."""
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 99.5:
        return f"{seconds:.0f}s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 99.5:
        return f"{minutes:.0f}m"
    if hours < 9.95:
        return f"{hours:.1f}h"
    return f"{hours:.0f}h" if hours < 99.5 else f"{hours / 24:.0f}d"


def _short(perplexity: float) -> str:
    if perplexity < 999.95:
        return f"{perplexity:.1f}"
    return f"{perplexity:.0f}" if perplexity < 1e7 else f"{perplexity:.1e}"
