"""Checks of values from JSON. Each returns the value or raises an error that says what it must be."""

import math
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

_SHORT = reprlib.Repr()  # of what is said of a value
_SHORT.maxstring = _SHORT.maxother = 80

MOST = 2**53  # what a float holds exactly: nothing that is counted here comes near

# Types of the fields of a struct that `convert` checks.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1, le=MOST)]
Finite: TypeAlias = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
# Products and ratios of such numbers are finite, and not 0.
Quantity: TypeAlias = Annotated[float, Meta(ge=1e-30, le=1e30)]

Check = Callable[[Any], Any]  # returns the value; raises UnfitError


class UnfitError(Exception):
    """A value is not what it must be; the message says what that is."""


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
    if missing := re.search("missing required field `(.*)`", problem):
        return f"the key {missing[1]!r} is missing"
    names = re.findall(r"[^.\[\]`]+", path)
    for name in names:
        if name in values:  # of a list, or of an object of any keys, msgspec does not tell which
            values, key = values[name], name
    return f"{key} cannot be {_SHORT.repr(values)}: {problem[0].lower()}{problem[1:]}"


def fields(values: Any, *, required: Mapping[str, Check], optional: Mapping[str, Check]) -> dict[str, Any]:
    """Return the fields that have checks. null counts as missing.

    Raises:
        ValueError: It is no object, a required field is missing, or a value is not what it must be.
    """
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    found = {}
    for key, check in {**required, **optional}.items():
        if values.get(key) is None:
            if key in required:
                raise ValueError(f"the key {key!r} is missing")
            continue
        try:
            found[key] = check(values[key])
        except UnfitError as error:
            raise ValueError(f"{key} cannot be {_SHORT.repr(values[key])}: it must be {error}") from None
    return found


def text(value: Any) -> str:
    """Check for a text."""
    if not isinstance(value, str):
        raise UnfitError("a text")
    return value


def whole(least: int) -> Check:
    """Return a check for a whole number. true and 1.0 do not count."""

    def check(value: Any) -> int:
        if type(value) is not int or value < least:
            raise UnfitError(f"a whole number of at least {least}")
        if value > MOST:
            raise UnfitError(f"a whole number of at most {MOST}")
        return value

    return check


def finite(value: Any) -> float:
    """Check for a finite number."""
    found = _number(value)
    if not math.isfinite(found):
        raise UnfitError("a finite number")
    return found


def positive(value: Any) -> float:
    """Check for a finite number above 0."""
    found = _number(value)
    if not (math.isfinite(found) and found > 0):
        raise UnfitError("a number above 0")
    return found


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise UnfitError("a number")
    try:
        return float(value)
    except OverflowError:  # a whole number beyond a float
        return math.inf


def least(bound: float) -> Check:
    """Return a check for a finite number of at least a bound."""

    def check(value: Any) -> float:
        found = finite(value)
        if found < bound:
            raise UnfitError(f"a number of at least {bound:g}")
        return found

    return check


def list_of(of: Check) -> Check:
    """Return a check for a list."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise UnfitError("a list")
        return [of(each) for each in value]

    return check


def mapping(value: Any) -> dict[str, Any]:
    """Check for an object."""
    if not isinstance(value, dict):
        raise UnfitError("a JSON object")
    return value
