"""The moving average of a run's weights, in its backend; ptb_lm.averaging says when it moves, and how far."""

from contextlib import AbstractContextManager, nullcontext

from ptb_lm import averaging
from ptb_lm.backend import Arrays, Backend
from ptb_lm.config import Config
from ptb_lm.progress import Progress


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
        if averaging.due(self.config, steps_done):
            update = averaging.updates(self.config, steps_done)
            weight = averaging.weight(self.config, update=update, steps_an_epoch=self.steps)
            self.backend.average(weight)

    def exist(self, progress: Progress) -> bool:
        """Return whether there are any yet."""
        return averaging.updates(self.config, progress.epoch * self.steps + progress.step) > 0

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
