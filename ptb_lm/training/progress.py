"""The progress of a run, and the training state that it continues from."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ptb_lm.common import json_fields
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.training import schemas, tensors
from ptb_lm.training.evaluation import perplexity_of
from ptb_lm.training.schemas import JsonObject


def _best_perplexity(value: Any) -> float:
    """Check for a perplexity, or the infinity that it is before the first epoch's end."""
    return math.inf if value == math.inf else json_fields.positive(value)


STATE_METADATA = ("config", "progress", "corpus_sha256")  # keys of the metadata of a training state
# Checks of the values that have the type of their field.
_CHECKS: dict[str, json_fields.Check] = {
    **dict.fromkeys(("epoch", "step", "clocked_tokens", "best_epoch"), json_fields.whole(0)),
    **dict.fromkeys(("nll", "gradient_norms", "clocked_seconds", "run_seconds"), json_fields.least(0)),
    "best_perplexity": _best_perplexity,
    "rows": schemas.check_epochs,
    "commands": json_fields.list_of(json_fields.text),
    "environments": json_fields.list_of(json_fields.mapping),
}


@dataclass
class Progress:
    """The progress of a run. Together with the tensors it is all that resuming needs."""

    epoch: int = 0  # epochs finished
    step: int = 0  # training windows done in this epoch
    nll: float = 0.0  # of this epoch's training windows, nats
    gradient_norms: float = 0.0  # sum over this epoch's steps
    clocked_tokens: int = 0  # of this epoch, inside the clock
    clocked_seconds: float = 0.0
    run_seconds: float = 0.0  # of all processes that worked on this run
    best_epoch: int = 0  # counted from 1
    best_perplexity: float = math.inf  # on the valid split
    rows: list[JsonObject] = field(default_factory=list)  # of metrics.jsonl
    commands: list[str] = field(default_factory=list)  # one a process
    environments: list[JsonObject] = field(default_factory=list)  # as each process started

    def next_epoch(self) -> None:
        """Count the epoch as finished and start the next one's sums."""
        self.epoch += 1
        self.step = self.clocked_tokens = 0
        self.nll = self.gradient_norms = self.clocked_seconds = 0.0

    def train_perplexity(self, tokens_per_step: int) -> float:
        """Return the perplexity of this epoch's training windows so far; at least one is done."""
        return perplexity_of(self.nll, self.step * tokens_per_step)

    @property
    def words_per_second(self) -> float:
        """Target tokens trained per second in this epoch, within the measured time."""
        return self.clocked_tokens / max(self.clocked_seconds, 1e-9)

    @classmethod
    def from_json(cls, values: Any) -> "Progress":
        """Read the values that `to_json` returned.

        Raises:
            ValueError: A value is missing, unknown or of another type.
        """
        types = {name: type(value) for name, value in cls().to_json().items()}
        if not isinstance(values, dict) or {name: type(v) for name, v in values.items()} != types:
            raise ValueError("not a run's progress")
        found = cls(**{**values, **json_fields.fields(values, required=_CHECKS, optional={})})
        if found.epoch != len(found.rows) or not found.environments:
            raise ValueError("its epochs do not agree with each other")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return dataclasses.asdict(self)


class SavedState(NamedTuple):
    """The newest training state. A file of tensors holds it with a prefix for each kind of array."""

    weights: Arrays  # by canonical name
    training: Arrays  # the backend's other arrays
    progress: Progress
    averages: Arrays  # of the weights, by canonical name; none if none are kept, or not yet

    @classmethod
    def load(cls, path: Path) -> tuple["SavedState", JsonObject]:
        """Read what `save` wrote: the state, and the metadata of its file.

        Raises:
            UserError: The file is missing, truncated, damaged or foreign.
        """
        arrays, metadata = tensors.load(path)
        try:
            progress = Progress.from_json(metadata.get("progress"))
        except ValueError as error:
            raise UserError(f"{path} does not hold a training state: {error}") from None
        if others := sorted(metadata.keys() - set(STATE_METADATA)):
            raise UserError(f"{path} has an unknown key {others[0]!r} in its metadata")
        weights, training, averages = (
            {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
            for kind in ("weights.", "training.", "averages.")
        )
        return cls(weights, training, progress, averages), metadata

    def save(self, path: Path, *, config: JsonObject, corpus_sha256: str) -> None:
        """Write the state, and the configuration and the data that it belongs to, to a file of tensors."""
        kinds = {"weights": self.weights, "training": self.training, "averages": self.averages}
        arrays = {f"{kind}.{name}": array for kind, group in kinds.items() for name, array in group.items()}
        metadata = {"config": config, "progress": self.progress.to_json(), "corpus_sha256": corpus_sha256}
        tensors.save(path, arrays, metadata)
