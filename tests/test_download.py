"""Every way that a download may go, from a real server on this machine, with small made-up files."""

import functools
import gzip
import hashlib
import itertools
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
    Answer,
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

from ptb_lm import download, train
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus, splits
from ptb_lm.data.penn_treebank import DIGESTS, DownloadError, fetch

WRONG = b" the user's own text \n"
PROJECT = Path(__file__).resolve().parent.parent
TRAIN, INSIDE = "ptb.train.txt", "./simple-examples/data/ptb.train.txt"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ptb"


@pytest.fixture
def dead() -> str:
    """The URL of a server that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def assert_complete(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def failure(folder: Path, *mirrors: str) -> str:
    """Fetch, which must fail and leave nothing behind; return the sentence."""
    with pytest.raises(DownloadError) as caught:
        fetch(folder, mirrors=mirrors, expected=EXPECTED, timeout=0.3, deadline=0.6)
    assert not folder.exists()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert all(f"{mirror}: " in sentence for mirror in mirrors)
    return sentence


def driver(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process that fetches from mirrors, after some code."""
    setup = (
        "import signal, sys; from pathlib import Path; from ptb_lm.common import cli\n"
        "from ptb_lm.data.penn_treebank import fetch\n"
        # Inherited as ignored when the tests themselves run in the background.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{code}\n"
        f"body = lambda: fetch(Path(sys.argv[1]), mirrors=sys.argv[2:], expected={EXPECTED!r}) and 0\n"
        "sys.exit(cli.run('python -m ptb_lm.download', body))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", setup, *map(str, arguments)],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_first_mirror_that_has_the_files_gives_them(server: Server, folder: Path) -> None:
    mirrors = [f"{server.url}/nowhere", server.folder("good", FILES) + "/", f"{server.url}/never"]
    assert fetch(folder, mirrors=mirrors, expected=EXPECTED) == list(FILES)
    assert_complete(folder)
    assert [path for path, _ in server.requests[1:]] == [f"/good/{name}" for name in FILES]
    assert {agent for _, agent in server.requests} == {"ptb_lm"}


