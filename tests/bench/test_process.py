"""The benchmark's processes: those that die, hang, or answer nonsense."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptb_lm.bench.run import process as bench_process
from ptb_lm.bench.run.pool import Worker
from ptb_lm.bench.run.process import Process, WorkerError

pytestmark = pytest.mark.slow


def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, *, timeout: float = 60) -> Process:
    (tmp_path / "answering.py").write_text(textwrap.dedent(program))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Process("answering", "an argument", timeout=timeout)


def test_a_line_is_answered_by_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        import json, sys
        for line in sys.stdin:
            print(json.dumps({"asked": json.loads(line), "argument": sys.argv[1]}), flush=True)
    """
    answering = process(tmp_path, monkeypatch, program)
    assert answering.ask(what="one") == {"asked": {"what": "one"}, "argument": "an argument"}
    assert answering.ask(what="two")["asked"] == {"what": "two"}
    answering.close()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit('no such thing')", "status 1: no such thing"),
        ("import os; os.kill(os.getpid(), 9)", "memory"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("print('hello', flush=True); input(); input()", "answered 'hello'"),
        ("import sys; sys.stdout.write('{'); sys.stdout.flush()", "status 0"),
    ],
)
def test_a_death_or_nonsense_is_told(
    program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = process(tmp_path, monkeypatch, program)
    with pytest.raises(WorkerError) as error:
        answering.ask(what="hello")
    assert str(error.value).endswith(reason)
    assert error.value.status == "failed"
    answering.close()


# Writes the number of a process that it starts into the file CHILD.
STARTING = """
import os, pathlib, subprocess, sys, time
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["CHILD"]).write_text(f"{started.pid} ")
"""


def wait_for_ends(*pids: int) -> None:
    """Wait until processes are gone, or dead and not yet waited for by whoever adopted them."""
    deadline = time.monotonic() + 30
    for state in (Path(f"/proc/{pid}/stat") for pid in pids):
        while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_process_that_hangs_is_ended_with_those_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    answering = process(tmp_path, monkeypatch, f"{STARTING}\ntime.sleep(600)", timeout=3)
    with pytest.raises(WorkerError, match=r"\b3 s\b"):
        answering.ask(what="hello")
    answering.close()
    wait_for_ends(int((tmp_path / "child").read_text()))


def test_a_process_that_closes_its_replies_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_process, "GRACE", 0.5)
    program = "import os, time; os.close(1); time.sleep(600)"
    answering = process(tmp_path, monkeypatch, program)
    with pytest.raises(WorkerError, match="did not end"):
        answering.ask(what="hello")
    answering.close()
    with pytest.raises(WorkerError, match="room"):
        answering.receive()


def test_a_child_that_outlives_a_worker_does_not_hide_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forking.py").write_text("import os, time\nos._exit(3) if os.fork() else time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = Process(bench_process.WORKER, timeout=60)
    with pytest.raises(WorkerError, match="status 3"):
        worker.ask(**{"import": "forking:build"})
    worker.close()


def test_a_child_that_goes_on_takes_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        import os, sys, time
        from ptb_lm.bench.run.worker import separate_pipes
        with separate_pipes() as (requests, replies):
            if os.fork():
                time.sleep(1)
            for line in requests:
                print(line, end="", file=replies, flush=True)
    """
    answering = process(tmp_path, monkeypatch, program)
    assert answering.ask(what="hello") == {"what": "hello"}
    answering.close()


@pytest.mark.parametrize(
    "reading",
    [
        "breakpoint()",
        "input()",
        "import subprocess; subprocess.run('cat >&2; exit 3', shell=True, check=True)",
    ],
)
def test_a_program_that_reads_stdin_finds_its_end(
    reading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the next request."""
    (tmp_path / "reading.py").write_text(reading)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = Process(bench_process.WORKER, timeout=60)
    with pytest.raises(WorkerError, match=r"Quit|EOF|status 3"):
        worker.ask(**{"import": "reading:build"})
    worker.close()


ASKING = """
from ptb_lm.bench.run.process import WORKER, Process
worker = Process(WORKER)
print(worker._process.pid, flush=True)
worker.ask(**{"import": "hanging:build"})
"""


def test_a_worker_that_hangs_ends_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    """And those that it started: the program takes a core, and reads no end of stdin."""
    (tmp_path / "hanging.py").write_text(f"{STARTING}\nwhile True: pass")
    child = tmp_path / "child"
    with subprocess.Popen(
        [sys.executable, "-c", ASKING],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "CHILD": str(child)},
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        assert asking.stdout is not None
        worker = int(asking.stdout.readline())
        while not child.exists() or not child.read_text().endswith(" "):
            assert asking.poll() is None
            time.sleep(0.05)
        asking.kill()
    try:
        wait_for_ends(worker, int(child.read_text()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    ("seconds", "a_step"),
    [((9.0, 2.0, 0.5, 1.5), 0.75), ((9.0, 0.25, 0.5, 1.5), 0.25), ((9.0, 2.0), 2.0)],
    ids=["the second held up", "the others held up", "no time for more"],
)
def test_a_step_takes_what_the_least_of_the_warm_up_took(seconds: tuple[float, ...], a_step: float) -> None:
    """The first step compiles; any other may have been held up by something else."""
    worker, blocks = Worker.__new__(Worker), iter(seconds)
    worker.block = lambda *_, untimed: {"seconds": next(blocks)}  # type: ignore[method-assign]
    warm_up = worker._warm_up_pass("train", steps=5, limit=1.0 if len(seconds) == 2 else 100.0)
    assert next(blocks, None) is None
    assert (warm_up.step_seconds, warm_up.warm_up_seconds) == (a_step, sum(seconds))


def test_its_memory_is_that_of_its_largest_pass() -> None:
    worker, peaks = Worker.__new__(Worker), iter([500, 900, 300])
    worker.memory = 0
    ask: Any = lambda **request: {"peak_memory": {"host_bytes": next(peaks)}}  # noqa: E731
    worker._process = SimpleNamespace(ask=ask)  # type: ignore[assignment]
    found = []
    for pass_name in ("forward", "train", "forward"):
        worker.block(pass_name, 1)
        found.append(worker.memory)
    assert found == [500, 900, 900]
