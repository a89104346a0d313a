"""How far a run is."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from ptb_lm.common import json_fields
from ptb_lm.training import schemas
from ptb_lm.training.schemas import Row
from ptb_lm.training.scoring import perplexity_of


def _best_perplexity(value: Any) -> float:
    """Check for a perplexity, or the infinity that it is before the first epoch's end."""
    return math.inf if value == math.inf else json_fields.positive(value)


# What the types of the fields leave open.
_CHECKS: dict[str, json_fields.Check] = {
    **dict.fromkeys(("epoch", "step", "clocked_tokens", "best_epoch"), json_fields.whole(0)),
    **dict.fromkeys(("nll", "gradient_norms", "clocked_seconds", "run_seconds"), json_fields.least(0)),
    "best_perplexity": _best_perplexity,
    "rows": schemas.epochs,
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
    rows: list[Row] = field(default_factory=list)  # of metrics.jsonl
    commands: list[str] = field(default_factory=list)  # one a process
    environments: list[Row] = field(default_factory=list)  # as each process started

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
        """Read what `to_json` returned.

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
