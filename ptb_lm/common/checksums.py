"""A checksum in an object of JSON, of all its other fields, so that a changed digit does not go unnoticed.

It stands in the object itself: a process that is killed cannot leave the two apart. It finds damage and edits
by hand, not forgery. Who means an edit removes the checksum: an object without one is taken as it is.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from ptb_lm.common.errors import UserError

FILE = "sha256"  # the field of an object that is a file of its own
# The field of a line among many, which people read: 8 characters. It finds every change of up to four
# adjacent characters, and of all other changes all but one in four billion.
LINE = "crc32"

_OF: Mapping[str, Callable[[bytes], str]] = {
    FILE: lambda content: hashlib.sha256(content).hexdigest(),
    LINE: lambda content: f"{zlib.crc32(content):08x}",
}


def sealed(values: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return an object with its checksum as the last field.

    Args:
        values: What JSON can say, without such a field.
        field: FILE or LINE.
    """
    return {**values, field: _checksum(values, field)}


def opened(values: Any, field: str, source: object, *, remedy: str = "restore it") -> Any:
    """Return what was sealed, without its checksum; what has no checksum, or is no object, as it is.

    Args:
        values: As JSON was read.
        field: FILE or LINE.
        source: Where it was read, for the error.
        remedy: What to do about a change that nobody wanted, for the error.

    Raises:
        UserError: The checksum is not that of the other fields.
    """
    if not isinstance(values, dict) or field not in values:
        return values
    others = {name: value for name, value in values.items() if name != field}
    if values[field] != _checksum(others, field):
        raise UserError(
            f"{source} has changed since it was written (its {field} does not fit): {remedy}, or, if the "
            f"change is right, remove its field {field}"
        )
    return others


def _checksum(values: Mapping[str, Any], field: str) -> str:
    # Of the values, not of the text: whoever formats a file anew has changed nothing.
    return _OF[field](json.dumps(values, sort_keys=True).encode())
