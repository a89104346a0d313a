"""What the JSON files of a run must hold to be believed: result.json and the rows of metrics.jsonl.

Unknown keys are left alone: a later version may say more.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptb_lm import checks
from ptb_lm.checks import Check
from ptb_lm.errors import UserError

Row = dict[str, Any]
# The columns of metrics.jsonl that the runs of every version have.
EPOCH: Mapping[str, Check] = {
    "epoch": checks.whole(1),
    "learning_rate": checks.least(0),
    "train_perplexity": checks.positive,
    "valid_perplexity": checks.positive,
    "words_per_second": checks.least(0),
    "seconds": checks.least(0),
}
LATER_OF_EPOCH: Mapping[str, Check] = {
    "unaveraged_valid_perplexity": checks.positive,
    "gradient_norm": checks.least(0),
}
BEST: Mapping[str, Check] = {"epoch": checks.whole(1), "valid_perplexity": checks.positive}


def _environment(value: Any) -> Row:
    texts = ("commit", "processor", "platform", "python", "started", "device")
    known = {"cores": checks.whole(1), **dict.fromkeys(texts, checks.text)}
    try:
        checks.fields(value, required={}, optional=known)
    except ValueError as error:
        raise checks.UnfitError(f"what a run says of its machine ({error})") from None
    return checks.mapping(value)


RESULT: Mapping[str, Check] = {
    "test_perplexity": checks.positive,
    "valid_perplexity": checks.positive,
    "best_epoch": checks.whole(1),
    "epochs": checks.whole(1),
    "words_per_second": checks.least(0),
}
LATER_OF_RESULT: Mapping[str, Check] = {
    "seconds": checks.least(0),
    "final_test_perplexity": checks.positive,
    "final_valid_perplexity": checks.positive,
    "best_possible_perplexity": checks.positive,
    "parameters": checks.whole(1),
    "engine": checks.text,
    "command": checks.text,
    "command_seconds": checks.least(0),
    "environment": _environment,
    "earlier_environments": checks.list_of(_environment),
}


def json_of(content: str | bytes, source: str | Path) -> Any:
    """Return what JSON says.

    Raises:
        UserError: It is none.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # of 100,000 brackets
        raise UserError(f"{source} is not valid JSON") from None


def epoch(values: Any) -> Row:
    """Check a row of metrics.jsonl.

    Raises:
        ValueError: It is none; says why.
    """
    checks.fields(values, required=EPOCH, optional=LATER_OF_EPOCH)
    return dict(values)


def epochs(value: Any) -> list[Row]:
    """Check a list of such rows."""
    try:
        return [epoch(row) for row in checks.list_of(checks.mapping)(value)]
    except ValueError as error:
        raise checks.UnfitError(f"a list of epochs' metrics ({error})") from None


def result(values: Any) -> Row:
    """Check what result.json holds.

    Raises:
        ValueError: It is no result; says why.
    """
    checks.fields(values, required=RESULT, optional=LATER_OF_RESULT)
    return dict(values)


def best(values: Any) -> Row:
    """Check which epoch the best weights are said to be of.

    Raises:
        ValueError: It does not say.
    """
    return checks.fields(values, required=BEST, optional={})
