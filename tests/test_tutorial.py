"""docs/tutorial.md: each of its blocks runs, in their order, on a run trained as it says; README too."""

import _thread
import importlib
import io
import math
import re
import shlex
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from support import ROOT

import ptb_lm
from ptb_lm import play, train

BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL
)
# The demo in seconds: smaller, fewer and wider steps.
TINY = ["--hidden-size", "8", "--epochs", "1", "--batch-size", "200", "--num-steps", "50", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tutorial's first block has been run."""
    home = tmp_path_factory.mktemp("tutorial")
    script, *flags = shlex.split(BLOCKS[0][1].splitlines()[0])
    assert (ROOT / script).is_file()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert train.main([*flags, *TINY]) == 0
    return home


def shell(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a line, its commands of this package in this process, where torch has been imported."""
    before, bar, command = line.rpartition(" | ")
    if not command.startswith("python -m "):
        subprocess.run(["bash", "-ec", line], check=True)
        return
    command, _, file = command.partition(" > ")
    if bar:
        given = subprocess.run(["bash", "-ec", before], check=True, capture_output=True).stdout
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    _, _, module, *arguments = shlex.split(command)
    if module == "ptb_lm.play":
        visit(arguments)
        return
    capsys.readouterr()
    assert importlib.import_module(module).main(arguments) == 0, line
    out = capsys.readouterr().out
    assert out or "--picture" in line
    if file:
        Path(file).write_text(out)


def visit(arguments: list[str]) -> None:
    """Run play, which goes on until Ctrl-C: read its page, and then end it so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pages: list[str] = []

    def read_and_interrupt() -> None:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
                    pages.append(page.read().decode())
                break
            except OSError:  # it does not listen yet
                time.sleep(0.05)
        _thread.interrupt_main()

    visitor = threading.Thread(target=read_and_interrupt)
    visitor.start()
    assert play.main([*arguments, "--port", str(port)]) == 0
    visitor.join()
    assert arguments[0] in pages[0]


@pytest.mark.slow
def test_every_block_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
    for language, block in BLOCKS[1:]:
        if language == "python":
            exec(compile(block, "tutorial.md", "exec"), names)
            continue
        for line in block.splitlines():
            shell(line, capsys, monkeypatch)
    written = folder / "checkpoints" / "try"  # nothing lies in the checkout that git would see
    assert {path.name for path in folder.iterdir()} == {"checkpoints"}
    assert (written / "words.svg").stat().st_size > 10_000
    assert len((written / "scores.jsonl").read_text().splitlines()) == 2


def test_the_readme_s_line_of_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (expression,) = re.findall(r"From Python: `(.*?)`", (ROOT / "README.md").read_text())
    monkeypatch.chdir(tmp_path)  # where no folder is named as the run that the package holds
    (sentence,) = eval(expression, {"ptb_lm": ptb_lm})
    assert math.isfinite(sentence.total)
