"""Checkpoints of a run: when they are written, what is in them, and how a run continues from one."""

import shlex
import time

import msgspec
import numpy as np

from ptb_lm.common.errors import DivergenceError, OutOfMemoryError, UserError
from ptb_lm.common.flags import command_words, flag_name
from ptb_lm.data.corpus import Corpus
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays, Backend, State
from ptb_lm.training.averaging import Averages
from ptb_lm.training.metrics import JsonObject, Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.tensors import SavedState

# The most training that a lost process may lose. In a validation nothing is saved: what it took is lost, too.
SAVE_SECONDS = 300.0
# On a GPU an epoch may take two seconds, and saving one. So the end of an epoch does not save if the newest
# save took more than this share of the time since, and more than CHEAP_SECONDS.
SHARE_OF_SAVES = 0.1
CHEAP_SECONDS = 0.2
PENALTIES = ("activation_penalty", "slowness_penalty", "weight_decay")  # too large a one diverges


class Checkpoints:
    """Saves and restores one run: its best weights, and its newest training state.

    Attributes:
        next_save_time: Time when a save within an epoch is due, in seconds of time.perf_counter.

    Args:
        directory: Files of the run; the folder exists.
        backend: Model with the weights.
        averages: Moving averages of the weights.
        corpus: Data of the run.
    """

    def __init__(self, directory: RunDirectory, backend: Backend, averages: Averages, corpus: Corpus) -> None:
        self.directory, self.backend, self.averages, self.corpus = directory, backend, averages, corpus
        self._best: Arrays | None = None  # the best weights, where they are not on disk yet
        self._save_seconds = 0.0  # duration of the newest save
        self._last_save_time = time.perf_counter()  # when it ended
        self.next_save_time = self._last_save_time + SAVE_SECONDS

    def is_due_after_epoch(self) -> bool:
        """Return whether the end of an epoch saves."""
        age = time.perf_counter() - self._last_save_time
        return self._save_seconds <= max(CHEAP_SECONDS, SHARE_OF_SAVES * age)

    def keep_best(self, progress: Progress) -> None:
        """Keep the weights as they are now; the next save writes them as the best ones."""
        with self.averages.use(progress):
            self._best = self.backend.export_weights()

    def save(self, run: RunConfig, state: State, progress: Progress, *, run_seconds: float) -> None:
        """Write the newest training state, and the best weights of the epochs until then.

        The best weights come first: a run that dies between the two files is continued from the older state,
        and finds that its best weights are better than that state says.

        Args:
            run: Configuration of the run.
            state: Carried state after the newest step.
            progress: Progress of the run.
            run_seconds: Seconds that the run has been trained, by all of its processes.

        Raises:
            DivergenceError: A weight is not finite; nothing was written.
            OSError: A file cannot be written.
        """
        start = time.perf_counter()
        weights = self.backend.export_weights()
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise divergence_error(
                self.directory, run, f"by epoch {progress.epoch + 1}, step {progress.step}"
            )
        training = self.backend.export_training_state(state)
        averages = self.averages.export(progress)
        if self._best is not None:
            best = {"epoch": progress.best_epoch, "valid_perplexity": progress.best_perplexity}
            self.directory.write_weights(self._best, run, self.corpus.vocabulary, best=best)
            self._best = None
        progress = msgspec.structs.replace(progress, run_seconds=run_seconds)
        self.directory.write_state(
            SavedState(weights, training, progress, averages), corpus=self.corpus, run=run
        )
        self._last_save_time = time.perf_counter()
        self.next_save_time = self._last_save_time + SAVE_SECONDS
        self._save_seconds = self._last_save_time - start

    def restore(self, run: RunConfig) -> tuple[State, Progress]:
        """Load the newest state into the backend; return the carried state and the progress.

        Args:
            run: Configuration of the run, as it goes on.

        Raises:
            UserError: There is no such state; it belongs to another model, corpus or length of training; or
                the best weights are not those that it speaks of.
        """
        config = run.hyperparameters
        best = self.directory.read_best(run, self.corpus.vocabulary)
        newest = self.directory.read_state(self.corpus, run)
        progress = newest.progress
        dtype = np.float64 if run.choice.precision == "fp64" else np.float32
        weight_sets = [newest.weights, *([newest.averages] if self.averages.have_values(progress) else [])]
        try:
            for weights in weight_sets:
                shapes = parameters.shapes(config, len(self.corpus.vocabulary))
                parameters.check(weights, shapes, dtype=dtype, finite=True)
            shape = (config.num_layers, config.batch_size, max(config.hidden_sizes))
            carried = dict.fromkeys(config.cell_declaration.state_names, shape)
            parameters.check({name: newest.training[name] for name in carried}, carried)
            self.backend.load_weights(newest.weights)
            self.averages.load(newest.averages, progress)
            state = self.backend.load_training_state(newest.training)
        except OutOfMemoryError:
            raise
        except (UserError, KeyError) as error:
            problem = f"it lacks the tensor {error}" if isinstance(error, KeyError) else error
            raise UserError(f"{self.directory.state_path} does not fit this run: {problem}") from None
        self._compare_with_best(progress, best, config.epochs)
        return state, progress

    def _compare_with_best(self, progress: Progress, best: JsonObject | None, epochs: int) -> None:
        """Check that the state and the best weights can be continued to the run's epochs; update the best."""
        done = max(progress.epoch, best["epoch"] if best else 0)
        # Within an epoch the weights are no longer those of the end of the epoch before.
        least = max(done, progress.epoch + bool(progress.step))
        if least > epochs:
            partial = "" if least == done else f" and begun epoch {least}"
            raise UserError(
                f"--epochs {epochs}: the run has already done {done} epoch{'s' * (done != 1)}{partial}; "
                f"give at least {least}"
            )
        if progress.best_epoch and not best:
            raise UserError(f"{self.directory.weights_path} is missing; it holds the best weights so far")
        if best and best["valid_perplexity"] > progress.best_perplexity:  # a copy from an earlier time
            raise UserError(
                f"{self.directory.weights_path} holds the weights of epoch {best['epoch']}, but in "
                f"{self.directory.state_path} epoch {progress.best_epoch} is the best; restore its weights"
            )
        if best and best["valid_perplexity"] < progress.best_perplexity:
            # The process died after it wrote these weights and before it wrote the state of their epoch.
            progress.best_epoch, progress.best_perplexity = best["epoch"], best["valid_perplexity"]


def divergence_error(
    directory: RunDirectory,
    run: RunConfig,
    when: str,
    what: str = "the loss, a gradient or a weight is not finite",
) -> DivergenceError:
    """Return the error that training diverged; it says how to continue from the saved state."""
    config = run.hyperparameters
    steps = ["--learning-rate", *(flag_name(name) for name in PENALTIES if getattr(config, name))]
    smaller = f"a smaller {' or '.join(steps)}"
    scales = "--init-scale, --layer-init-scale" if config.layer_init_scale else "--init-scale"
    initial_weights = "" if run.init_from else f", or smaller initial weights ({scales})"
    return DivergenceError(
        f"training diverged {when}: {what}; the last good state is kept; "
        f"{shlex.join(command_words('resume', directory.path))} with {smaller} continues from it; "
        f"if that diverges too, a new run needs {smaller}{initial_weights}"
    )
