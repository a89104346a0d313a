"""The record of a run of the benchmark: OUT/rows.jsonl, to which rows are added, and OUT/bench.json."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptb_lm.bench import rows
from ptb_lm.bench.rows import Row
from ptb_lm.bench.variants import original
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write

SETTINGS = "bench.json"
_REMEDY = "choose another --out, or remove that folder"

Key = tuple[str, str, str, int]  # workload, pass, variant, round


class Record:
    """Rows, added one by one; a run that was interrupted finds its own again.

    Args:
        folder: OUT; it exists.
        settings: What must be the same for rows to stand in one table: kept in bench.json.

    Raises:
        UserError: The folder holds figures of other settings, or a line of it is broken.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.path = folder / rows.FILE
        found = rows.read_lines(self.path) if self.path.exists() else rows.Lines([], [], cut_off=False)
        # Lines are kept as they are: they may hold keys of another version.
        self._lines = list(zip(found.rows, found.texts, strict=True))
        if disagreement := _disagreement(folder / SETTINGS, settings):
            if any(row.is_measured or row.status == rows.WRONG for row in found.rows):
                raise UserError(f"{folder} {disagreement}; {_REMEDY}")
            self._lines = []  # they say why nothing was measured, by other settings
            atomic_write(folder / SETTINGS, json.dumps(settings, indent=1) + "\n")
        self._rewrite()

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for row, _ in self._lines]

    def add(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns.

        It takes the place of a row that says why the same was not possible in an earlier session. If it says
        only that again, or is of a round that was measured before, the earlier one stays. What was wrong
        stays in any case: who tried until it passed would time it in the end.
        """
        earlier = [each for each in self.rows if _is_trouble_before(each, row)]
        if earlier and row.is_measured and _key(row) in self.measured():
            earlier = []
        if any((each.status, each.reason) == (row.status, row.reason) for each in earlier):
            return
        text = rows.to_line(row)
        self._lines = [(each, line) for each, line in self._lines if each not in earlier]
        self._lines.append((row, text))
        if earlier:
            self._rewrite()
            return
        with self.path.open("ab") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def measured(self) -> dict[Key, Row]:
        """Return the rows that are there, by what they measure."""
        return {_key(row): row for row in self.rows if row.is_measured}

    def wrong(self, workload: str) -> dict[str, str]:
        """Return the programs that computed something else than the reference, with the first reason.

        A program that is measured twice, by two names, has the first of them here.
        """
        found: dict[str, str] = {}
        for row in self.rows:
            if row.workload == workload and row.status == rows.WRONG:
                found.setdefault(original(row.variant), row.reason)
        return found

    def _rewrite(self) -> None:
        atomic_write(self.path, b"".join(text + b"\n" for _, text in self._lines))


def _disagreement(path: Path, settings: Mapping[str, Any]) -> str:
    """Say what is not as settings that were kept have it; "" if all is.

    Raises:
        UserError: They are none.
    """
    if not path.exists():
        return f"has rows, but no {path.name}"
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not valid JSON") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object")
    # What only one of the two says counts too: a variable that was set and is not, or the reverse.
    for name in {**settings, **found}:
        was, now = found.get(name), settings.get(name)
        if was != now:
            return f"holds rows of another run ({name} was {was!r}, now {now!r})"
    return ""


def _key(row: Row) -> Key:
    return row.workload, row.pass_name, row.variant, row.round


def _is_trouble_before(row: Row, now: Row) -> bool:
    """Return whether a row says why what another one is about was not possible in an earlier session."""
    same = (row.workload, row.variant, row.pass_name) == (now.workload, now.variant, now.pass_name)
    return same and row.session != now.session and not row.is_measured and row.status != rows.WRONG
