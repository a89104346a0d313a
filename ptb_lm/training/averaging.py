"""The average of the weights: when it moves, and how far.

SGD with a constant learning rate wanders about a region; the average of its steps lies nearer the middle than
any of them (Polyak and Juditsky, 1992). The average is scored and kept; the weights themselves are trained.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from ptb_lm.model.backend import Arrays, Backend
from ptb_lm.model.config import Config
from ptb_lm.training.metrics import Progress
from ptb_lm.training.window_plan import WindowPlan

AVERAGE_EVERY = 10  # training steps; a pass over all weights at each step would cost as much as the update
# Early on the average holds the last quarter of the updates, or so: a mean of all would remember for an epoch
# or two how training began. Polynomial-decay averaging: Shamir and Zhang, "Stochastic Gradient Descent for
# Non-smooth Optimization", 2013.
DECAY = 3


def interval(steps_per_epoch: int) -> int:
    """Return the number of training steps between two updates: AVERAGE_EVERY, or an epoch's if it has fewer.

    So every epoch of the usual length has an update.
    """
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


def first_stall(valid_perplexities: Sequence[float], patience: int) -> int | None:
    """Return the number of epochs after which validation has stalled for the first time; None: never yet.

    An epoch stalls if it is worse than the best of those before it, the newest `patience` of which do not
    count: the non-monotone criterion of NT-ASGD (Merity et al., 2018; salesforce/awd-lstm-lm, main.py).

    Args:
        valid_perplexities: Perplexity at the end of each epoch.
        patience: Number of newest epochs that do not count.
    """
    for done, newest in enumerate(valid_perplexities[patience + 1 :], start=patience + 2):
        if newest > min(valid_perplexities[: done - 1 - patience]):
            return done
    return None


class Averages:
    """The averages of a backend's weights, if they are to be averaged.

    With --average-epochs they move from the first steps on, and follow the weights of the last epoch or so.
    With --average-after-stall they are the mean of the weights after each step since the first stall.

    Args:
        backend: Model that keeps the averages.
        config: Hyper-parameters of the run.
        plan: Windows of the run.
    """

    def __init__(self, backend: Backend, config: Config, plan: WindowPlan) -> None:
        self.backend, self.plan = backend, plan
        self.horizon, self.patience = config.average_epochs, config.average_after_stall
        self.interval = interval(plan.usual_steps) if self.horizon else 1

    def start_step(self, progress: Progress) -> int | None:
        """Return the number of training steps before averaging began; None: it has not begun.

        It begins between two epochs.
        """
        if self.horizon:
            return 0
        if not self.patience:
            return None
        # The perplexities of the average come after the first stall and do not move it.
        stall = first_stall([row["valid_perplexity"] for row in progress.rows], self.patience)
        return None if stall is None else self.plan.steps_before(stall)

    def update_if_due(self, steps: int) -> None:
        """Update the averages if an update is due after this many training steps since averaging began."""
        update, steps_since = divmod(steps, self.interval)
        if steps_since:
            return
        update_weight = (
            weight(self.horizon, update=update, steps_per_epoch=self.plan.usual_steps)
            if self.horizon
            else 1 / update
        )
        self.backend.update_averages(update_weight)

    def have_values(self, progress: Progress) -> bool:
        """Return whether there are averages: from the first update on."""
        start_step = self.start_step(progress)
        steps_done = self.plan.steps_before(progress.epoch) + progress.step
        return start_step is not None and steps_done - start_step >= self.interval

    def use(self, progress: Progress) -> AbstractContextManager[None]:
        """Return a context in which the backend's weights are the averages, if there are any yet."""
        return self.backend.use_averages() if self.have_values(progress) else nullcontext()

    def export(self, progress: Progress) -> Arrays:
        """Return the averages by canonical name; an empty mapping if there are none yet."""
        if not self.have_values(progress):
            return {}
        with self.backend.use_averages():
            return self.backend.export_weights()

    def load(self, arrays: Arrays, progress: Progress) -> None:
        """Set the averages that `export` returned."""
        if self.have_values(progress):
            self.backend.update_averages(1.0)  # makes room for the arrays
            with self.backend.use_averages():
                self.backend.load_weights(arrays)
