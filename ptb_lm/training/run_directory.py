"""A run directory. This module alone decides what the files of a run hold, but for TensorBoard's."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from ptb_lm.common import files, json_fields, json_files
from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import path_word
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.training import metrics, tensors
from ptb_lm.training.metrics import Best, JsonObject
from ptb_lm.training.run_config import RESUMABLE, RunConfig

P = ParamSpec("P")
T = TypeVar("T")

# Keys that the metadata of the weights may have.
WEIGHTS_METADATA = ("config", "vocabulary_sha256", "best")
# Advice for a file that has changed since it was written.
CONFIG_REMEDY = "restore it; flags of --resume change settings"
METRICS_REMEDY = "restore it, or remove result.json and make both files again with --resume"


class NoEpochError(UserError):
    """No epoch of a run has ended yet."""


def _on_first(
    method: Callable[Concatenate["RunDirectory", P], T],
) -> Callable[Concatenate["RunDirectory", P], T]:
    """Let the first of several processes alone do the work of a method; all get what it returned."""

    @functools.wraps(method)
    def shared(self: "RunDirectory", /, *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            # Without ranks: a method that calls another one must not wait for processes that are not in it.
            alone = RunDirectory(self.path)
            self._check_place()
            try:
                return method(alone, *args, **kwargs)
            except (OSError, UserError):
                self._check_place()  # a folder that is lost in the middle is the cause, not a missing file
                raise

        return self.ranks.run_on_first(work)

    return shared


class RunDirectory:
    """The files of a run.

    The methods read and write the files; `config_path` and so on are their paths, for errors and for people.

    Of several processes that train the run the first reads and writes, and all know what it read. The others
    need not see the folder: they may be on other machines. An error of the first is one of all. While the
    folder is locked, it is an error if another one, or none, has taken its place.

    Args:
        path: The folder, as the first process sees it; it need not exist.
        ranks: The processes that train the run together.
    """

    def __init__(self, path: Path, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.path, self.ranks = path, ranks
        self._is_in_place: Callable[[], bool] | None = None  # of the lock, while this process has it
        self.config_path = path / "config.json"
        self.metrics_path = path / "metrics.jsonl"
        self.result_path = path / "result.json"
        self.weights_path = path / "weights.safetensors"
        self.vocabulary_path = path / "vocabulary.txt"
        self.state_path = path / "state" / "training.safetensors"
        # What a training writes. A new one removes the state first: without it nothing is resumed.
        self._training_files = (self.state_path, self.weights_path, self.result_path, self.metrics_path)

    @_on_first
    def create(self, run: RunConfig, vocabulary: Vocabulary) -> None:
        """Make the folder with its configuration and vocabulary, and remove the files of an older run.

        If these two cannot be written, the older run stays.
        """
        (self.path / "state").mkdir(parents=True, exist_ok=True)
        self.remove_leftovers()
        with contextlib.ExitStack() as renames:  # the last one first: without config.json it is no run
            for path, content in (
                (self.vocabulary_path, vocabulary.to_text()),
                (self.config_path, json_files.to_text(run.to_json())),
            ):
                temporary = renames.enter_context(files.atomic_path(path))
                temporary.write_bytes(content.encode())
                files.flush(temporary)  # while the older run is still there
            for stale in (*self._training_files, *self.event_files()):
                stale.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock this folder against other training processes; make it if it does not exist.

        Raises:
            UserError: Another process is at work in it.
        """
        with contextlib.ExitStack() as held:

            def acquire() -> None:
                self._is_in_place = held.enter_context(files.lock(self.path))

            self.ranks.run_on_first(acquire)
            try:
                yield
            finally:
                self._is_in_place = None

    def _check_place(self) -> None:
        """Check that the folder is the one that was locked, if it was."""
        if self._is_in_place is not None and not self._is_in_place():
            raise UserError(
                f"the run directory {self.path} was removed, moved or replaced while it was in use, so "
                "nothing more is saved there; if it was moved, --resume continues it in its new place"
            )

    @_on_first
    def is_expendable(self) -> bool:
        """Return whether a run failed here before it wrote a state, so that nothing would be lost.

        The temporary files of a killed process do not count.
        """
        leftovers = set(self._leftovers())
        early_files = {self.config_path, self.vocabulary_path, self.state_path.parent, *self.event_files()}
        entries = set(self.path.iterdir()) - leftovers
        if not entries <= early_files or set(self.state_path.parent.glob("*")) - leftovers:
            return False
        try:
            self.read_config()
        except UserError:
            return entries == {self.state_path.parent}
        return True

    @_on_first
    def remove_leftovers(self) -> None:
        """Remove the temporary files of a process that was killed while it wrote."""
        for leftover in self._leftovers():
            leftover.unlink(missing_ok=True)

    def _leftovers(self) -> Iterator[Path]:
        for path in (self.config_path, self.vocabulary_path, *self._training_files):
            yield from files.leftovers(path)

    @_on_first
    def write_config(self, run: RunConfig) -> None:
        """Write config.json."""
        json_files.write(self.config_path, run.to_json())

    @_on_first
    def read_config(self) -> RunConfig:
        """Read config.json.

        Raises:
            UserError: It is missing, not a configuration, or has changed since it was written.
        """
        with _explain_missing(self.config_path):
            values = json_files.read(self.config_path, remedy=CONFIG_REMEDY)
        return RunConfig.from_json(values, self.config_path)

    @_on_first
    def read_vocabulary(self) -> Vocabulary:
        """Read vocabulary.txt.

        Raises:
            UserError: It is missing or not a vocabulary.
        """
        return Vocabulary.load(self.vocabulary_path)

    @_on_first
    def write_metrics(self, rows: Sequence[JsonObject]) -> None:
        """Write metrics.jsonl, one row per epoch, whole and atomically, so that no row is ever incomplete."""
        json_files.write_lines(self.metrics_path, rows)

    @_on_first
    def restore_metrics(self, rows: Sequence[JsonObject]) -> None:
        """Write metrics.jsonl if it is missing, is broken, or has other rows."""
        with contextlib.suppress(UserError):
            if self.read_metrics() == [*rows]:
                return
        self.write_metrics(rows)

    def read_metrics(self) -> list[JsonObject]:
        """Read metrics.jsonl: one row per epoch, at least one.

        Raises:
            NoEpochError: No epoch has ended yet.
            UserError: The file is missing or broken, a line has changed since it was written, or the run
                has ended and it has no line.
        """
        if self.config_path.is_file() and not self.metrics_path.exists():
            if self.is_expendable():
                raise NoEpochError(f"{self.metrics_path} is missing")
            raise UserError(f"{self.metrics_path} is missing; --resume writes it again")
        rows: list[JsonObject] = []
        with _explain_missing(self.metrics_path):
            for source, values in json_files.read_lines(self.metrics_path, remedy=METRICS_REMEDY):
                try:
                    rows.append(metrics.check_epoch(values, number=len(rows) + 1))
                except ValueError as error:
                    raise UserError(f"{source}: not an epoch's metrics: {error}") from None
        if not rows:
            self.read_end(epochs=0)  # refuses it if the run has ended
            raise NoEpochError(f"{self.metrics_path} holds no epochs yet")
        return rows

    @_on_first
    def write_result(self, result: JsonObject) -> None:
        """Write result.json."""
        json_files.write(self.result_path, result)

    @_on_first
    def read_result(self) -> JsonObject | None:
        """Read result.json; None if the run is not finished.

        Raises:
            UserError: It is not a run's result, or has changed since it was written.
        """
        if not self.result_path.exists():
            return None
        values = json_files.read(self.result_path, remedy=METRICS_REMEDY)
        try:
            return metrics.check_result(values)
        except (UserError, ValueError) as error:
            raise UserError(f"{self.result_path} is not a run's result: {error}") from None

    def read_end(self, epochs: int) -> JsonObject:
        """Read result.json, unless the run has done more epochs since.

        Args:
            epochs: Number of epochs in metrics.jsonl.

        Returns:
            The result; empty if the run has not ended, or was resumed and has done more epochs since.

        Raises:
            UserError: As read_result does, or it is of more epochs than there are.
        """
        result = self.read_result() or {}
        if epochs < result.get("epochs", 0):
            raise UserError(
                f"{self.metrics_path} ends before epoch {result['epochs']}, the last in {self.result_path}"
            )
        return {} if epochs > result.get("epochs", 0) else result

    @_on_first
    def read_weights(self, run: RunConfig, vocabulary: Vocabulary) -> Arrays:
        """Read the best weights and check that they belong to this run, its model and its vocabulary.

        Raises:
            UserError: The file is missing, damaged or foreign, or of another run, model or vocabulary.
        """
        return self._load_weights(run, vocabulary)[0]

    def _load_weights(self, run: RunConfig, vocabulary: Vocabulary) -> tuple[Arrays, JsonObject]:
        """Return the best weights and their metadata, checked as `read_weights` says."""
        if self.config_path.is_file() and not self.weights_path.exists():
            raise UserError(
                f"{self.weights_path} is missing; it holds the best weights: restore it, or, if no epoch has "
                "been saved yet, let the run go on"
            )
        import_it = f"ptb-lm import {path_word(self.path)}"
        remedy = f"restore it, or, to use what it is now, make a run of it with: {import_it}"
        arrays, metadata = tensors.load(self.weights_path, known=WEIGHTS_METADATA, remedy=remedy)
        if metadata.get("vocabulary_sha256") != vocabulary.sha256:
            raise UserError(
                f"{self.weights_path} was trained with another vocabulary than {self.vocabulary_path}: "
                f"{remedy}"
            )
        self._check_config(run, metadata, self.weights_path)
        try:
            parameters.check(
                arrays, parameters.shapes(run.hyperparameters, len(vocabulary)), dtype=np.float32
            )
        except UserError as error:
            raise UserError(
                f"{self.weights_path} does not fit {self.config_path}: {error}; {remedy}"
            ) from None
        return arrays, metadata

    def read_model(self) -> tuple[RunConfig, Vocabulary, Arrays]:
        """Read the trained model: configuration, vocabulary, and the best weights by canonical name.

        Raises:
            UserError: As for `read_config`, `read_vocabulary` and `read_weights`.
        """
        run, vocabulary = self.read_config(), self.read_vocabulary()
        return run, vocabulary, self.read_weights(run, vocabulary)

    @_on_first
    def read_best(self, run: RunConfig, vocabulary: Vocabulary) -> dict[str, Any] | None:
        """Return the epoch and valid_perplexity of the best weights; None before the first epoch has ended.

        Raises:
            UserError: As for `read_weights`, or the file does not name the epoch of its weights.
        """
        if not self.weights_path.exists():
            return None
        best: JsonObject = self._load_weights(run, vocabulary)[1].get("best", {})
        try:
            json_fields.convert(best, Best)
        except ValueError as error:
            raise UserError(f"{self.weights_path} does not name the epoch of its weights: {error}") from None
        return best

    @_on_first
    def write_weights(
        self, weights: Arrays, run: RunConfig, vocabulary: Vocabulary, *, best: dict[str, Any] | None
    ) -> None:
        """Write the best weights in float32, with the metadata for `read_weights` and `read_best`.

        A result that was reported before the run went on is removed: it is not true of these weights.

        Args:
            weights: Canonical parameters.
            run: The run's configuration.
            vocabulary: The run's words.
            best: The epoch of the weights and its valid_perplexity; None: the run was imported.
        """
        metadata = {
            "config": run.to_json(),
            "vocabulary_sha256": vocabulary.sha256,
            **({"best": best} if best else {}),
        }
        singles = {name: array.astype(np.float32) for name, array in weights.items()}
        self.result_path.unlink(missing_ok=True)
        tensors.save(self.weights_path, singles, metadata)

    @_on_first
    def read_state(self, corpus: Corpus | None = None, run: RunConfig | None = None) -> tensors.SavedState:
        """Read the newest training state.

        Raises:
            UserError: The file is missing, truncated, damaged or foreign, or was saved with another corpus or
                by another run than these.
        """
        state, metadata = tensors.SavedState.load(self.state_path)
        if run is not None:
            self._check_config(run, metadata, self.state_path)
        if corpus is not None and metadata.get("corpus_sha256") != corpus.sha256:
            # The best weights, once there are any, tell whether the vocabulary is the same.
            what = "the data" if self.weights_path.exists() else f"the data or {self.vocabulary_path}"
            raise UserError(
                f"{what} differ from those that {self.state_path} was trained on; restore them, or "
                "start a new run"
            )
        return state

    @_on_first
    def write_state(self, state: tensors.SavedState, *, corpus: Corpus, run: RunConfig) -> None:
        """Write the newest training state, in the precision of the model.

        Its folder is made again if somebody removed it while the run was trained.
        """
        self.state_path.parent.mkdir(exist_ok=True)
        state.save(self.state_path, config=run.to_json(), corpus_sha256=corpus.sha256)

    def _check_config(self, run: RunConfig, metadata: JsonObject, path: Path) -> None:
        """Check that config.json and a file of tensors agree on all values that may not change."""
        if "config" not in metadata:
            raise UserError(f"{path} does not name the configuration of its run")
        written = RunConfig.from_json(metadata["config"], path)
        if differences := written.differences(run, ignore=RESUMABLE):
            raise UserError(f"{self.config_path} and {path} differ: {', '.join(differences)}")
        if written.preparation != run.preparation:
            raise UserError(f"{self.config_path} and {path} differ in how the text was prepared")

    def event_files(self) -> list[Path]:
        """Return TensorBoard's files."""
        return sorted(self.path.glob("events.out.tfevents*"))


@contextlib.contextmanager
def _explain_missing(path: Path) -> Iterator[None]:
    """Make the error of a missing file say whether its folder is a run directory."""
    folder = path.parent
    try:
        yield
    except FileNotFoundError:
        if not folder.is_dir():
            raise UserError(f"the run directory {folder} does not exist") from None
        inside = sorted(found.parent for found in folder.glob(f"*/{path.name}"))
        hint = f"; it holds runs: name one, such as {inside[0]}" if inside else ""
        raise UserError(f"{folder} is not a run directory: {path.name} is missing{hint}") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is not a run directory") from None
