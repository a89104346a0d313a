"""The JSON of a run directory: a file of one object, or of an object a line, each with its checksum."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common import checksums, files
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object to a file, atomically."""
    atomic_write(path, json.dumps(checksums.sealed(values, checksums.FILE), indent=2) + "\n")


def read(path: Path, *, remedy: str) -> Any:
    """Read what `write` wrote.

    Args:
        path: The file.
        remedy: What to do about a file that has changed, for the error.

    Raises:
        UserError: It is missing, no valid JSON, or has changed since it was written.
    """
    return checksums.opened(_values(_content(path), path), checksums.FILE, path, remedy=remedy)


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write an object a line to a file, whole and atomically, so that no line is ever incomplete."""
    lines = (json.dumps(checksums.sealed(row, checksums.LINE)) for row in rows)
    atomic_write(path, "".join(f"{line}\n" for line in lines))


def read_lines(path: Path, *, remedy: str) -> Iterator[tuple[str, Any]]:
    """Read what `write_lines` wrote.

    Args:
        path: The file.
        remedy: What to do about a line that has changed, for the error.

    Yields:
        (source, values) of each line; the source is for errors.

    Raises:
        UserError: It is missing, or a line is no valid JSON or has changed since it was written.
    """
    for number, line in enumerate(_content(path).splitlines(), start=1):
        source = f"{path}, line {number}"
        yield source, checksums.opened(_values(line, source), checksums.LINE, source, remedy=remedy)


def _values(content: bytes, source: str | Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # of 100,000 brackets
        raise UserError(f"{source} is not valid JSON") from None


def _content(path: Path) -> bytes:
    folder = path.parent
    try:
        with files.name_in_errors(path):
            return path.read_bytes()
    except FileNotFoundError:
        if not folder.is_dir():
            raise UserError(f"the run directory {folder} does not exist") from None
        inside = sorted(found.parent for found in folder.glob(f"*/{path.name}"))
        hint = f"; it holds runs: name one, such as {inside[0]}" if inside else ""
        raise UserError(f"{folder} is not a run directory: {path.name} is missing{hint}") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is not a run directory") from None
