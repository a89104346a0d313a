"""A run directory: its files, and the configuration that it was made with."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write, locked
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import CHOSEN, Choice
from ptb_lm.model.config import HYPERPARAMETERS, Config
from ptb_lm.training import checkpoint
from ptb_lm.training.progress import Progress

# Keys that config.json did not always have, with what every run did before.
ADDED = {"recipe": "tutorial", "execution": "eager", "unroll": "static"}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run: what config.json holds.

    Attributes:
        config: The preset's name.
        recipe: How it is trained, a name in ptb_lm.model.config.RECIPES.
        data: What --data named.
        choice: What computes it.
        hyperparameters: The preset's, with what was given in their place.
    """

    config: str
    recipe: str
    data: str
    choice: Choice
    hyperparameters: Config

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON types: the choice's names beside the others."""
        return {
            "config": self.config,
            "recipe": self.recipe,
            "data": self.data,
            **self.choice.to_json(),
            "hyperparameters": dataclasses.asdict(self.hyperparameters),
        }

    @classmethod
    def from_json(cls, values: Any, source: Path) -> "RunConfig":
        """Read what `to_json` returned, or an older version of it; unknown and missing keys are errors.

        Raises:
            UserError: A key is unknown or missing, or a value impossible.
        """
        if isinstance(values, dict):
            values = {**ADDED, **values}
        values = _checked_keys(("config", "recipe", "data", *CHOSEN, "hyperparameters"), values, source)
        hyperparameters = values.pop("hyperparameters")
        if isinstance(hyperparameters, dict):
            added = {each.name: each.before for each in HYPERPARAMETERS if each.before is not None}
            hyperparameters = {**added, **hyperparameters}
        names = [each.name for each in HYPERPARAMETERS]
        hyperparameters = _checked_keys(names, hyperparameters, source)
        for name, value in values.items():
            if type(value) is not (int if name == "seed" else str):
                raise UserError(f"{source}: {name} cannot be {value!r}")
        try:
            choice = Choice(**{name: values.pop(name) for name in CHOSEN})
            return cls(choice=choice, hyperparameters=Config(**hyperparameters), **values)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None


class SavedState(NamedTuple):
    """The newest training state."""

    weights: Arrays  # by canonical name
    training: Arrays  # the backend's other arrays
    progress: Progress
    averages: Arrays  # of the weights, by canonical name; none if none are kept, or not yet


