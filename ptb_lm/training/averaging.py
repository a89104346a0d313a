"""The moving average of the weights: when it moves, and how far.

SGD with a constant learning rate wanders about a region; the average over an epoch or so of its steps lies
nearer the middle than any of them (Polyak and Juditsky, 1992). The average is scored and kept; the weights
themselves are trained.
"""

import math
from contextlib import AbstractContextManager, nullcontext

from ptb_lm.model.backend import Arrays, Backend
from ptb_lm.model.config import Config
from ptb_lm.training.metrics import Progress

AVERAGE_EVERY = 10  # training steps; a pass over all weights at each step would cost as much as the update
# Early on the average holds the last quarter of the updates, or so: a mean of all would remember for an epoch
# or two how training began. Polynomial-decay averaging: Shamir and Zhang, "Stochastic Gradient Descent for
# Non-smooth Optimization", 2013.
DECAY = 3


def interval(steps_per_epoch: int) -> int:
    """Return the training steps between two updates; fewer in a short epoch, so that each epoch has one."""
    return min(AVERAGE_EVERY, steps_per_epoch)


def weight(horizon: float, *, update: int, steps_per_epoch: int) -> float:
    """Return the weight w of an update, `average += w * (weights - average)`.

    Args:
        horizon: Epochs after which a step counts 1 / e as much.
        update: Number of the update. The first one, 1, sets the average to the weights.
        steps_per_epoch: Training steps of an epoch.
    """
    early = (1 + DECAY) / (update + DECAY)
    return max(early, -math.expm1(-interval(steps_per_epoch) / (horizon * steps_per_epoch)))


class Averages:
    """The averages of a backend's weights, if they are to be averaged.

    Args:
        backend: Model that keeps the averages.
        config: Hyper-parameters of the run.
        steps_per_epoch: Training steps of an epoch.
    """

    def __init__(self, backend: Backend, config: Config, *, steps_per_epoch: int) -> None:
        self.backend, self.horizon, self.steps = backend, config.average_epochs, steps_per_epoch

    def update_if_due(self, steps_done: int) -> None:
        """Update the averages if an update is due after this many training steps of the whole run."""
        update, steps_since = divmod(steps_done, interval(self.steps))
        if self.horizon and not steps_since:
            self.backend.average(weight(self.horizon, update=update, steps_per_epoch=self.steps))

    def exist(self, progress: Progress) -> bool:
        """Return whether there are averages: from the first update on, which is in the first epoch."""
        return self.horizon > 0 and progress.epoch * self.steps + progress.step >= interval(self.steps)

    def use(self, progress: Progress) -> AbstractContextManager[None]:
        """Return a context in which the backend's weights are the averages, if there are any yet."""
        return self.backend.use_averages() if self.exist(progress) else nullcontext()

    def export(self, progress: Progress) -> Arrays:
        """Return the averages by canonical name; an empty mapping if there are none yet."""
        if not self.exist(progress):
            return {}
        with self.backend.use_averages():
            return self.backend.export_weights()

    def load(self, arrays: Arrays, progress: Progress) -> None:
        """Set the averages that `export` returned."""
        if self.exist(progress):
            self.backend.average(1.0)  # makes room for the arrays
            with self.backend.use_averages():
                self.backend.load_weights(arrays)
