"""Signals, broken streams and two processes at once: nothing is lost, and the status and the line say so."""

import collections
import ctypes
import functools
import operator
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import runs
from support import installed

from ptb_lm import train
from ptb_lm.common import signals
from ptb_lm.common.files import lock
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.training import launch, run_flags, run_folders
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

# Of what gets a signal: it does not come to its end before, however late that is.
ENDLESS = 1000
# For REPEAT_SECONDS: a file's clock, by which a signal's time is known, may be some milliseconds behind.
AT_ONCE = -1.0
DECAY = ("--lr-decay", "0.98")
# To which a run goes on that was stopped in one of its first epochs, as they all are unless a machine hangs.
EPOCHS = 6

# TensorFlow's models but cudnn start without Keras.
OF = {
    "torch": ("--framework", "torch"),
    "tensorflow": ("--framework", "tensorflow", "--model", "block_fused"),
}

Expected = Callable[[str, int], Path]  # of a framework and epochs


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """Runs that never stopped, by framework and epochs; made when they are asked for."""

    @functools.cache
    def made(framework: str, epochs: int) -> Path:
        flags = [*DECAY, *OF[framework], "--epochs", str(epochs)]
        return runs.train_run(data, tmp_path_factory.mktemp("expected") / "run", *flags)

    return made


