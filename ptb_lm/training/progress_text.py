"""The progress of a run within an epoch, as a text that fits a terminal or as a line of a log."""

import math
from dataclasses import dataclass

from ptb_lm.model.config import Config
from ptb_lm.training.progress import Progress
from ptb_lm.training.scoring import perplexity_of

UNKNOWN = "?"  # stands for a time that cannot be known yet


@dataclass(frozen=True, kw_only=True)
class Status:
    """The progress of a run.

    Attributes:
        epoch: The one at work, counted from 1.
        epochs: How many there will be.
        step: Training steps done in this epoch.
        steps: How many an epoch has.
        loss: Nats a word, the mean of this epoch's steps so far.
        words_per_second: Of this epoch so far; 0 before anything is clocked.
        learning_rate: Of this epoch.
        epoch_seconds: How long the rest of the epoch will take, validation too; NaN if unknown.
        run_seconds: How long the rest of the run will take, without the test; NaN if unknown.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    words_per_second: float
    learning_rate: float
    epoch_seconds: float
    run_seconds: float

    @property
    def perplexity(self) -> float:
        """Of this epoch's training steps so far."""
        return perplexity_of(self.loss, 1)

    @property
    def percent(self) -> int:
        """The percentage of the epoch that is done, rounded down."""
        return 100 * self.step // self.steps


def status(progress: Progress, config: Config, *, steps: int, validation_seconds: float) -> Status:
    """Return where a run is; a step of the epoch is done.

    Args:
        progress: Of the run.
        config: The hyper-parameters.
        steps: Of an epoch.
        validation_seconds: What the validation after an epoch takes; 0 if that is not known yet.
    """
    tokens, speed = config.batch_size * config.num_steps, progress.words_per_second
    a_step = tokens / speed if speed else math.nan
    left = (steps - progress.step) * a_step + validation_seconds
    epochs_after = config.epochs - progress.epoch - 1
    return Status(
        epoch=progress.epoch + 1,
        epochs=config.epochs,
        step=progress.step,
        steps=steps,
        loss=progress.nll / (progress.step * tokens),
        words_per_second=speed,
        learning_rate=config.learning_rate_in(progress.epoch),
        epoch_seconds=left,
        run_seconds=left + epochs_after * (steps * a_step + validation_seconds),
    )


def line(now: Status) -> str:
    """Return a line for a log."""
    return (
        f"epoch {now.epoch:>2}/{now.epochs}  step {now.step:,}/{now.steps:,}  loss {now.loss:.3f}  "
        f"perplexity {_perplexity(now)}  {_speed(now)} words/s  learning rate {now.learning_rate:.4g}  "
        f"left: epoch {duration(now.epoch_seconds)}, run {duration(now.run_seconds)}"
    )


def fitted(now: Status, columns: int) -> tuple[str, str]:
    """Return the text on the left and on the right of a bar, which together fit so many columns.

    The first wording that fits is used: the words become shorter, then the content becomes
    less. A number is never cut.
    """
    for left, right in _wordings(now):
        if len(left) + len(right) < columns:  # there is a space or a bar between them
            return left, right
    return "", ""


def _wordings(now: Status) -> list[tuple[str, str]]:
    epoch, percent = f"{now.epoch}/{now.epochs}", f"{now.percent}%"
    perplexity, speed, rate = _perplexity(now), _speed(now), f"{now.learning_rate:.4g}"
    of_epoch, of_run = duration(now.epoch_seconds), duration(now.run_seconds)
    loss = f"loss {now.loss:.3f}"
    short = f"{loss} ppl {perplexity} {speed} words/s"
    return [
        (
            f"epoch {epoch} {percent:>4}",
            f"{loss}, perplexity {perplexity}, {speed} words/s, learning rate {rate}, "
            f"left: epoch {of_epoch}, run {of_run}",
        ),
        (f"epoch {epoch} {percent}", f"{short} lr {rate} left {of_epoch}, run {of_run}"),
        (f"{epoch} {percent}", f"{short} lr {rate} left {of_epoch}, run {of_run}"),
        (f"{epoch} {percent}", f"{short} lr {rate} run {of_run}"),
        (f"{epoch} {percent}", f"{short} run {of_run}"),
        (f"{epoch} {percent}", f"ppl {perplexity} run {of_run}"),
        (f"{epoch} {percent}", f"ppl {perplexity}"),
        (f"{epoch} {percent}", ""),
    ]


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


def _perplexity(now: Status) -> str:
    value = now.perplexity
    if value < 999.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 1e7 else f"{value:.1e}"


def _speed(now: Status) -> str:
    return f"{now.words_per_second:,.0f}"
