"""Records of a run, result.json and metrics.jsonl: what they must hold, and their reading.

Unknown keys are left alone: a later version may say more.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptb_lm.common import json_fields, json_files
from ptb_lm.common.errors import UserError
from ptb_lm.common.json_fields import Check

JsonObject = dict[str, Any]  # that a run writes: a row of metrics.jsonl, a result, an environment
# Advice for a file that has changed since it was written.
REMEDY = "restore it, or remove result.json and make both files again with --resume"
# The columns of metrics.jsonl.
EPOCH: Mapping[str, Check] = {
    "epoch": json_fields.whole(1),
    "learning_rate": json_fields.least(0),
    "train_perplexity": json_fields.positive,
    "valid_perplexity": json_fields.positive,
    "words_per_second": json_fields.least(0),
    "seconds": json_fields.least(0),
    "gradient_norm": json_fields.least(0),
}
EPOCH_OPTIONAL: Mapping[str, Check] = {"unaveraged_valid_perplexity": json_fields.positive}
BEST: Mapping[str, Check] = {"epoch": json_fields.whole(1), "valid_perplexity": json_fields.positive}


def _check_environment(value: Any) -> JsonObject:
    texts = ("commit", "processor", "platform", "python", "started", "device")
    known = {"cores": json_fields.whole(1), **dict.fromkeys(texts, json_fields.text)}
    try:
        json_fields.fields(value, required={}, optional=known)
    except ValueError as error:
        raise json_fields.UnfitError(f"what a run says of its machine ({error})") from None
    return json_fields.mapping(value)


RESULT: Mapping[str, Check] = {
    "test_perplexity": json_fields.positive,
    "valid_perplexity": json_fields.positive,
    "best_epoch": json_fields.whole(1),
    "epochs": json_fields.whole(1),
    "words_per_second": json_fields.least(0),
    "seconds": json_fields.least(0),
    "final_test_perplexity": json_fields.positive,
    "final_valid_perplexity": json_fields.positive,
    "parameters": json_fields.whole(1),
    "engine": json_fields.text,
    "command": json_fields.text,
    "command_seconds": json_fields.least(0),
    "environment": _check_environment,
    "earlier_environments": json_fields.list_of(_check_environment),
}
RESULT_OPTIONAL: Mapping[str, Check] = {"best_possible_perplexity": json_fields.positive}


def check_epoch(values: Any, *, number: int | None = None) -> JsonObject:
    """Check a row of metrics.jsonl.

    Args:
        values: The row.
        number: Number of the epoch that must be in this place; None: any.

    Raises:
        ValueError: It is no such row; says why.
    """
    json_fields.fields(values, required=EPOCH, optional=EPOCH_OPTIONAL)
    if number not in (None, values["epoch"]):
        raise ValueError(f"it is of epoch {values['epoch']}, where epoch {number} should be")
    return dict(values)


def check_epochs(value: Any) -> list[JsonObject]:
    """Check a list of such rows."""
    try:
        return [check_epoch(row) for row in json_fields.list_of(json_fields.mapping)(value)]
    except ValueError as error:
        raise json_fields.UnfitError(f"a list of epochs' metrics ({error})") from None


def check_result(values: Any) -> JsonObject:
    """Check the values of result.json.

    Raises:
        ValueError: It is no result; says why.
    """
    json_fields.fields(values, required=RESULT, optional=RESULT_OPTIONAL)
    return dict(values)


def check_best(values: Any) -> JsonObject:
    """Check the named epoch of the best weights.

    Raises:
        ValueError: The epoch or its perplexity is missing or impossible.
    """
    return json_fields.fields(values, required=BEST, optional={})


def read_epochs(path: Path) -> list[JsonObject]:
    """Read metrics.jsonl.

    Raises:
        UserError: A line is not the next epoch's metrics, or has changed since it was written.
        OSError: The file cannot be read.
    """
    rows: list[JsonObject] = []
    for source, values in json_files.read_lines(path, remedy=REMEDY):
        try:
            rows.append(check_epoch(values, number=len(rows) + 1))
        except ValueError as error:
            raise UserError(f"{source}: not an epoch's metrics: {error}") from None
    return rows


def read_result(path: Path) -> JsonObject:
    """Read result.json.

    Raises:
        UserError: It is not a run's result, or has changed since it was written.
        OSError: The file cannot be read.
    """
    try:
        return check_result(json_files.read(path, remedy=REMEDY))
    except ValueError as error:
        raise UserError(f"{path} is not a run's result: {error}") from None
