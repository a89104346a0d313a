"""Every way that a download may go, from a real server on this machine, with small made-up files."""

import functools
import gzip
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
from download_server import (
    EXPECTED,
    FILES,
    MEMBERS,
    Handler,
    Server,
    cut_off,
    endless,
    hang,
    link,
    members_with,
    not_http,
    pack,
    packed_header_of_a_huge_member,
    plain,
    serving,
)

from ptb_lm import download
from ptb_lm.data import corpus, splits
from ptb_lm.data.penn_treebank import MOST_UNPACKED, PTB, DownloadError, Fingerprint, fetch
from ptb_lm.errors import UserError

WRONG = b" the user's own text \n"
PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ptb"


def assert_complete(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def failure(folder: Path, *mirrors: str) -> str:
    """Fetch, which must fail and leave nothing behind; return the sentence."""
    with pytest.raises(DownloadError) as caught:
        fetch(folder, mirrors=mirrors, expected=EXPECTED, timeout=0.3)
    assert not folder.exists()
    sentence = str(caught.value)
    assert sentence.startswith(f"cannot fetch ptb.train.txt, ptb.valid.txt, ptb.test.txt into {folder} ")
    assert "\n" not in sentence
    for mirror in mirrors:
        assert f"{mirror}: " in sentence
    return sentence


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "ptb_lm.download", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=30,
    )