@pytest.mark.parametrize("is_archive", [False, True])
def test_a_mirror_may_be_on_this_machine(is_archive: bool, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(pack(MEMBERS))
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    mirror = tmp_path / "x.tgz" if is_archive else tmp_path
    assert fetch(folder, mirrors=[mirror.as_uri()], expected=EXPECTED) == list(FILES)
    assert_complete(folder)


@pytest.mark.parametrize("is_archive", [False, True])
def test_correct_files_are_kept_and_others_fetched(server: Server, folder: Path, is_archive: bool) -> None:
    mirror = server.archive("good", pack(MEMBERS)) if is_archive else server.folder("good", FILES)
    fetch(folder, mirrors=[mirror], expected=EXPECTED)
    assert_complete(folder)
    (folder / "ptb.valid.txt").unlink()
    before = (folder / TRAIN).stat()
    assert fetch(folder, mirrors=[mirror], expected=EXPECTED, overwrite=True) == ["ptb.valid.txt"]
    assert_complete(folder)
    folder.chmod(0o555)
    try:
        assert fetch(folder, mirrors=[], expected=EXPECTED) == []
    finally:
        folder.chmod(0o755)
    assert (folder / TRAIN).stat() == before


@pytest.mark.parametrize("mirror", ["nonsense", "nonsense.tgz", "gopher://host/x", "http://[", "http://h:x/"])
def test_a_mirror_that_is_no_url(folder: Path, mirror: str) -> None:
    failure(folder, mirror)


def test_no_mirror_has_the_files(server: Server, folder: Path, dead: str) -> None:
    sentence = failure(folder, f"{server.url}/nowhere", f"{server.url}/nowhere.tgz", dead)
    assert sentence.count("HTTP Error 404") == 2
    assert "refused" in sentence
    assert "mirror" in failure(folder)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (FILES[TRAIN][:-2] + b"!\n", f"{TRAIN} missing or damaged"),
        (FILES[TRAIN][:-20], f"{TRAIN} missing or damaged"),
        (cut_off, TRAIN),
        (hang, "timed out"),
        (drip, "0.6 s"),
        (endless(bytes(2**16)), "more than"),
        (not_http, ""),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_mirror_that_answers_wrongly(
    kind: str, answer: Answer, problem: str, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptb_lm.data.penn_treebank.MAX_PACKED", 2**18)
    if kind == "folder":
        assert problem in failure(folder, server.folder("bad", FILES | {TRAIN: answer}))
    else:
        failure(folder, server.archive("bad", answer))


@pytest.mark.parametrize(
    "packed",
    [
        *(
            pack(members_with(INSIDE, link(INSIDE, "/etc/passwd", kind)))
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
        ),
        *(pack(members_with(INSIDE, plain(INSIDE, content))) for content in (b"", b"x" * 99)),
        pack(members_with(INSIDE)),
        pack(members_with(INSIDE, plain(f"/../{TRAIN}", FILES[TRAIN]))),
        gzip.compress(b"not a tar " * 1000),
        pack(MEMBERS)[:-200],
        pack(MEMBERS)[:100] + bytes(100) + pack(MEMBERS)[200:],
        # A chain of extended headers, and what unpacks to more than the bound.
        gzip.compress(
            link("././@LongLink", "", tarfile.GNUTYPE_LONGNAME)[0].tobuf(tarfile.GNU_FORMAT) * 5000
        ),
        gzip.compress(plain(INSIDE, b"")[0].tobuf()) + gzip.compress(bytes(2**20)) * 99,
    ],
    ids=itertools.count(),  # they hold the time: each process of the tests has others
)
def test_an_archive_that_lacks_the_files(
    packed: bytes, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptb_lm.data.penn_treebank.MAX_UNPACKED", 2**24)
    failure(folder, server.archive("bad", packed))


def test_another_file_is_replaced_only_on_demand_and_by_the_right_one(server: Server, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "ptb.valid.txt").write_bytes(WRONG)
    good = server.folder("good", FILES)
    with pytest.raises(UserError, match=r"ptb\.valid\.txt.*--overwrite") as caught:
        fetch(folder, mirrors=[good], expected=EXPECTED)
    assert not isinstance(caught.value, DownloadError)  # the network is not to blame
    assert server.requests == []
    with pytest.raises(DownloadError):
        fetch(folder, mirrors=[f"{server.url}/nowhere"], expected=EXPECTED, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"ptb.valid.txt": WRONG}
    fetch(folder, mirrors=[good], expected=EXPECTED, overwrite=True)
    assert_complete(folder)


@pytest.mark.parametrize("below", [".", "data/ptb"])
def test_a_target_that_is_a_file(server: Server, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(WRONG)
    with pytest.raises(UserError, match=r"file .*folder"):
        fetch(tmp_path / "file" / below, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    assert server.requests == []
    assert (tmp_path / "file").read_bytes() == WRONG


@pytest.mark.slow
def test_a_full_disk_leaves_no_file(server: Server, folder: Path) -> None:
    pytest.importorskip("resource", reason="needs a limit on file sizes to stand for a full disk")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))"
    with driver(limit, folder, server.folder("good", FILES)) as process:
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert re.fullmatch(r"python -m ptb_lm\.download: \S+: File too large\n", stderr)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_download_leaves_nothing_and_can_be_repeated(
    server: Server, folder: Path, number: signal.Signals
) -> None:
    with driver("", folder, server.folder("slow", FILES | {TRAIN: hang})) as process:
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


@pytest.mark.parametrize("there", [None, [], [TRAIN]], ids=["missing", "empty", "incomplete"])
def test_a_training_downloads_to_the_folder_of_the_variable(
    there: list[str] | None, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there is not None:
        folder.mkdir(parents=True)
        for name in there:
            (folder / name).write_bytes(FILES[name])
    monkeypatch.setenv("PTB_LM_DATA", str(folder))
    given = functools.partial(fetch, mirrors=[server.folder("good", FILES)], expected=EXPECTED)
    monkeypatch.setattr("ptb_lm.data.penn_treebank.fetch", given)
    loaded = corpus.load("ptb")
    assert_complete(folder)
    server.requests.clear()
    assert corpus.load("ptb").sha256 == loaded.sha256
    assert server.requests == []


def test_other_text_in_the_folder_of_the_variable_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in splits.SPLITS:
        (tmp_path / f"{split}.txt").write_text(f"{split} a\na {split} <unk>\n")
    before = runs.files(tmp_path)
    monkeypatch.setenv("PTB_LM_DATA", str(tmp_path))
    assert corpus.load("ptb").sha256 == corpus.load(tmp_path).sha256
    assert runs.files(tmp_path) == before


def test_without_a_network_train_and_download_give_the_same_advice(
    folder: Path, dead: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PTB_LM_DATA", str(folder))
    problem = runs.refusal(capsys, download, "--mirror", f"{dead}/data", f"{dead}/x.tgz")
    assert str(folder) in problem
    assert problem.count("refused") == 2
    assert "--data synthetic" in problem
    given = functools.partial(fetch, mirrors=[f"{dead}/data", f"{dead}/x.tgz"])
    monkeypatch.setattr("ptb_lm.data.penn_treebank.fetch", given)
    assert runs.refusal(capsys, train, "--device", "cpu") == problem
    assert not folder.exists()


def test_the_command_fetches_penn_treebank_then_keeps_it(
    server: Server, folder: Path, penn_treebank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: (penn_treebank / name).read_bytes() for name in DIGESTS}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == DIGESTS
    assert download.main(["--to", str(folder), "--mirror", server.folder("ptb", files)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"fetched ptb.train.txt, ptb.valid.txt, ptb.test.txt into {folder}, verified. ")
    assert err == ""  # no bar: this is no terminal
    assert sorted(path.name for path in folder.iterdir()) == sorted(DIGESTS)
    assert download.main(["--to", str(folder), "--mirror", f"{server.url}/nowhere"]) == 0
    assert capsys.readouterr().out.startswith("nothing to fetch: ptb.train.txt, ")
