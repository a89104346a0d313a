"""Checks of what a caller gives a trained model: an error is one sentence, and comes at once."""

import math
from collections.abc import Iterable
from numbers import Integral, Real

from ptb_lm.common.errors import UserError


def check_count(count: int, most: int, *, name: str, of: str = "words") -> None:
    """Check how many words are asked for.

    Raises:
        UserError: It is no whole number, or there are not so many.
    """
    check_whole(count, name=name)
    if not 1 <= count <= most:
        raise UserError(f"{name} must be from 1 to {most:,}, the number of {of}, not {count:,}")


def check_whole(value: object, *, least: int | None = None, name: str) -> None:
    """Check a whole number, which may be NumPy's.

    Raises:
        UserError: It is none, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")


def is_finite(value: object) -> bool:
    """Return whether it is a finite number, which may be NumPy's."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def check_text(text: object, *, name: str) -> None:
    """Check that it is a string.

    Raises:
        UserError: It is not.
    """
    if not isinstance(text, str):
        raise UserError(f"{name} must be a string, not {type(text).__name__}")


def check_strings(text: object) -> None:
    """Check that strings can be taken from it; bytes would give numbers.

    Raises:
        UserError: They cannot.
    """
    if isinstance(text, bytes) or not isinstance(text, Iterable):
        raise UserError(f"the text must be a string or several, one a sentence, not {type(text).__name__}")
