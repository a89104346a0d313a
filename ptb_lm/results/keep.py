"""Copy the useful files of a run to results/."""

import filecmp
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from ptb_lm.comparison import runs
from ptb_lm.results import checks, markdown, records
from ptb_lm.training import same_run
from ptb_lm.training.run_directory import RunDirectory

TIMED = ("seconds", "words_per_second")  # columns of an epoch that no second run repeats


def differences(run: RunDirectory, kept: RunDirectory) -> list[str]:
    """Return what tells a run from the one that was kept before, with both values; nothing if it is the same.

    A run that went on with another schedule is the same: it begins with the epochs that were kept.

    Raises:
        UserError: A file is broken.
    """
    there, here = kept.read_config(), run.read_config()
    if _goes_on(kept, run):
        return there.fixed_differences(here)
    found = same_run.differences(there, here)
    epochs = there.hyperparameters.epochs, here.hyperparameters.epochs
    if epochs[0] != epochs[1]:
        found.append(f"epochs {epochs[0]} there, {epochs[1]} here")
    return found


def _goes_on(before: RunDirectory, now: RunDirectory) -> bool:
    """Return whether a run has all epochs of an earlier copy, with the same numbers."""
    if not (before.metrics.is_file() and now.metrics.is_file()):
        return False
    earlier, later = (
        [{name: value for name, value in row.items() if name not in TIMED} for row in each.read_metrics()]
        for each in (before, now)
    )
    return earlier == later[: len(earlier)]


def keep(run: Path, kept: Path) -> bool:
    """Copy what a run has done so far, and draw its learning curve.

    A run that has ended is replaced only by one that has ended, too. The copy is made beside what was kept
    before and then put in its place, so that a full disk leaves that as it was. Files that are no run's, as
    notes, stay; the curve and the record stay if they are of the same run.

    Args:
        run: The run's folder.
        kept: Where to keep it, a folder in results/.

    Returns:
        Whether there was anything to keep.

    Raises:
        UserError: A file of the run, or of what was kept before, is broken.
        OSError: A file cannot be copied, or the disk is full.
    """
    source, before = RunDirectory(run), RunDirectory(kept)
    if not source.metrics.is_file() or not source.metrics.stat().st_size:
        return False
    if not source.has_ended() and before.has_ended():
        return False
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".keep.") as beside:
        new = Path(beside) / "new"
        _make(source, before, new)
        _replace(kept, new, aside=Path(beside) / "old")
    if importlib.util.find_spec("matplotlib"):
        markdown.draw_curve(runs.read(kept))
    else:
        print(f"there is no new picture of {kept}: matplotlib is not installed", file=sys.stderr)
    return True


def _make(source: RunDirectory, before: RunDirectory, new: Path) -> None:
    files = RunDirectory(new)
    if before.path.is_dir():
        _copy(before.path, new)
    else:
        new.mkdir()
    for stale in (files.result, *files.event_files()):
        stale.unlink(missing_ok=True)
    if not (files.metrics.exists() and filecmp.cmp(source.metrics, files.metrics, shallow=False)):
        for of_another_run in (markdown.CURVE, records.FILE, checks.FILE):
            (new / of_another_run).unlink(missing_ok=True)
    for path in (source.config, source.metrics, source.result):
        if path.exists():
            shutil.copyfile(path, new / path.name)
    # Numbered in their order: TensorBoard's names hold the machine's, and change with every run.
    for number, path in enumerate(source.event_files(), start=1):
        shutil.copyfile(path, new / f"events.out.tfevents.{number:03d}")


def _copy(folder: Path, new: Path) -> None:
    """Copy a folder. shutil.copytree would keep only the texts of the system's errors, not their numbers."""
    new.mkdir()
    for path in folder.iterdir():
        if path.is_dir():
            _copy(path, new / path.name)
        else:
            shutil.copy2(path, new / path.name)


def _replace(kept: Path, new: Path, *, aside: Path) -> None:
    if kept.is_dir():
        kept.rename(aside)
    try:
        new.rename(kept)
    except BaseException:
        if aside.is_dir():
            aside.rename(kept)
        raise
