"""The settings of a report, kept in OUT/report.json, so that a later report shows the same."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_lm.common import json_fields
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write

FILE = "report.json"


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """The choices of a user for a report."""

    baseline: str | None = None  # the variant that ratios are to; None: the one that the rows name
    runs: tuple[Path, ...] = ()  # run directories to show the learning curves of


def read(folder: Path) -> ReportSettings:
    """Return what was chosen for a benchmark's report; nothing, where nothing was.

    Raises:
        UserError: The file is broken.
    """
    path = folder / FILE
    if not path.exists():
        return ReportSettings()
    optional = {"baseline": json_fields.text, "runs": _texts}
    try:
        found = json_fields.fields(json.loads(path.read_bytes()), required={}, optional=optional)
    except ValueError as error:
        broken = "not valid JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
        raise UserError(f"{path}: {broken}") from None
    runs = (Path(os.path.normpath(folder / run)) for run in found.pop("runs", ()))
    return ReportSettings(runs=tuple(runs), **found)


def write(folder: Path, settings: ReportSettings) -> None:
    """Keep what was chosen; runs by their path from the folder, so that both can be moved together.

    Raises:
        OSError: The folder is not writable, or the disk is full.
    """
    runs = [os.path.relpath(run, folder) for run in settings.runs]
    kept = {"baseline": settings.baseline, "runs": runs}
    atomic_write(folder / FILE, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def _texts(value: Any) -> Sequence[str]:
    if not isinstance(value, list):
        raise json_fields.UnfitError("a list")
    return [json_fields.text(each) for each in value]
