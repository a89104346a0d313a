"""Folders of runs: that of a name, that of a new run, and whether it is free."""

import contextlib
import itertools
import shlex
import time
from pathlib import Path

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import resolve_links, working_folder
from ptb_lm.common.flags import command_words
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory

# The trained run that the package holds (scripts/make_demo), and the name that means it.
DEMO, DEMO_NAME = Path(__file__).resolve().parent.parent / "demo", "demo"


def find(run: str | Path) -> RunDirectory:
    """Return the files of a run to read: those in a folder, or for `demo` those of the package's own run.

    A run in a folder `demo` of the current folder is found first.
    """
    directory = RunDirectory(Path(run))
    is_demo = directory.path == Path(DEMO_NAME) and not directory.config_path.exists()
    return RunDirectory(DEMO) if is_demo else directory


def default_path(run: RunConfig, *, model: str | None = None) -> Path:
    """Return the default folder of a run in checkpoints; another run may already have it.

    Args:
        run: Configuration of the run.
        model: Name of the model in the folder's name; None: the run's.
    """
    what = "imported" if run.imported else run.preset
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{run.choice.framework}-{model or run.choice.model}-{what}"
    path = working_folder() / "checkpoints" / name
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def create_folder(path: Path) -> Path:
    """Make a new folder of this name, or with a number after it if the name is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):  # runs that start within one second
        new = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            new.mkdir()
            return new
    raise AssertionError("numbers do not end")


def refuse_demo(resume: Path | None) -> None:
    """Check that the run to resume is not the one that the package holds.

    Raises:
        UserError: It is: what is installed stays as it is.
    """
    if resume is not None and resolve_links(find(resume).path) == DEMO:
        raise UserError(
            f"--resume {resume}: this run is a part of the package, which is not changed; "
            f"--init-from {resume} starts a new run from its weights"
        )


def refuse_existing(path: Path, *, overwrite: bool, init_from: Path | None = None) -> None:
    """Check that a new run may have this folder.

    Args:
        path: The folder.
        overwrite: True if the run in it may be replaced.
        init_from: File of the weights that the new run starts from, which may not be removed.

    Raises:
        UserError: It holds another run that may not be replaced, or files of something else; or it is a file.
    """
    directory = RunDirectory(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a run directory")
    if not path.is_dir() or not any(path.iterdir()) or directory.is_expendable():
        return
    if not directory.config_path.exists():
        raise UserError(f"{path} has files but no run; give --run-dir a new folder")
    try:
        there = directory.read_config()
    except UserError as error:
        raise UserError(f"{error}; a new run needs another --run-dir") from None
    if overwrite:
        if (
            init_from is not None
            and directory.weights_path.exists()
            and directory.weights_path.samefile(init_from)
        ):
            raise UserError(f"--overwrite would remove the weights of {path}, which the new run starts from")
    else:
        going_on = (
            "" if there.imported else f"continue it with {shlex.join(command_words('resume', path))}, or "
        )
        raise UserError(f"the run directory {path} exists; {going_on}replace it with --overwrite")