def driver(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process that runs `code` with `fetch`, what these tests expect, and `arguments` at hand."""
    setup = (
        "import signal, sys; from pathlib import Path; from ptb_lm import cli\n"
        "from ptb_lm.data.penn_treebank import Fingerprint, fetch\n"
        f"EXPECTED = {EXPECTED!r}\n"
        # Inherited as ignored when the tests themselves run in the background.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", setup + code, *map(str, arguments)],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    )


FETCH = (
    "body = lambda: fetch(Path(sys.argv[1]), mirrors=sys.argv[2:], expected=EXPECTED) and 0\n"
    "sys.exit(cli.run('python -m ptb_lm.download', body))\n"
)


# All well.


def test_files_from_a_folder(server: Server, folder: Path) -> None:
    mirror = server.folder("good", FILES)
    assert fetch(folder, mirrors=[mirror + "/"], expected=EXPECTED) == list(FILES)
    assert_complete(folder)
    assert [path for path, _ in server.requests] == [f"/good/{name}" for name in FILES]
    assert {agent for _, agent in server.requests} == {"ptb_lm"}


def test_files_from_an_archive(server: Server, folder: Path) -> None:
    assert fetch(folder, mirrors=[server.archive("good", pack(MEMBERS))], expected=EXPECTED) == list(FILES)
    assert_complete(folder)


def test_a_later_mirror_is_tried_when_the_first_lacks_the_files(server: Server, folder: Path) -> None:
    mirrors = [f"{server.url}/nowhere", server.archive("good", pack(MEMBERS))]
    fetch(folder, mirrors=mirrors, expected=EXPECTED)
    assert_complete(folder)


def test_nothing_is_asked_of_a_mirror_after_the_one_that_worked(server: Server, folder: Path) -> None:
    fetch(folder, mirrors=[server.folder("good", FILES), f"{server.url}/never"], expected=EXPECTED)
    assert not any(path.startswith("/never") for path, _ in server.requests)


# A mirror fails: a sentence, and nothing is left behind.


def test_not_found(server: Server, folder: Path) -> None:
    sentence = failure(folder, f"{server.url}/nowhere", f"{server.url}/nowhere.tgz")
    assert sentence.count("HTTP status 404") == 2


def test_connection_refused(folder: Path) -> None:
    assert "Connection refused" in failure(folder, f"http://127.0.0.1:{dead_port()}")


def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("mirror", ["nonsense", "nonsense.tgz", "gopher://host/x", "http://[", "http://h:x/"])
def test_a_mirror_that_is_no_url(folder: Path, mirror: str) -> None:
    failure(folder, mirror)


def test_no_mirror_at_all(folder: Path) -> None:
    assert failure(folder).endswith("from any of 0 mirrors ()")


@pytest.mark.parametrize("name", FILES)
def test_a_corrupted_file(server: Server, folder: Path, name: str) -> None:
    corrupted = FILES[name][:-2] + b"!\n"
    sentence = failure(folder, server.folder("bad", FILES | {name: corrupted}))
    assert f"{name} missing or damaged (size or SHA-256 differs)" in sentence


def test_a_file_cut_off_before_its_declared_length(server: Server, folder: Path) -> None:
    failure(folder, server.folder("bad", FILES | {"ptb.train.txt": cut_off}))


def test_a_file_that_is_short_and_declared_so(server: Server, folder: Path) -> None:
    sentence = failure(folder, server.folder("bad", FILES | {"ptb.valid.txt": FILES["ptb.valid.txt"][:-20]}))
    assert "ptb.valid.txt missing or damaged" in sentence


def test_a_server_that_hangs(server: Server, folder: Path) -> None:
    assert "timed out" in failure(folder, server.folder("bad", FILES | {"ptb.train.txt": hang}))


def test_an_endless_file(server: Server, folder: Path) -> None:
    sentence = failure(folder, server.folder("bad", FILES | {"ptb.valid.txt": endless(b"word " * 1000)}))
    assert "it sends more than the files can be" in sentence


def test_a_server_that_does_not_speak_http_cannot_break_the_line(server: Server, folder: Path) -> None:
    failure(folder, server.folder("bad", {"ptb.train.txt": not_http}))


# An archive is not to be trusted.


@pytest.mark.parametrize(
    "path", ["../evil", "simple-examples/../../evil", "/tmp/evil", "/simple-examples/data/ptb.train.txt"]
)
@pytest.mark.parametrize("first", [True, False])
def test_a_path_outside_the_archive_refuses_all_of_it(
    server: Server, folder: Path, path: str, first: bool
) -> None:
    evil = [plain(path, b"evil")]
    sentence = failure(folder, server.archive("bad", pack(evil + MEMBERS if first else MEMBERS + evil)))
    assert f"the archive holds a path outside its folder, {path!r}" in sentence


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_link_or_device_in_the_place_of_a_file(server: Server, folder: Path, kind: bytes) -> None:
    path = "./simple-examples/data/ptb.train.txt"
    fake = link(path, "/etc/passwd", kind)
    fake[0].size = EXPECTED["ptb.train.txt"].size  # or it would be passed over for its size
    sentence = failure(folder, server.archive("bad", pack(members_with(path, fake))))
    assert "ptb.train.txt missing or damaged" in sentence


def test_an_archive_that_lacks_a_file(server: Server, folder: Path) -> None:
    members = members_with("./simple-examples/data/ptb.test.txt")
    assert "ptb.test.txt missing or damaged" in failure(folder, server.archive("bad", pack(members)))


@pytest.mark.parametrize("content", [FILES["ptb.test.txt"].upper(), FILES["ptb.test.txt"] * 2, b""])
def test_an_archive_with_a_damaged_file(server: Server, folder: Path, content: bytes) -> None:
    path = "./simple-examples/data/ptb.test.txt"
    members = members_with(path, plain(path, content))
    assert "ptb.test.txt missing or damaged" in failure(folder, server.archive("bad", pack(members)))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>moved</html>" * 100, id="not gzip"),
        pytest.param(gzip.compress(b"not a tar " * 1000), id="gzip, but not tar"),
        pytest.param(pack(MEMBERS)[:-200], id="cut off"),
        pytest.param(pack(MEMBERS)[:100] + bytes(100) + pack(MEMBERS)[200:], id="damaged"),
    ],
)
def test_an_archive_that_is_none(server: Server, folder: Path, body: bytes) -> None:
    failure(folder, server.archive("bad", body))


@pytest.mark.parametrize("where", ["headers", "body"])
def test_a_mirror_that_sends_a_byte_at_a_time_has_a_deadline(
    where: str, server: Server, folder: Path
) -> None:
    """Each byte comes in time for the timeout of a silent server."""

    def drip(handler: Handler) -> None:
        if where == "body":
            handler.start(1000)
        else:
            handler.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        while not server.released.wait(0.01):
            handler.wfile.write(b"x")

    mirror = server.folder("slow", dict.fromkeys(EXPECTED, drip))
    with pytest.raises(DownloadError, match=r"/slow: it takes longer than 0\.5 s"):
        fetch(folder, mirrors=[mirror], expected=EXPECTED, timeout=30, deadline=0.5)
    assert not folder.exists()


def test_an_endless_archive(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptb_lm.data.penn_treebank.MOST_PACKED", 2**20)
    answer = endless(gzip.compress(os.urandom(2**16)), first=packed_header_of_a_huge_member())
    sentence = failure(folder, server.archive("bad", answer))
    assert "it sends more than the files can be" in sentence


def test_a_decompression_bomb(server: Server, folder: Path) -> None:
    # Half a megabyte that unpacks to more than the bound.
    bomb = packed_header_of_a_huge_member() + gzip.compress(bytes(2**20)) * (MOST_UNPACKED // 2**20 + 1)
    sentence = failure(folder, server.archive("bad", bomb))
    assert "it sends more than the files can be" in sentence


def test_a_chain_of_extended_headers(server: Server, folder: Path) -> None:
    name, _ = link("././@LongLink", "", tarfile.GNUTYPE_LONGNAME)
    failure(folder, server.archive("bad", gzip.compress(name.tobuf(tarfile.GNU_FORMAT) * 5000)))


# What is in the folder already.


def test_right_files_are_kept_and_not_fetched_again(server: Server, folder: Path) -> None:
    mirror = server.folder("good", FILES)
    fetch(folder, mirrors=[mirror], expected=EXPECTED)
    server.requests.clear()
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}
    assert fetch(folder, mirrors=[mirror], expected=EXPECTED, overwrite=True) == []
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()} == before
    assert server.requests == []


@pytest.mark.parametrize("is_archive", [False, True])
def test_only_the_missing_file_is_fetched(server: Server, folder: Path, is_archive: bool) -> None:
    fetch(folder, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    (folder / "ptb.valid.txt").unlink()
    before = (folder / "ptb.train.txt").stat().st_ino
    mirror = server.archive("good", pack(MEMBERS)) if is_archive else server.folder("good", FILES)
    assert fetch(folder, mirrors=[mirror], expected=EXPECTED) == ["ptb.valid.txt"]
    assert_complete(folder)
    assert (folder / "ptb.train.txt").stat().st_ino == before


def test_another_file_is_refused_before_anything_is_fetched(server: Server, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "ptb.valid.txt").write_bytes(WRONG)
    with pytest.raises(UserError, match=r"already holds ptb\.valid\.txt with other content") as caught:
        fetch(folder, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    assert not isinstance(caught.value, DownloadError)  # the network is not to blame
    assert "--overwrite" in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"ptb.valid.txt": WRONG}
    assert server.requests == []


def test_overwrite_replaces_another_file_but_only_when_the_download_worked(
    server: Server, folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "ptb.valid.txt").write_bytes(WRONG)
    with pytest.raises(DownloadError):
        fetch(folder, mirrors=[f"{server.url}/nowhere"], expected=EXPECTED, overwrite=True)
    assert (folder / "ptb.valid.txt").read_bytes() == WRONG
    fetch(folder, mirrors=[server.folder("good", FILES)], expected=EXPECTED, overwrite=True)
    assert_complete(folder)


# The folder itself.


@pytest.mark.parametrize("below", [".", "data/ptb"])
def test_a_target_that_is_a_file(server: Server, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(WRONG)
    with pytest.raises(UserError, match="file is not a writable folder"):
        fetch(tmp_path / "file" / below, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    assert server.requests == []
    assert (tmp_path / "file").read_bytes() == WRONG


def test_a_target_that_is_not_writable(server: Server, folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(UserError, match="ptb is not a writable folder"):
        fetch(folder, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    assert server.requests == []


def test_a_read_only_folder_with_all_files_is_fine(server: Server, folder: Path) -> None:
    fetch(folder, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    folder.chmod(0o555)
    try:
        assert fetch(folder, mirrors=[], expected=EXPECTED) == []
    finally:
        folder.chmod(0o755)


@pytest.mark.slow
def test_a_full_disk_leaves_no_file(server: Server, folder: Path) -> None:
    pytest.importorskip("resource", reason="needs a limit on file sizes to stand for a full disk")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
    with driver(limit + FETCH, folder, server.folder("good", FILES)) as process:
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert re.fullmatch(r"python -m ptb_lm\.download: \S+: File too large\n", stderr)
    assert list(folder.iterdir()) == []


# The process ends early.


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_download_leaves_nothing_and_can_be_repeated(
    server: Server, folder: Path, number: signal.Signals
) -> None:
    mirror = server.folder("slow", FILES | {"ptb.train.txt": hang})
    with driver(FETCH, folder, mirror) as process:
        assert server.reached.wait(timeout=20)
        # Until it waits for the answer. Python hears of a signal that comes right before that only after it.
        time.sleep(0.5)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
    if number is signal.SIGINT:
        assert (process.returncode, stderr) == (130, "python -m ptb_lm.download: interrupted\n")
    else:
        assert (process.returncode, stderr) == (-number, "")
    assert not folder.exists()
    fetch(folder, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    assert_complete(folder)


# The folder that PTB_LM_DATA names.


@pytest.mark.parametrize("there", [None, [], ["ptb.train.txt"]], ids=["missing", "empty", "incomplete"])
def test_a_training_downloads_to_the_folder_of_the_variable(
    there: list[str] | None, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there is not None:
        folder.mkdir(parents=True)
        for name in there:
            (folder / name).write_bytes(FILES[name])
    monkeypatch.setenv("PTB_LM_DATA", str(folder))

    def only(mirror: str) -> None:
        given = functools.partial(fetch, mirrors=[mirror], expected=EXPECTED)
        monkeypatch.setattr("ptb_lm.data.penn_treebank.fetch", given)

    only(f"{server.url}/nowhere")
    with pytest.raises(UserError, match=f"Penn Treebank is not in {folder} and could not be downloaded"):
        corpus.load_named("ptb")
    only(server.folder("good", FILES))
    loaded = corpus.load_named("ptb")
    assert_complete(folder)
    server.requests.clear()
    assert corpus.load_named("ptb").sha256 == loaded.sha256
    assert server.requests == []


def test_other_text_in_the_folder_of_the_variable_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in splits.SPLITS:
        (tmp_path / f"{split}.txt").write_text(f"{split} a\na {split} <unk>\n")
    before = runs.files(tmp_path)
    monkeypatch.setenv("PTB_LM_DATA", str(tmp_path))
    assert corpus.load_named("ptb").sha256 == corpus.load(tmp_path).sha256
    assert runs.files(tmp_path) == before


def test_the_command_downloads_to_the_folder_of_the_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PTB_LM_DATA", str(folder))
    problem = runs.refusal(capsys, download, "--mirror", f"http://127.0.0.1:{dead_port()}")
    assert problem.startswith(f"cannot fetch ptb.train.txt, ptb.valid.txt, ptb.test.txt into {folder} from ")


# The command.


@pytest.mark.slow
def test_the_command_without_a_network(folder: Path) -> None:
    dead = f"http://127.0.0.1:{dead_port()}"
    done = command("--to", str(folder), "--mirror", f"{dead}/data", f"{dead}/x.tgz")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python -m ptb_lm.download: cannot fetch ptb.train.txt")
    assert done.stderr.count("\n") == 1
    assert done.stderr.count("Connection refused") == 2
    assert not folder.exists()


@pytest.mark.slow
def test_the_command_with_a_bad_flag() -> None:
    done = command("--form", "x")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_the_command_imports_no_framework() -> None:
    code = "import sys, ptb_lm.download; sys.exit(bool({'torch', 'tensorflow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, timeout=30).returncode == 0


# The real files, where they are at hand.


@pytest.fixture
def penn_treebank() -> Path:
    named = os.environ.get("PTB_LM_DATA")
    places = [*([Path(named)] if named else []), PROJECT / "data" / "ptb", PROJECT.parent / "shared" / "ptb"]
    for place in places:
        if all((place / name).is_file() for name in PTB):
            return place
    pytest.skip("Penn Treebank is not at hand: neither in $PTB_LM_DATA nor in data/ptb")


def test_the_constants_are_those_of_the_penn_treebank(penn_treebank: Path) -> None:
    real = {name: Fingerprint.of((penn_treebank / name).read_bytes()) for name in PTB}
    assert real == PTB


@pytest.mark.slow
def test_the_command_fetches_the_penn_treebank_then_keeps_them(
    server: Server, folder: Path, penn_treebank: Path
) -> None:
    mirror = server.folder("ptb", {name: (penn_treebank / name).read_bytes() for name in PTB})
    first = command("--to", str(folder), "--mirror", mirror)
    assert (first.returncode, first.stderr) == (0, "")  # no bar: this is no terminal
    assert first.stdout == (
        f"fetched ptb.train.txt, ptb.valid.txt, ptb.test.txt into {folder}, verified. "
        "Derived from LDC99T42: for research use; do not redistribute.\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == sorted(PTB)
    second = command("--to", str(folder), "--mirror", f"{server.url}/nowhere")
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.startswith("nothing to fetch: ptb.train.txt, ptb.valid.txt, ptb.test.txt are in ")
