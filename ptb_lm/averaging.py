"""The moving average of the weights, as pure functions of how far training is.

SGD with a constant learning rate wanders about a region; the average over an epoch or so of its steps lies
nearer the middle than any of them (Polyak and Juditsky, 1992). The average is scored and kept; the weights
themselves are trained.
"""

import math

from ptb_lm.config import Config
from ptb_lm.errors import UserError

AVERAGE_EVERY = 10  # training steps; a pass over all weights at each step would cost as much as the update


def check(config: Config, *, steps_an_epoch: int) -> None:
    """Check that the average is updated at all.

    Raises:
        UserError: The run ends before its first update.
    """
    steps = config.epochs * steps_an_epoch
    if config.average_epochs and not updates(config, steps):
        raise UserError(
            f"--average-epochs {config.average_epochs:g}: the average moves every {AVERAGE_EVERY} steps, and "
            f"this run has {steps}; train for more --epochs, or with --average-epochs 0"
        )


def updates(config: Config, steps_done: int) -> int:
    """Return how often the average has been updated after some training steps of the whole run; 0: never."""
    return steps_done // AVERAGE_EVERY if config.average_epochs else 0


def due(config: Config, steps_done: int) -> bool:
    """Return whether the average is to be updated after this training step of the whole run."""
    return config.average_epochs > 0 and steps_done % AVERAGE_EVERY == 0


def weight(config: Config, *, update: int, steps_an_epoch: int) -> float:
    """Return the w of an update, `average += w * (weights - average)`.

    Args:
        config: The hyper-parameters; `average_epochs` is the horizon after which a step counts 1 / e as much.
        update: Its number, counted from 1: the first ones make a plain mean, which forgets where it began.
        steps_an_epoch: Training steps of an epoch.
    """
    horizon = config.average_epochs * steps_an_epoch
    return max(1 / update, -math.expm1(-AVERAGE_EVERY / horizon))
