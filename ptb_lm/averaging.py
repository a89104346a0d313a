"""The moving average of the weights: when it moves and how far, and a backend's.

SGD with a constant learning rate wanders about a region; the average over an epoch or so of its steps lies
nearer the middle than any of them (Polyak and Juditsky, 1992). The average is scored and kept; the weights
themselves are trained.
"""

import math
from contextlib import AbstractContextManager, nullcontext

from ptb_lm.backend import Arrays, Backend
from ptb_lm.config import Config
from ptb_lm.errors import UserError
from ptb_lm.progress import Progress

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


class Averages:
    """The averages of a backend's weights.

    Args:
        backend: Keeps them.
        config: The hyper-parameters.
        steps_an_epoch: Training steps of an epoch.
    """

    def __init__(self, backend: Backend, config: Config, *, steps_an_epoch: int) -> None:
        self.backend, self.config, self.steps = backend, config, steps_an_epoch

    def move(self, steps_done: int) -> None:
        """Move them if that is due after this many training steps of the whole run."""
        if due(self.config, steps_done):
            update = updates(self.config, steps_done)
            self.backend.average(weight(self.config, update=update, steps_an_epoch=self.steps))

    def exist(self, progress: Progress) -> bool:
        """Return whether there are any yet."""
        return updates(self.config, progress.epoch * self.steps + progress.step) > 0

    def in_place(self, progress: Progress) -> AbstractContextManager[None]:
        """Return a context in which the backend's weights are the averages, if there are any yet."""
        return self.backend.averaged() if self.exist(progress) else nullcontext()

    def export(self, progress: Progress) -> Arrays:
        """Return them by canonical name; nothing if there are none yet."""
        if not self.exist(progress):
            return {}
        with self.backend.averaged():
            return self.backend.export_weights()

    def load(self, arrays: Arrays, progress: Progress) -> None:
        """Set what `export` returned."""
        if self.exist(progress):
            self.backend.average(1.0)  # makes room for them
            with self.backend.averaged():
                self.backend.load_weights(arrays)
