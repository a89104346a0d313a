"""The settings of a report, kept in OUT/report.json, so that a later report shows the same."""

import json
import os
from pathlib import Path

import msgspec

from ptb_lm.common import json_fields
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write

FILE = "report.json"


class ReportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of a user for a report."""

    baseline: str | None = None  # the variant that ratios are to; None: the one that the rows name
    runs: tuple[Path, ...] = ()  # run directories to show the learning curves of


class _Kept(msgspec.Struct):
    baseline: str | None = None
    runs: list[str] = []


def read(folder: Path) -> ReportSettings:
    """Return the settings of a benchmark's report; defaults, if none were kept.

    Raises:
        UserError: The file is broken.
    """
    path = folder / FILE
    if not path.exists():
        return ReportSettings()
    try:
        kept = json_fields.convert(json.loads(path.read_bytes()), _Kept)
    except ValueError as error:
        broken = "not valid JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
        raise UserError(f"{path}: {broken}") from None
    runs = (Path(os.path.normpath(folder / run)) for run in kept.runs)
    return ReportSettings(baseline=kept.baseline, runs=tuple(runs))


def write(folder: Path, settings: ReportSettings) -> None:
    """Keep what was chosen; runs by their path from the folder, so that both can be moved together.

    Raises:
        OSError: The folder is not writable, or the disk is full.
    """
    runs = [os.path.relpath(run, folder) for run in settings.runs]
    kept = {"baseline": settings.baseline, "runs": runs}
    atomic_write(folder / FILE, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
