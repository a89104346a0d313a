"""What the JSON files of a run must hold to be believed: result.json and the rows of metrics.jsonl.

Unknown keys are left alone: a later version may say more.
"""

from collections.abc import Mapping
from typing import Any

from ptb_lm.common import json_fields
from ptb_lm.common.json_fields import Check

Row = dict[str, Any]
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
OPTIONAL_OF_EPOCH: Mapping[str, Check] = {"unaveraged_valid_perplexity": json_fields.positive}
BEST: Mapping[str, Check] = {"epoch": json_fields.whole(1), "valid_perplexity": json_fields.positive}


def _environment(value: Any) -> Row:
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
    "environment": _environment,
    "earlier_environments": json_fields.list_of(_environment),
}
OPTIONAL_OF_RESULT: Mapping[str, Check] = {"best_possible_perplexity": json_fields.positive}


def epoch(values: Any, *, number: int | None = None) -> Row:
    """Check a row of metrics.jsonl.

    Args:
        values: The row.
        number: Of the epoch that must be in this place; None: any.

    Raises:
        ValueError: It is none; says why.
    """
    json_fields.fields(values, required=EPOCH, optional=OPTIONAL_OF_EPOCH)
    if number not in (None, values["epoch"]):
        raise ValueError(f"it is of epoch {values['epoch']}, where epoch {number} should be")
    return dict(values)


def epochs(value: Any) -> list[Row]:
    """Check a list of such rows."""
    try:
        return [epoch(row) for row in json_fields.list_of(json_fields.mapping)(value)]
    except ValueError as error:
        raise json_fields.UnfitError(f"a list of epochs' metrics ({error})") from None


def result(values: Any) -> Row:
    """Check what result.json holds.

    Raises:
        ValueError: It is no result; says why.
    """
    json_fields.fields(values, required=RESULT, optional=OPTIONAL_OF_RESULT)
    return dict(values)


def best(values: Any) -> Row:
    """Check the named epoch of the best weights.

    Raises:
        ValueError: It does not say.
    """
    return json_fields.fields(values, required=BEST, optional={})
