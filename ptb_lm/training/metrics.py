"""Records of a run: metrics.jsonl, result.json and its progress; what they hold, and their making.

Unknown keys of files are left alone: a later version may say more.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from ptb_lm.common import json_fields
from ptb_lm.common.json_fields import Count, NonNegative, Positive, PositiveCount
from ptb_lm.model.config import Config
from ptb_lm.training.evaluation import format_perplexity, perplexity_from_nll

JsonObject: TypeAlias = dict[str, Any]  # that a run writes: a row of metrics.jsonl, a result, an environment
# TensorBoard tag -> column of metrics.jsonl, which may be missing.
EPOCH_SCALARS = {
    "perplexity/train": "train_perplexity",
    "perplexity/valid": "valid_perplexity",
    "perplexity/valid_unaveraged": "unaveraged_valid_perplexity",
    "learning_rate": "learning_rate",
    "words_per_second": "words_per_second",
    "gradient_norm": "gradient_norm",
}
# TensorBoard tag -> key of result.json.
RESULT_SCALARS = {
    "perplexity/test": "test_perplexity",
    "perplexity/test_of_last_epoch": "final_test_perplexity",
}


class Epoch(msgspec.Struct):
    """A row of metrics.jsonl."""

    epoch: PositiveCount
    learning_rate: NonNegative  # of the epoch's first step
    train_perplexity: Positive
    valid_perplexity: Positive  # of the kept weights: of their average if there is one
    words_per_second: NonNegative
    seconds: NonNegative
    gradient_norm: NonNegative  # mean over the steps
    unaveraged_valid_perplexity: Positive | None = None  # of the weights, in a run that averages them


class Best(msgspec.Struct):
    """The epoch of the best weights."""

    epoch: PositiveCount
    valid_perplexity: Positive


class Environment(msgspec.Struct):
    """The keys of an environment whose types are checked; it may have others."""

    cores: PositiveCount | None = None
    commit: str | None = None
    processor: str | None = None
    platform: str | None = None
    python: str | None = None
    started: str | None = None
    device: str | None = None


class RunResult(msgspec.Struct):
    """The content of result.json."""

    test_perplexity: Positive  # of the best epoch's weights
    valid_perplexity: Positive
    best_epoch: PositiveCount
    epochs: PositiveCount
    words_per_second: NonNegative
    seconds: NonNegative  # of all processes that worked on the run
    final_test_perplexity: Positive  # of the last epoch's weights, as the tutorial has it
    final_valid_perplexity: Positive
    parameters: PositiveCount
    engine: str  # what computed the LSTM
    command: str  # of each process
    command_seconds: NonNegative  # of the last process: all but starting Python
    environment: Environment  # of the last process
    earlier_environments: list[Environment]
    best_possible_perplexity: Positive | None = None  # of any model on the test split, where it is known
    hyperparameters: JsonObject = {}  # of the last epoch; those of an earlier commit are in config.json alone


class Progress(msgspec.Struct, forbid_unknown_fields=True):
    """The progress of a run. Together with the tensors it is all that resuming needs."""

    epoch: Count = 0  # epochs finished
    step: Count = 0  # training windows done in this epoch
    nll: NonNegative = 0.0  # of this epoch's training windows, nats
    gradient_norms: NonNegative = 0.0  # sum over this epoch's steps
    clocked_tokens: Count = 0  # of this epoch, inside the clock
    clocked_seconds: NonNegative = 0.0
    run_seconds: NonNegative = 0.0  # of all processes that worked on this run
    best_epoch: Count = 0  # counted from 1
    best_perplexity: Annotated[float, msgspec.Meta(gt=0)] = math.inf  # on the valid split
    rows: list[JsonObject] = []  # of metrics.jsonl
    commands: list[str] = []  # one a process
    environments: list[JsonObject] = []  # as each process started

    def next_epoch(self) -> None:
        """Count the epoch as finished and start the next one's sums."""
        self.epoch += 1
        self.step = self.clocked_tokens = 0
        self.nll = self.gradient_norms = self.clocked_seconds = 0.0

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
        found = json_fields.convert(values, cls)
        for number, row in enumerate(found.rows, start=1):
            try:
                check_epoch(row, number=number)
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from None
        if values != found.to_json():  # a default stands for what is missing
            raise ValueError("not a run's progress")
        if found.epoch != len(found.rows) or not found.environments:
            raise ValueError("its epochs do not agree with each other")
        return found

    def to_json(self) -> JsonObject:
        """Return everything as JSON types."""
        return msgspec.structs.asdict(self)


