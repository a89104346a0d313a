"""Save and restore the newest state of a run, from which it can continue."""

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import DivergenceError, OutOfMemoryError, UserError
from ptb_lm.data.corpus import Corpus
from ptb_lm.model import cells, parameters
from ptb_lm.model.backend import Arrays, Backend, State
from ptb_lm.model.config import Config
from ptb_lm.training.averaging_schedule import Averages
from ptb_lm.training.progress import Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.saved_state import SavedState


def collect(
    directory: RunDirectory, backend: Backend, averages: Averages, state: State, progress: Progress
) -> SavedState:
    """Return all that the next step depends on.

    Args:
        directory: The run's.
        backend: Holds the weights.
        averages: Of the weights.
        state: The carried state.
        progress: How far the run is.

    Raises:
        DivergenceError: A weight is not finite: such a state is never saved.
    """
    weights = backend.export_weights()
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise diverged(directory, f"by epoch {progress.epoch + 1}, step {progress.step}")
    training = backend.export_training_state(state)
    return SavedState(weights, training, progress, averages.export(progress))


def restore(
    directory: RunDirectory, backend: Backend, averages: Averages, *, run: RunConfig, corpus: Corpus
) -> tuple[State, Progress]:
    """Load the newest state of a run directory into a backend; return the carried state and the progress.

    Raises:
        UserError: There is no such state, or it belongs to another model, corpus or length of training.
    """
    saved, config = directory.read_state(corpus, run), run.hyperparameters
    progress, dtype = saved.progress, np.float64 if run.choice.precision == "fp64" else np.float32
    try:
        for weights in (saved.weights, saved.averages) if averages.exist(progress) else (saved.weights,):
            parameters.check(weights, config, len(corpus.vocabulary), dtype=dtype)
            _check_finite(weights)
        _check_carried(saved.training, config)
        backend.load_weights(saved.weights)
        averages.load(saved.averages, progress)
        state = backend.load_training_state(saved.training)
    except OutOfMemoryError:
        raise
    except (UserError, KeyError) as error:
        raise UserError(f"{directory.state} does not fit this run: {error}") from None
    best = directory.read_best()
    done = max(progress.epoch, best["epoch"] if best else 0)
    if done > config.epochs:
        raise UserError(f"--epochs {config.epochs}: the run has already done {done} epochs")
    if progress.epoch == config.epochs and progress.step:
        # The weights are no longer those of the last epoch's end.
        raise UserError(f"--epochs {config.epochs}: the run is already in epoch {progress.epoch + 1}")
    if progress.best_epoch and not best:
        raise UserError(f"{directory.weights} is missing; it holds the best weights so far")
    if best and best["valid_perplexity"] < progress.best_perplexity:
        # The process died after it wrote these weights and before it wrote the state of their epoch.
        progress.best_epoch, progress.best_perplexity = best["epoch"], best["valid_perplexity"]
    return state, progress


def diverged(
    directory: RunDirectory, when: str, what: str = "the loss, a gradient or a weight is not finite"
) -> DivergenceError:
    """Return the error that training diverged; it says how to continue from the saved state."""
    return DivergenceError(
        f"training diverged {when}: {what}; the last good state is kept; "
        f"{shlex.join(['--resume', str(directory.path)])} with a smaller --learning-rate continues from it; "
        "if that diverges too, a new run needs a smaller --learning-rate, or smaller initial weights "
        "(--init-scale)"
    )


def _check_finite(arrays: Arrays) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(f"the tensor {name!r} has a number that is not finite")


def _check_carried(training: Mapping[str, NDArray[Any]], config: Config) -> None:
    carried = (config.num_layers, config.batch_size, config.hidden_size)
    for name in cells.get(config.cell).state_names:
        if training[name].shape != carried:
            raise UserError(f"the tensor {name!r} has shape {training[name].shape}, not {carried}")
