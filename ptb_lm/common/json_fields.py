"""Checks of values from JSON: a struct declares their types and bounds, and an error names the key."""

import re
import reprlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

_SHORT = reprlib.Repr()  # the short form of a value, for errors
_SHORT.maxstring = _SHORT.maxother = 80

LARGEST_COUNT = 2**53  # what a float holds exactly: nothing that is counted here comes near

# Types of the fields of a struct that `convert` checks.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
PositiveCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
NonNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
# Products and ratios of such numbers are finite, and not 0.
Quantity: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]


def convert(values: Any, struct: type[T]) -> T:
    """Return values of JSON as a struct, without conversions between types. null counts as missing.

    Raises:
        ValueError: A value is not as the struct declares it; one sentence names the key.
    """
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    values = without_nulls(values)
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(str(error), values)) from None


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON without the keys that have null."""
    return {key: value for key, value in values.items() if value is not None}


def _sentence(error: str, values: Any) -> str:
    """Return msgspec's error as a sentence; it ends in the path of the value, $.work.unit or $.runs[0]."""
    problem, _, path = error.partition(" - at `$.")
    names = re.findall(r"[^.\[\]`]+", path)
    if missing := re.search("missing required field `(.*)`", problem):
        return ": ".join([*names[:1], f"the key {missing[1]!r} is missing"])
    if unknown := re.search("unknown field `(.*)`", problem):
        return ": ".join([*names[:1], f"unknown key {unknown[1]!r}"])
    for name in names:
        # Of a list, or of an object of any keys, msgspec does not tell which.
        if isinstance(values, dict) and name in values:
            values, key = values[name], name
    within = f"{names[0]}: " if key != names[0] else ""
    return f"{within}{key} cannot be {_SHORT.repr(values)}: {problem[0].lower()}{problem[1:]}"
