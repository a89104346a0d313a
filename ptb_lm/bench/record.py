"""The raw record of a benchmark: OUT/rows.jsonl, a line for each block measured, and OUT/bench.json."""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write

Row = dict[str, Any]
Key = tuple[str, str, str, int]  # workload, pass, variant, round


class Record:
    """Rows, added one by one; a run that was interrupted finds its own again.

    Args:
        folder: OUT; it exists.
        settings: What must be the same for rows to stand in one table: kept in bench.json.

    Raises:
        UserError: The folder holds rows of other settings, or a line of it is broken.
    """

    def __init__(self, folder: Path, settings: Row) -> None:
        self.folder = folder
        self.path = folder / "rows.jsonl"
        self._agree(folder / "bench.json", settings)
        self._rewrite(read(self.path))

    def retry(self, workload: str, variants: Collection[str]) -> None:
        """Forget why some variants could not do a workload: it may be possible by now."""
        self._rewrite(
            row
            for row in self.rows
            if row["status"] == "measured" or row["workload"] != workload or row["variant"] not in variants
        )

    def add(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())

    def measured(self) -> dict[Key, Row]:
        """Return the rows that are there, by what they measure."""
        return {
            (row["workload"], row["pass"], row["variant"], row["round"]): row
            for row in self.rows
            if row["status"] == "measured"
        }

    def _rewrite(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        atomic_write(self.path, "".join(map(_line, self.rows)))

    def _agree(self, path: Path, settings: Row) -> None:
        if not path.exists():
            if self.path.exists():
                raise UserError(f"{self.folder} has rows, but no bench.json; choose another --out")
            atomic_write(path, json.dumps(settings, indent=1) + "\n")
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise UserError(f"{path} is not valid JSON") from None
        for name, value in settings.items():
            if not isinstance(found, dict) or found.get(name) != value:
                was = found.get(name) if isinstance(found, dict) else None
                raise UserError(
                    f"{self.folder} holds rows of another run ({name} was {was!r}, now {value!r}); "
                    "choose another --out"
                )


def read(path: Path) -> list[Row]:
    """Read rows; a last line that a crash cut off is left out.

    Raises:
        UserError: Another line is broken.
    """
    return list(_parsed(path)) if path.exists() else []


def _parsed(path: Path) -> Iterator[Row]:
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines) and not line.endswith(b"\n"):
                return
            raise UserError(f"{path}, line {number}: not valid JSON") from None
        yield row


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
