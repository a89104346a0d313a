"""The progress of a run within an epoch: facts for a line of a log, or for a terminal as many as fit it."""

import math
from collections.abc import Sequence

from ptb_lm.model.config import Config
from ptb_lm.training.progress import Progress
from ptb_lm.training.scoring import perplexity_of

UNKNOWN = "?"  # stands for a time that cannot be known yet
SHORTEST_BAR = 10  # columns


def facts(progress: Progress, config: Config, *, steps: int, validation_seconds: float) -> list[str]:
    """Return where a run is, in facts of which the first ones matter most; a step of the epoch is done.

    Args:
        progress: The run's.
        config: The hyper-parameters.
        steps: The number of steps of an epoch.
        validation_seconds: What the validation after an epoch takes; 0 if that is not known yet.
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


def fitted(facts: Sequence[str], columns: int) -> str:
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