@contextmanager
def training(
    data: Path,
    run: Path,
    *more: str,
    typed: Sequence[str] = ("-m", "ptb_lm.train"),
    shell: str = "",
    **streams: Any,
) -> Iterator[subprocess.Popen[str]]:
    """A training in a process of its own, some epochs after its start; a shell may prepare the process."""
    flags = [*DECAY, "--epochs", str(ENDLESS), *more]
    prepared = ["sh", "-c", shell, "sh"] if shell else []
    command = [*prepared, sys.executable, *typed, *runs.arguments(data, run, *flags)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    process = subprocess.Popen(command, text=True, **streams)
    try:
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_stopped(run: Path) -> None:
    assert not list(run.rglob("*.tmp"))
    assert not (run / "result.json").exists()


def assert_goes_on(run: Path, expected: Expected, framework: str = "torch") -> None:
    """For some epochs; training/test_trainer.py resumes runs to the end that they were started for."""
    epochs = max(EPOCHS, len(runs.metrics(run)) + 2)
    assert train.main(["--resume", str(run), "--epochs", str(epochs)]) == 0
    runs.assert_equal_runs(run, expected(framework, epochs))


def test_a_signal_saves_and_prints_the_command_that_goes_on(
    data: Path, expected: Expected, tmp_path: Path
) -> None:
    """SIGINT does, too, and TensorFlow: below; SIGTERM of several seeds: in training/test_seeds.py."""
    typed = (str(Path(sys.executable).with_name("ptb-lm")), "train")
    with training(data, tmp_path / "run", typed=typed) as process:
        process.send_signal(signal.SIGHUP)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP, stderr
    assert f"SIGHUP: saved; continue with: ptb-lm train --resume {tmp_path / 'run'}" in stderr
    assert "Traceback" not in stderr
    assert_stopped(tmp_path / "run")
    assert_goes_on(tmp_path / "run", expected)


def test_sigint_and_then_sigterm_is_one_request(data: Path, expected: Expected, tmp_path: Path) -> None:
    """Though the disk that its output goes to is full."""
    with Path("/dev/full").open("w") as full, training(data, tmp_path / "run", stdout=full) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("SIGINT: finishing"):
                break
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert f"SIGINT: saved; continue with: python -m ptb_lm.train --resume {tmp_path / 'run'}" in stderr
    assert "Traceback" not in stderr
    assert_stopped(tmp_path / "run")
    assert_goes_on(tmp_path / "run", expected)


def test_a_signal_does_not_reach_torch_s_compiler(data: Path, tmp_path: Path) -> None:
    """A terminal sends it Ctrl-C too; it would leave an empty library, over which the next run fails."""
    compiler, begun = tmp_path / "compiler", tmp_path / "begun"
    compiler.write_text(
        f"#!{sys.executable} -S\nimport os, pathlib, sys, time\n"
        "if any(name.endswith('.main.so') for name in sys.argv):\n"  # as torch calls such a library
        f"    pathlib.Path({str(begun)!r}).touch()\n"
        "    time.sleep(0.5)\n"
        "os.execvp('g++', ['g++', *sys.argv[1:]])\n"
    )
    compiler.chmod(0o755)
    sizes = ("--num-layers", "1", "--num-steps", "2", "--batch-size", "30")
    flags = (*sizes, "--model", "basic", "--execution", "compile", "--epochs", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "ptb_lm.train", *runs.arguments(data, tmp_path / "run", *flags)],
        env={**os.environ, "CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not begun.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130, stderr
    assert stderr.index("SIGINT: finishing the step") < stderr.index("SIGINT: saved; continue with: ")
    assert "Traceback" not in stderr
    assert all(path.stat().st_size for path in (tmp_path / "cache").rglob("*.so"))


def test_signals_without_end_leave_what_goes_on(data: Path, expected: Expected, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with training(data, run) as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert "Traceback" not in process.communicate()[1]
    assert process.returncode in (130, -signal.SIGINT)
    assert_goes_on(run, expected)


def test_a_signal_that_comes_twice_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """From outside and from the parent, for example; and two of SIGHUP are never a second request."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        with signals.handle_signals("train"), signals.StopRequest() as stop:
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert stop.signal_number == number
            monkeypatch.setattr(signals, "REPEAT_SECONDS", AT_ONCE)
            if number == signal.SIGTERM:
                with pytest.raises(signals.StopSignal):
                    signal.raise_signal(number)
            else:
                signal.raise_signal(number)
            monkeypatch.undo()


def test_a_signal_is_repeated_when_it_was_sent_not_when_its_handler_runs() -> None:
    """The handler of one sent within a second runs later, because the main thread is in C until then."""
    kill = ctypes.CDLL(None).kill  # os.kill would run the handler
    terminate, interrupt = (
        functools.partial(kill, os.getpid(), number) for number in (signal.SIGTERM, signal.SIGINT)
    )
    wait = functools.partial(time.sleep, 1.5 * signals.REPEAT_SECONDS)

    def is_stopped(*calls: Callable[[], Any]) -> bool:
        try:
            collections.deque(map(operator.call, calls))
        except signals.StopSignal:
            return True
        return False

    for another in ([], [interrupt]):  # which comes late, beside it
        with signals.handle_signals("train"), signals.StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert not is_stopped(terminate, wait, *another)
            assert stop.signal_number == signal.SIGTERM
            assert is_stopped(terminate)


def test_signals_are_handled_where_no_file_can_be_opened() -> None:
    """As where the kernel refuses a file in memory (the sysctl vm.memfd_noexec)."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        with pytest.raises(signals.StopSignal), signals.handle_signals("train"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_host_s_wakeup_fd_gets_the_signals_that_are_not_the_command_s() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(ours.fileno())
        handler = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            with signals.StopRequest(), signals.StopRequest():
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGUSR1)
                signal.raise_signal(signal.SIGHUP)
            signal.set_wakeup_fd(found := signal.set_wakeup_fd(-1))
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGUSR1, handler)
        assert found == ours.fileno()
        assert theirs.recv(10) == bytes([signal.SIGUSR1])


STOPPED = """
import signal, sys
from ptb_lm.common import cli, signals
signals.REPEAT_SECONDS = {}
def body():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        print("cleaned up", flush=True)
sys.exit(cli.run("bench", body))
"""


@pytest.mark.parametrize(
    ("repeat_seconds", "status", "stdout", "stderr"),
    [
        (60.0, 128 + signal.SIGTERM, "cleaned up\n", "bench: ended by SIGTERM\n"),
        (AT_ONCE, -signal.SIGTERM, "", ""),
    ],
)
def test_a_command_cleans_up_though_its_signal_comes_twice_at_once(
    repeat_seconds: float, status: int, stdout: str, stderr: str
) -> None:
    """As `timeout` sends it: to the command, and then to its group."""
    program = [sys.executable, "-c", STOPPED.format(repeat_seconds)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, stdout, stderr)


NOTEBOOK = """
import signal, time
from ptb_lm.common import cli, signals
signals.REPEAT_SECONDS = -1.0
def interrupt_an_import():
    import slow
    time.sleep(60)
def interrupt_twice():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
print(cli.run("score", interrupt_an_import), cli.run("score", interrupt_twice))
import slow
print(slow.is_whole)
def end_at_once():  # before the signal is sent once more
    import late
    return 0
try:
    cli.run("score", end_at_once)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_program_outlives_the_interruption_of_a_command_that_it_runs(tmp_path: Path) -> None:
    """As a notebook does, and a program that runs it within an import; a module is not left half imported."""
    for name in ("slow", "late"):
        text = "import signal; signal.raise_signal(signal.SIGINT); is_whole = True"
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    command = [sys.executable, "-c", "import notebook"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout) == (0, "130 130\nTrue\ninterrupted\n"), done.stderr
    assert done.stderr == "score: interrupted\n" * 2


def test_a_command_in_another_thread_leaves_the_signals_to_that_of_the_main_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", AT_ONCE)
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    has_begun, may_end = threading.Event(), threading.Event()

    def run_another() -> None:
        with signals.handle_signals("score"):
            has_begun.set()
            may_end.wait()

    another = threading.Thread(target=run_another)
    try:
        with signals.handle_signals("train"):
            another.start()
            has_begun.wait()
            with pytest.raises(signals.StopSignal):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
    finally:
        may_end.set()
        signal.signal(signal.SIGTERM, before)
    another.join()
    assert heard == [signal.SIGTERM]
    monkeypatch.setattr(signals, "answered_signal", signal.SIGTERM)  # by the command that has ended
    another = threading.Thread(target=run_another)
    another.start()
    another.join()
    assert signals.answered_signal is None


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_a_library_that_fails_while_it_waits_gives_the_signals_back(error: type[Exception] | None) -> None:
    def wait() -> None:
        with signals.handle_in_libraries("it waits", blocks_python=True):
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            if error:
                raise error

    with signals.handle_signals("train"):
        handlers = [signal.getsignal(number) for number in signals.SIGNALS]
        with pytest.raises(error) if error else nullcontext():
            wait()
        assert [signal.getsignal(number) for number in signals.SIGNALS] == handlers


@contextmanager
def broken(how: str) -> Iterator[dict[str, Any]]:
    """Yield arguments of a process whose stdout and stderr cannot be written to."""
    if how == "closed":
        yield {"stdout": None, "stderr": None, "shell": 'exec "$@" >&- 2>&-'}
    else:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            yield {"stdout": writer, "stderr": writer}
        finally:
            os.close(writer)


@pytest.mark.parametrize(
    ("how", "framework"),
    [
        ("a pipe without a reader", "torch"),
        ("closed", "torch"),
        pytest.param("a pipe without a reader", "tensorflow", marks=installed("tensorflow")),
    ],
)
def test_a_run_that_cannot_say_so_saves_all_the_same(
    how: str, framework: str, data: Path, expected: Expected, tmp_path: Path
) -> None:
    """Ctrl-C ends `2>&1 | tee log` on both sides of the pipe."""
    run = tmp_path / "run"
    with broken(how) as streams, training(data, run, *OF[framework], **streams) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert_stopped(run)
    assert_goes_on(run, expected, framework)


def test_a_run_that_nobody_hears_goes_on_to_its_end_and_signals_that_are_ignored_stay_so(
    data: Path, tmp_path: Path
) -> None:
    """As a shell starts what stands before `&` in a script (SIGINT), and as nohup does (SIGHUP)."""
    run, ignoring = tmp_path / "run", """trap '' INT HUP; exec "$@" """
    with (
        Path("/dev/full").open("w") as full,
        training(data, run, "--epochs", "10", stdout=full, shell=ignoring) as process,
    ):
        for number in (signal.SIGINT, signal.SIGHUP):
            process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stderr.startswith("stdout: No space left")
    assert stderr.count("\n") == 1
    assert runs.result(run)["epochs"] == 10


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *((command, signal.SIGINT) for command in ("train", "evaluate", "bench", "score", "compare")),
        ("train", signal.SIGTERM),
    ],
)
def test_a_command_that_is_stopped_as_it_starts_says_one_line(command: str, number: signal.Signals) -> None:
    """While it imports: errors of C modules would come of an exception there, or nothing."""
    done = stopped_at_import(command, number, "argparse", "numpy")
    said = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert done.stderr == f"python -m ptb_lm.{command}: {said}\n"
    assert done.returncode == 128 + number


def test_a_command_that_is_stopped_before_it_can_say_so_says_nothing() -> None:
    done = stopped_at_import("train", signal.SIGINT, "ptb_lm.common.signals")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


UNTOUCHED = """
import signal, ptb_lm
print(signal.getsignal(signal.SIGINT) == signal.default_int_handler)
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


@pytest.mark.parametrize(
    ("module", "flags"),
    [("theirs", ["-m"]), ("theirs.train", ["-u", "-m"]), ("ptb_lm_of_theirs.train", ["-m"])],
)
def test_a_program_that_imports_the_package_keeps_its_signals(
    module: str, flags: list[str], tmp_path: Path
) -> None:
    """Though it is imported while Python looks for the program's module."""
    folder = tmp_path / module.partition(".")[0]
    folder.mkdir()
    (folder / "__init__.py").write_text(UNTOUCHED)
    for name in ("__main__.py", "train.py"):
        (folder / name).touch()
    command = [sys.executable, *flags, module, "-m", "ptb_lm.train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True\nTrue\n"


@pytest.mark.parametrize(
    ("module", "start"),
    [("ptb_lm", ["-m", "{}"]), ("ptb_lm.train", ["-u", "-m", "{}"]), ("ptb_lm.bench", ["-um{}"])],
)
def test_a_command_of_ours_is_known_however_python_is_told_its_module(module: str, start: list[str]) -> None:
    """Before anything of the command is imported."""
    given = ["python", *(word.format(module) for word in start), "--seed", "1"]
    code = (
        f"import sys, signal; sys.argv, sys.orig_argv = ['-m', '--seed', '1'], {given}\n"
        "import ptb_lm; print(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def stopped_at_import(
    command: str, number: signal.Signals, *modules: str
) -> subprocess.CompletedProcess[str]:
    """Start a command, which gets a signal as it imports a module."""
    code = "import sys, runpy; " + (
        "sys.argv = ['-m']; sys.orig_argv = ['python', '-m', {0!r}]; import importlib.abc, signal\n"
        "class Signal(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name in {2}: signal.raise_signal({1})\n"
        "sys.modules.pop('argparse', None); sys.meta_path.insert(0, Signal())\n"
        "runpy.run_module({0!r}, run_name='__main__', alter_sys=True)"
    ).format(f"ptb_lm.{command}", int(number), modules)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# Two processes.


def test_runs_that_start_together_get_folders_of_their_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both choose before either has made it; the clock stands still."""
    monkeypatch.setattr(run_folders, "working_folder", lambda: tmp_path)
    monkeypatch.setattr(run_folders.time, "strftime", lambda *_: "now")
    flags = ["--data", str(data), *runs.FLAGS, "--epochs", "1"]
    build, inner = launch.backend.build, []

    def build_and_start_another(*arguments: Any) -> Any:
        if not inner:
            inner.append(1)
            assert train.main(flags) == 0
        return build(*arguments)

    monkeypatch.setattr(launch.backend, "build", build_and_start_another)
    assert train.main(flags) == 0
    made = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert made == ["now-torch-cudnn-small", "now-torch-cudnn-small-2"]
    for name in made:
        assert runs.result(tmp_path / "checkpoints" / name)["epochs"] == 1


def test_a_run_that_ended_meanwhile_is_not_deleted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is empty when the flags are looked at, and holds a finished run when it is locked."""
    run = tmp_path / "run"
    build, before = launch.backend.build, []

    def build_and_finish_another(*arguments: Any) -> Any:
        if not before:
            before.append(None)
            runs.train_run(data, run)
            before[0] = runs.files(run)
        return build(*arguments)

    monkeypatch.setattr(launch.backend, "build", build_and_finish_another)
    assert train.main(runs.arguments(data, run)) == 2
    assert f"the run directory {run} exists; continue it with --resume" in capsys.readouterr().err
    assert [runs.files(run)] == before


def test_a_run_that_lost_its_folder_leaves_its_successor_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it trains, its folder is moved away, and another run begins and ends in the place."""
    run, write, after = tmp_path / "run", RunDirectory.write_metrics, []

    def write_and_train_another(self: RunDirectory, rows: Any) -> None:
        write(self, rows)
        if rows and not after:
            after.append({})
            run.rename(tmp_path / "moved")
            runs.train_run(data, run, "--seed", "2")
            after[0] = runs.files(run)

    monkeypatch.setattr(RunDirectory, "write_metrics", write_and_train_another)
    assert train.main(runs.arguments(data, run)) == 2
    assert f"the run directory {run} was removed, moved" in capsys.readouterr().err
    assert [runs.files(run)] == after
    assert train.main(["--resume", str(tmp_path / "moved")]) == 0


def test_the_result_is_written_under_the_lock(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write, free = tmp_path / "run", RunDirectory.write_result, []

    def look_and_write(self: RunDirectory, result: Any) -> None:
        try:
            with lock(run):
                free.append(True)
        except launch.UserError:
            free.append(False)
        write(self, result)

    monkeypatch.setattr(RunDirectory, "write_result", look_and_write)
    runs.train_run(data, run)
    assert free == [False]


# Killed during the first save.


@pytest.mark.parametrize(("there", "overwrite"), [*((there, []) for there in range(6)), (5, ["--overwrite"])])
def test_the_files_of_a_killed_first_save_are_ignored(
    there: int, overwrite: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files in the order in which they come to be, the last of them half written.

    --resume, which has nothing to go on from, names the flag that takes the folder again.
    """
    directory = RunDirectory(tmp_path / "run")
    run = run_flags.new_config({"hidden_size": 6})
    steps = [
        lambda: directory.state_path.parent.mkdir(parents=True),
        lambda: (directory.path / ".config.json.a1_b.tmp").write_text("{"),
        lambda: directory.write_config(run),
        lambda: (directory.path / ".vocabulary.txt.a1_b.tmp").write_text("a"),
        lambda: directory.create(run, Vocabulary(["a"])),
        lambda: (directory.state_path.parent / ".training.safetensors.a1_b.tmp").write_text("half"),
    ]
    for step in steps[: there + 1]:
        step()
    if directory.config_path.exists():
        assert f"--run-dir {directory.path}" in runs.refusal(capsys, train, "--resume", directory.path)
    runs.train_run(data, directory.path, *overwrite)
    assert not list(directory.path.rglob("*.tmp"))


def test_files_that_only_look_like_leftovers_are_left_alone(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "state").mkdir(parents=True)
    (run / ".notes.txt.abc.tmp").write_text("mine")
    before = runs.files(run)
    assert train.main(runs.arguments(data, run, "--overwrite")) == 2
    assert runs.files(run) == before
