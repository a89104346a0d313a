"""A mirror of the download answers with something else than the files."""

import functools
import gzip
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator

from download_server import (
    EXPECTED,
    FILES,
    MEMBERS,
    Answer,
    Handler,
    Server,
    cut_off,
    drip,
    endless,
    hang,
    link,
    members_with,
    not_http,
    pack,
    plain,
    serving,
)

from faults.subject import Subject
from faults.table import AS_PROMISED
from ptb_lm.data import penn_treebank
from ptb_lm.data.penn_treebank import DownloadError

TIMEOUT, DEADLINE = 0.3, 1.0  # seconds


def answers(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Fetch from a mirror that answers in some wrong way."""
    os.environ["no_proxy"] = "127.0.0.1"
    with serving() as server:
        while True:
            mirror = (_archive if rng.random() < 0.5 else _folder)(server, rng)
            folder = subject.new()
            try:
                penn_treebank.fetch(
                    folder, mirrors=[mirror], expected=EXPECTED, timeout=TIMEOUT, deadline=DEADLINE
                )
            except DownloadError as error:
                clean = not folder.exists() and "\n" not in str(error)
                yield AS_PROMISED if clean else "two lines, or something on disk"
            except Exception as error:
                yield f"a traceback: {type(error).__name__}"
            else:
                found = {path.name: path.read_bytes() for path in folder.iterdir()}
                yield AS_PROMISED if found == FILES else "other files are kept"
            shutil.rmtree(folder, ignore_errors=True)


def _folder(server: Server, rng: random.Random) -> str:
    files: dict[str, Answer] = dict(FILES)
    name = rng.choice(list(FILES))
    files[name] = rng.choice([_damage(FILES[name], rng), _rude(rng)])
    return server.folder("folder", files)


def _archive(server: Server, rng: random.Random) -> str:
    name = f"./simple-examples/data/{rng.choice(list(FILES))}"
    strange = rng.choice(
        [
            *(
                link(name, "/etc/passwd", kind)
                for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
            ),
            *(
                plain(path, b"x" * 99)
                for path in (name, "/etc/ptb", "../../x", f"./data/../../{name}", "\x1b[2J")
            ),
        ]
    )
    archive = pack(
        rng.choice([MEMBERS, members_with(name, strange), members_with(name), [*MEMBERS, strange]])
    )
    inside = gzip.compress(_damage(gzip.decompress(archive), rng))
    return server.archive("archive", rng.choice([archive, _damage(archive, rng), inside, _rude(rng)]))


def _damage(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    copy = bytearray(content)
    copy[at] ^= 1 << rng.randrange(8)
    return rng.choice([bytes(copy), content[:at], content + content, content[at:], b"", rng.randbytes(at)])


def _rude(rng: random.Random) -> Callable[[Handler], None]:
    """Return an answer that is no file at all."""
    lengths = functools.partial(_length, rng.choice(["-1", "x", "99999999999999999999", "0", "1e9", "7"]))
    status = functools.partial(_status, rng.choice([204, 206, 301, 302, 403, 404, 410, 418, 500, 503]))
    return rng.choice([cut_off, hang, not_http, endless(rng.randbytes(2**14)), drip, lengths, status, _close])


def _length(value: str, handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", value)
    handler.end_headers()
    handler.wfile.write(FILES["ptb.train.txt"])


def _status(status: int, handler: Handler) -> None:
    handler.send_response(status)
    handler.send_header("Location", handler.path)  # to itself: without end
    handler.end_headers()


def _close(handler: Handler) -> None:
    handler.close_connection = True
