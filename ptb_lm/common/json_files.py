"""JSON files with checksums: a file of one object, or of an object a line.

The checksum of an object is a field of the object itself: a process that is killed cannot leave the two
apart. It finds damage and edits by hand, not forgery. A person who means an edit removes the checksum: an
object without one is taken as it is.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common import files
from ptb_lm.common.errors import UserError

SHA256_FIELD = "sha256"  # the field of an object that is a file of its own
# The field of a line among many, which people read: 8 characters. It finds every change of up to four
# adjacent characters, and of all other changes all but one in four billion.
CRC32_FIELD = "crc32"

_CHECKSUMS: Mapping[str, Callable[[bytes], str]] = {
    SHA256_FIELD: lambda content: hashlib.sha256(content).hexdigest(),
    CRC32_FIELD: lambda content: f"{zlib.crc32(content):08x}",
}


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object to a file, atomically."""
    files.atomic_write(path, to_text(values))


def to_text(values: Mapping[str, Any]) -> str:
    """Return what `write` writes."""
    return json.dumps(with_checksum(values, SHA256_FIELD), indent=2) + "\n"


def read(path: Path, *, remedy: str) -> Any:
    """Read an object that `write` wrote.

    Args:
        path: The file.
        remedy: Advice for a person whose file is broken or has changed, for the error.

    Raises:
        UserError: The file is a pipe, is no valid JSON, or has changed since it was written.
        OSError: It cannot be read.
    """
    return verify_checksum(parse(_content(path), path, remedy=remedy), SHA256_FIELD, path, remedy=remedy)


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write an object a line to a file, whole and atomically, so that no line is ever incomplete."""
    lines = (json.dumps(with_checksum(row, CRC32_FIELD)) for row in rows)
    files.atomic_write(path, "".join(f"{line}\n" for line in lines))


def read_lines(path: Path, *, remedy: str) -> Iterator[tuple[str, Any]]:
    """Read the objects that `write_lines` wrote.

    Args:
        path: The file.
        remedy: Advice for a person whose file is broken or has changed, for the error.

    Yields:
        (source, values) of each line; the source names it in errors.

    Raises:
        UserError: The file is a pipe; or a line is no valid JSON or has changed since it was written.
        OSError: The file cannot be read.
    """
    for number, line in enumerate(_content(path).splitlines(), start=1):
        source = f"{path}, line {number}"
        yield source, verify_checksum(parse(line, source, remedy=remedy), CRC32_FIELD, source, remedy=remedy)


def parse(content: bytes, source: str | Path, *, remedy: str = "") -> Any:
    """Return the values of JSON, whatever they are.

    Args:
        content: The JSON.
        source: Place where it was read, for the error.
        remedy: Advice for a person whose file is broken, for the error; "": there is none.

    Raises:
        UserError: It is no valid JSON.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # of 100,000 brackets
        raise UserError(f"{source} is not valid JSON{remedy and f': {remedy}'}") from None


def with_checksum(values: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return an object with its checksum as the last field.

    Args:
        values: Values of JSON, without such a field.
        field: SHA256_FIELD or CRC32_FIELD.
    """
    return {**values, field: _checksum(values, field)}


def verify_checksum(values: Any, field: str, source: object, *, remedy: str = "restore it") -> Any:
    """Return an object without its checksum, after comparing them.

    Args:
        values: JSON as it was read. An object without a checksum, or another value, is returned as it is.
        field: SHA256_FIELD or CRC32_FIELD.
        source: Place where it was read, for the error.
        remedy: Advice for a change that nobody wanted, for the error.

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
    # Of the values, not of the text: a program that formats a file anew has changed nothing.
    return _CHECKSUMS[field](json.dumps(values, sort_keys=True).encode())


def _content(path: Path) -> bytes:
    files.refuse_pipe(path)
    with files.name_in_errors(path):
        return path.read_bytes()
