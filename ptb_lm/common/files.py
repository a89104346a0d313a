"""The places of files (the checkout, Penn Treebank, a cache), atomic writing, and locks.

A reader sees the old file or the new one, never half of either.
"""

import atexit
import contextlib
import errno
import fcntl
import functools
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ptb_lm.common import streams
from ptb_lm.common.errors import UserError
from ptb_lm.common.program import checkout

NO_FILE = "is a pipe or a device; it is read more than once, so it must be a file"
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # of a file system without locks


def working_folder() -> Path:
    """Return the folder that holds data/ and checkpoints/: the checkout, or else the current folder."""
    return checkout() or Path.cwd()


def penn_treebank_folder() -> Path:
    """Return the folder where Penn Treebank is, or is downloaded to: $PTB_LM_DATA, or else data/ptb."""
    folder = os.environ.get("PTB_LM_DATA")
    return Path(folder) if folder else working_folder() / "data" / "ptb"


def cache_folder() -> Path:
    """Return the folder for files that are kept between processes, or a temporary one for this process.

    Only this user may write there: what is read from it is trusted.
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: this user has no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptb_lm"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_ours_alone(folder) and os.access(folder, os.W_OK):
            return folder
    return _temporary_folder()


def _is_ours_alone(folder: Path) -> bool:
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


@functools.cache
def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ptb_lm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds.

    The data are flushed to disk before the rename, so that a crash of the machine cannot leave an empty
    file under the final name. If the block raises, the temporary file is removed and `path` is as it was.

    Raises:
        OSError: The folder is not writable, or the disk is full; `filename` is `path`. An error in the block
            that names another file is raised unchanged.
    """
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.parent / f".{path.name}.{os.urandom(4).hex()}.tmp"
    try:
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            flush(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        named = {str(name) for name in (error.filename, error.filename2) if name is not None}
        if named and str(temporary) not in named:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def flush(path: Path) -> None:
    """Return when the data of a file are on the disk: only then is it sure that there is room for them."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write text (as UTF-8, with newlines as they are) or bytes to `path` atomically.

    The surrogates of a path that is no text, which UTF-8 lacks, are written as escapes.

    Raises:
        OSError: The folder is not writable, or the disk is full.
    """
    with atomic_path(path) as temporary:
        data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
        temporary.write_bytes(data)


def absolute(path: Path) -> Path:
    """Return a path that means the same from any folder, without `..`; a link at its end stays one.

    A path with `..` would depend on a folder that does not hold the file, and that may be moved.
    """
    if ".." not in path.parts:
        return path.absolute()
    return resolve_links(path) if path.name == ".." else resolve_links(path.parent) / path.name


def resolve_links(path: Path) -> Path:
    """Return an absolute path without links, but for one that leads to itself, which stays.

    `Path.resolve` raises RuntimeError there before Python 3.13.
    """
    return Path(os.path.realpath(path))


def output_problem(path: Path | None, *, overwrite: bool) -> str:
    """Return why a path may not be written to, for people; "" if it may.

    Args:
        path: The path; None: nothing is written.
        overwrite: True if a file there may be replaced.
    """
    if path is None or not path.exists():
        return ""
    if not path.is_file():  # a folder; or a device, which a rename would remove
        return f"{path} is not a file"
    return "" if overwrite else f"{path} exists; --overwrite replaces it"


def refuse_pipe(path: Path) -> None:
    """Check that a path is no pipe, socket or device, whose reading may never end.

    Raises:
        UserError: It is.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} {NO_FILE}")


def identity(path: Path) -> tuple[int, int] | None:
    """Return numbers that another file in this place would not have; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@contextlib.contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Make an error of reading or writing a file name the file, as an error of opening it does."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def leftovers(path: Path) -> Iterator[Path]:
    """Yield the temporary files of `atomic_path` that processes left beside `path` when they were killed."""
    return path.parent.glob(f".{glob.escape(path.name)}.*.tmp")


@contextlib.contextmanager
def lock(folder: Path, *, wait: bool = False) -> Iterator[Callable[[], bool]]:
    """Lock a folder against other processes that ask for the same lock; make it if it does not exist.

    Args:
        folder: The folder to lock.
        wait: True to wait until no other process has the lock.

    Yields:
        A function that returns whether the locked folder is still in its place. If it was removed, moved or
        replaced, another process may have the lock of what is there now.

    Raises:
        UserError: Another process is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UserError(
                f"another process is using {folder}; wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            problem = f"{folder} cannot be locked ({error.strerror})"
            streams.print_to_stderr(f"{problem}: make sure that no other process writes there")
        yield lambda: _is_at(folder, descriptor)
    finally:
        os.close(descriptor)  # and with it the lock


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