class RunDirectory:
    """The files of a run.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.weights = path / "weights.safetensors"
        self.vocabulary = path / "vocabulary.txt"
        self.state = path / "state" / "training.safetensors"

    def create(self, run: RunConfig, vocabulary: Vocabulary) -> None:
        """Make the folder, with its configuration and vocabulary; what an older run left is removed."""
        (self.path / "state").mkdir(parents=True, exist_ok=True)
        self.remove_leftovers()
        for stale in (self.state, self.weights, self.result, self.metrics, *self.event_files()):
            stale.unlink(missing_ok=True)
        self.write_config(run)
        vocabulary.save(self.vocabulary)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder; it is made if it is not there.

        Raises:
            UserError: Another process is at work in it.
        """
        with locked(self.state.parent, name=self.path):
            yield

    def is_stillborn(self) -> bool:
        """Return whether a run of ours failed before its first state was written: nothing is lost."""
        ours = {self.config, self.vocabulary, self.state.parent, *self.event_files()}
        entries = set(self.path.iterdir())
        if not entries <= ours or any(self.state.parent.glob("*")):
            return False
        try:
            self.read_config()
        except UserError:
            return entries == {self.state.parent}
        return True

    def remove_leftovers(self) -> None:
        """Remove the temporary files of a process that was killed while it wrote."""
        for path in (self.config, self.metrics, self.result, self.weights, self.vocabulary, self.state):
            for leftover in path.parent.glob(f".{path.name}.*.tmp"):
                leftover.unlink(missing_ok=True)

    def event_files(self) -> list[Path]:
        """Return TensorBoard's files."""
        return sorted(self.path.glob("events.out.tfevents*"))

    def write_config(self, run: RunConfig) -> None:
        """Write config.json."""
        atomic_write(self.config, json.dumps(run.to_json(), indent=2) + "\n")

    def read_config(self) -> RunConfig:
        """Read config.json.

        Raises:
            UserError: It is missing or not a configuration.
        """
        return RunConfig.from_json(_read_json(self.config, self.path), self.config)

    def read_result(self) -> dict[str, Any]:
        """Read result.json.

        Raises:
            UserError: It is missing or not JSON.
        """
        result: dict[str, Any] = _read_json(self.result, self.path)
        return result

    def read_weights(self, run: RunConfig, vocabulary: Vocabulary) -> Arrays:
        """Read the best weights and check that they belong to this run's model and vocabulary.

        Raises:
            UserError: The file is missing, truncated, foreign, or of another model or vocabulary.
        """
        if self.config.is_file() and not self.weights.exists():
            raise UserError(f"{self.weights} is missing; a run's first epoch writes it")
        arrays, metadata = checkpoint.load(self.weights)
        if metadata.get("vocabulary_sha256") != vocabulary.sha256:
            raise UserError(f"{self.weights} was trained with another vocabulary than {self.vocabulary}")
        try:
            parameters.check(arrays, run.hyperparameters, len(vocabulary))
        except UserError as error:
            raise UserError(f"{self.weights} does not fit {self.config}: {error}") from None
        return arrays

    def read_best(self) -> dict[str, Any] | None:
        """Return the epoch and valid_perplexity of the best weights; None if there are none yet.

        Raises:
            UserError: The file is truncated or foreign.
        """
        if not self.weights.exists():
            return None
        best = checkpoint.load(self.weights)[1].get("best")
        if not isinstance(best, dict) or not {"epoch", "valid_perplexity"} <= best.keys():
            raise UserError(f"{self.weights} does not say which epoch it is of")
        return best

    def write_weights(
        self, weights: Arrays, run: RunConfig, vocabulary: Vocabulary, *, best: dict[str, Any]
    ) -> None:
        """Write the best weights, in float32, with what `read_weights` and `read_best` look at."""
        metadata = {"config": run.to_json(), "vocabulary_sha256": vocabulary.sha256, "best": best}
        singles = {name: array.astype(np.float32) for name, array in weights.items()}
        checkpoint.save(self.weights, singles, metadata)

    def read_state(self, corpus: Corpus | None = None) -> SavedState:
        """Read the newest training state.

        Raises:
            UserError: The file is missing, truncated or foreign, or was saved with another corpus.
        """
        arrays, metadata = checkpoint.load(self.state)
        try:
            progress = Progress.from_json(metadata.get("progress"))
        except ValueError:
            raise UserError(f"{self.state} does not hold a training state") from None
        if corpus is not None and metadata.get("corpus_sha256") != corpus.sha256:
            raise UserError(f"the data are not those that {self.state} was trained on")
        weights, training, averages = (
            _with_prefix(arrays, prefix) for prefix in ("weights.", "training.", "averages.")
        )
        return SavedState(weights, training, progress, averages)

    def write_state(self, state: SavedState, *, corpus: Corpus) -> None:
        """Write the newest training state, in the precision of the model."""
        arrays = {f"weights.{name}": array for name, array in state.weights.items()}
        arrays |= {f"training.{name}": array for name, array in state.training.items()}
        arrays |= {f"averages.{name}": array for name, array in state.averages.items()}
        metadata = {"progress": state.progress.to_json(), "corpus_sha256": corpus.sha256}
        checkpoint.save(self.state, arrays, metadata)


def _with_prefix(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def _read_json(path: Path, folder: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        if not folder.is_dir():
            raise UserError(f"the run directory {folder} does not exist") from None
        raise UserError(f"{folder} is not a run directory: {path.name} is missing") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is not a run directory") from None
    except ValueError:
        raise UserError(f"{path} is not valid JSON") from None


def _checked_keys(expected: Sequence[str], values: Any, source: Path) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{source} is not a run's configuration")
    for name in sorted(values.keys() - set(expected)):
        raise UserError(f"{source}: unknown key {name!r}")
    for name in sorted(set(expected) - values.keys()):
        raise UserError(f"{source}: the key {name!r} is missing")
    return dict(values)