def check_epoch(values: Any, *, number: int) -> JsonObject:
    """Check a row of metrics.jsonl, and that it is of this epoch; return it without the keys that have null.

    Raises:
        ValueError: It is not; says why.
    """
    found = json_fields.convert(values, Epoch)
    if found.epoch != number:
        raise ValueError(f"it is of epoch {found.epoch}, where epoch {number} should be")
    return json_fields.without_nulls(values)


def check_result(values: Any) -> JsonObject:
    """Check the content of result.json; return it without the keys that have null, in its environments too.

    Raises:
        UserError, ValueError: It is not a run's result; says why.
    """
    Config.from_json(json_fields.convert(values, RunResult).hyperparameters)
    sessions = [values["environment"], *values["earlier_environments"]]
    environment, *earlier = map(json_fields.without_nulls, sessions)
    return {
        **json_fields.without_nulls(values),
        "environment": environment,
        "earlier_environments": earlier,
    }


def step_scalars(before: Progress, now: Progress, *, tokens: int, rate: float) -> dict[str, float]:
    """Return TensorBoard's values of the steps between two moments of an epoch, by tag.

    Args:
        before: Progress at the first moment.
        now: Progress at the second; a step at least lies between.
        tokens: Number of targets of these steps.
        rate: The learning rate.
    """
    steps = now.step - before.step
    nll = now.nll - before.nll
    values = {
        "step/loss": nll / tokens,
        "step/perplexity": perplexity_from_nll(nll, tokens),
        "step/gradient_norm": (now.gradient_norms - before.gradient_norms) / steps,
        "step/learning_rate": rate,
    }
    seconds = now.clocked_seconds - before.clocked_seconds
    if seconds > 0:  # the first step of a length is not clocked
        values["step/words_per_second"] = (now.clocked_tokens - before.clocked_tokens) / seconds
    return values


def scalars(values: JsonObject, tags: Mapping[str, str]) -> dict[str, float]:
    """Return TensorBoard's values of a row by EPOCH_SCALARS, or of a result by RESULT_SCALARS."""
    return {tag: values[name] for tag, name in tags.items() if name in values}


def epoch_line(row: JsonObject, config: Config, *, last_rate: float) -> str:
    """Return an epoch's row as a line for people.

    Args:
        row: Row of metrics.jsonl.
        config: Hyper-parameters of the run.
        last_rate: Learning rate of the epoch's last step; it is shown where it is not that of the first.
    """
    rates = dict.fromkeys(f"{rate:.4g}" for rate in (row["learning_rate"], last_rate))
    return (
        f"epoch {row['epoch']:>2}/{config.epochs}  lr {' to '.join(rates)}  perplexity: "
        f"train {format_perplexity(row['train_perplexity'])}, "
        f"valid {format_perplexity(row['valid_perplexity'])}  "
        f"{row['words_per_second']:,.0f} words/s"
    )


def words_per_second(rows: Sequence[JsonObject]) -> float:
    """Return the words per second of all epochs together, from their rows of metrics.jsonl."""
    words: float = sum(row["words_per_second"] * row["seconds"] for row in rows)
    seconds: float = sum(row["seconds"] for row in rows)
    return words / max(seconds, 1e-9)
