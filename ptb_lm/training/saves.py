"""When a run is saved, and what is written then: the best weights, and the newest state."""

import dataclasses
import time
from collections.abc import Callable

from ptb_lm.data.corpus import Corpus
from ptb_lm.model.backend import Arrays, Backend, State
from ptb_lm.training.averaging_schedule import Averages
from ptb_lm.training.progress import Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.state import collect

SAVE_SECONDS = 300.0  # how much work a lost process may lose
# On a GPU an epoch may take two seconds, and saving one. So the ends of epochs save in a tenth of the time.
SHARE_OF_SAVES = 0.1
CHEAP_SECONDS = 0.2  # what takes no longer is saved at the end of each epoch


class Saves:
    """Saves one run.

    Attributes:
        next_at: When a save within an epoch is due, by time.perf_counter.

    Args:
        directory: Where the run's files are; it exists.
        backend: Holds the weights.
        averages: Of the weights.
        run: The run's configuration.
        corpus: Its data.
        run_seconds: Returns for how long the run has been trained, by all of its processes.
    """

    def __init__(
        self,
        directory: RunDirectory,
        backend: Backend,
        averages: Averages,
        *,
        run: RunConfig,
        corpus: Corpus,
        run_seconds: Callable[[], float],
    ) -> None:
        self.directory, self.backend, self.averages = directory, backend, averages
        self.run, self.corpus, self.run_seconds = run, corpus, run_seconds
        self._best: Arrays | None = None  # the best weights, where they are not on disk yet
        self._seconds = 0.0  # of the newest save
        self._newest = time.perf_counter()  # when the newest save ended
        self.next_at = self._newest + SAVE_SECONDS

    def due_after_an_epoch(self) -> bool:
        """Return whether the end of an epoch saves."""
        age = time.perf_counter() - self._newest
        return self._seconds <= max(CHEAP_SECONDS, SHARE_OF_SAVES * age)

    def keep_best(self, progress: Progress) -> None:
        """Keep the weights as they are now; the next save writes them as the best ones."""
        with self.averages.in_place(progress):
            self._best = self.backend.export_weights()

    def save(self, state: State, progress: Progress) -> None:
        """Write the newest training state, and the best weights of the epochs until then.

        The best weights come first: a run that dies between the two files is continued from the older state,
        and finds that its best weights are better than that state says.

        Args:
            state: The carried state.
            progress: How far the run is.

        Raises:
            DivergenceError: A weight is not finite; nothing was written.
            OSError: A file cannot be written.
        """
        start = time.perf_counter()
        saved = collect(self.directory, self.backend, self.averages, state, progress)
        if self._best is not None:
            self._write_best(self._best, progress)
            self._best = None
        progress = dataclasses.replace(progress, run_seconds=self.run_seconds())
        self.directory.write_state(saved._replace(progress=progress), corpus=self.corpus, run=self.run)
        self._newest = time.perf_counter()
        self.next_at = self._newest + SAVE_SECONDS
        self._seconds = self._newest - start

    def _write_best(self, weights: Arrays, progress: Progress) -> None:
        best = {"epoch": progress.best_epoch, "valid_perplexity": progress.best_perplexity}
        # What a resumed run reported before it went on is not true of these weights.
        self.directory.remove_result()
        self.directory.write_weights(weights, self.run, self.corpus.vocabulary, best=best)
