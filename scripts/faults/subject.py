"""The run that all faults are done to: small, with dropout and averages, so that a lost bit shows."""

import contextlib
import hashlib
import importlib
import io
import json
import mmap
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import runs

from faults.table import AS_PROMISED
from ptb_lm import train
from ptb_lm.common import signals
from ptb_lm.common.errors import UserError
from ptb_lm.training import checkpoint, tensors, trainer
from ptb_lm.training.run_directory import RunDirectory

FLAGS = ("--epochs", "3", "--decay-after", "2", "--keep-prob", "0.7", "--average-epochs", "0.5")


# The modules that each process would import.
IMPORTED_ONCE = ("ptb_lm.training.launch", "ptb_lm.training.tensorboard", "ptb_lm.torch_backend.backend")


class ProcessEnd(NamedTuple):
    """The end of a process."""

    status: int  # negative: the signal that ended it
    output: str  # on stdout and stderr
    seconds: float
    steps: int  # of training that it did


class Subject:
    """A corpus, a run on it without a fault, and processes that make the same run again.

    Args:
        folder: An empty folder, for all files.
        framework: The framework of the runs.
    """

    def __init__(self, folder: Path, framework: str) -> None:
        self.folder, self.framework, self.count = folder, framework, 0
        self.last_output = ""  # of the last process, with its status
        self._steps = memoryview(bytes(8)).cast("Q")
        for name in IMPORTED_ONCE if framework == "torch" else ():
            importlib.import_module(name)
        self.data = runs.write_corpus(folder / "data")
        self.expected = folder / "expected"
        end = self.process(lambda: train.main(self.arguments(self.expected)))
        assert end.status == 0, end.output
        # Once more, now that everything is imported and in the disk's cache.
        again = self.arguments(self.new())
        _, _, self.seconds, self.steps = self.process(lambda: train.main(again))

    def arguments(self, run: Path, *, data: Path | None = None) -> list[str]:
        """Return the arguments of the run, into a folder."""
        return runs.arguments(data or self.data, run, *FLAGS, "--framework", self.framework)

    def training(self, run: Path) -> Callable[[], int]:
        """Return a function that makes the run in a folder."""
        return lambda: train.main(self.arguments(run))

    def new(self) -> Path:
        """Return a folder that is not there yet."""
        self.count += 1
        return self.folder / f"run-{self.count}"

    def steps_done(self) -> int:
        """Return how many steps of training the process at work has done."""
        return self._steps[0]

    def copy(self) -> Path:
        """Return a copy of the finished run."""
        return Path(shutil.copytree(self.expected, self.new()))

    def process(
        self,
        work: Callable[[], int],
        *,
        meanwhile: Callable[[int], None] = lambda _: None,
        name: str = "first",
    ) -> ProcessEnd:
        """Do some work in a process of its own; `meanwhile` gets its number.

        It is forked, so that torch need not be imported each time. TensorFlow, whose threads a fork loses, is
        imported in it alone. Processes at the same time have different names.
        """
        log, trace_path = self.folder / f"{name}.log", self.folder / f"{name}.traceback"
        for path in (log, trace_path):
            path.write_bytes(b"")
        start = time.monotonic()
        # A signal that comes before the child has a handler must end it, not what it has from its parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
        steps = self._steps = memoryview(mmap.mmap(-1, 8)).cast("Q")  # shared with the child
        child = os.fork()
        if not child:
            _count(steps)
            _work(work, log, trace_path)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
        try:
            meanwhile(child)
        finally:
            _, code = os.waitpid(child, 0)
        output = "".join(path.read_text(errors="replace") for path in (log, trace_path))
        self.last_output = f"{name}: status {os.waitstatus_to_exitcode(code)}\n{output[-2000:]}"
        return ProcessEnd(os.waitstatus_to_exitcode(code), output, time.monotonic() - start, steps[0])

    def finish(self, run: Path) -> str:
        """Resume a run that was ended, or begin it again where nothing was saved; return the outcome."""
        resume = ["--resume", str(run)]
        there = RunDirectory(run).state_path.exists()
        end = self.process(lambda: train.main(resume if there else self.arguments(run)))
        if "Traceback" in end.output:
            return "a traceback"
        if end.status:
            return "cannot go on"
        if list(run.rglob("*.tmp")):
            return "leaves temporary files"
        outcome = AS_PROMISED if fingerprint(run) == fingerprint(self.expected) else "another result"
        shutil.rmtree(run)
        return outcome


# The outcome of each try, in words; endless, or until everything was tried once.
Outcomes = Callable[[Subject, random.Random], Iterator[str]]


def _count(steps: "memoryview[int]") -> None:
    """Count the steps of training that this process does, before any of them is saved."""
    train_run = trainer.Trainer.train

    def train_and_count(self: trainer.Trainer) -> dict[str, Any]:
        step = self.backend.train_step

        def step_and_count(*arguments: Any, **keywords: Any) -> Any:
            after = step(*arguments, **keywords)
            steps[0] += 1
            return after

        self.backend.train_step = step_and_count  # type: ignore[method-assign]
        return train_run(self)

    trainer.Trainer.train = train_and_count  # type: ignore[method-assign]


def _work(work: Callable[[], int], log: Path, trace_path: Path) -> NoReturn:
    """Do some work in a new process, and end it."""
    status = 70  # with a traceback
    try:
        for number in signals.SIGNALS:  # a shell's `&` and nohup make some ignored
            signal.signal(number, signal.SIG_DFL)
        trace = trace_path.open("w")  # stderr may be of no use
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        open_streams()
        signals.handle_from_start()  # as a command has it that was not forked
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
        trainer.READ_SECONDS = 0.0
        checkpoint.SAVE_SECONDS = 0.02
        try:
            status = work()
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:  # it would be a traceback
            traceback.print_exc(file=trace)
        for stream in (sys.stdout, sys.stderr, trace):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(status)


def open_streams() -> None:
    """Make stdout and stderr anew, as a fresh process finds them; None where they are closed."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            file = os.fdopen(number, "wb", closefd=False)
            errors = "backslashreplace" if name == "stderr" else "strict"
            stream = io.TextIOWrapper(file, errors=errors, line_buffering=name == "stderr")
        except OSError:
            stream = None
        setattr(sys, name, stream)


def fingerprint(run: Path, *, tensors_only: bool = False) -> str:
    """Return a digest of all that a run computed, without its times.

    Args:
        run: The run's folder.
        tensors_only: True to leave metrics.jsonl and result.json out.
    """
    directory, digest = RunDirectory(run), hashlib.sha256()
    for path in (directory.state_path, directory.weights_path):
        for name, array in sorted(tensors.load(path)[0].items()):
            digest.update(name.encode() + array.tobytes())
    if tensors_only:
        return digest.hexdigest()
    result = directory.read_result()
    if result is None:
        raise UserError("it has no result")
    numbers = {name: value for name, value in result.items() if "perplexity" in name or "epoch" in name}
    clocks = ("words_per_second", "seconds")
    rows = [{k: v for k, v in row.items() if k not in clocks} for row in directory.read_metrics()]
    digest.update(json.dumps([numbers, rows], sort_keys=True).encode())
    return digest.hexdigest()


def kill_after(seconds: float, *numbers: signal.Signals) -> Callable[[int], None]:
    """Return a function that sends a process signals after some time, one right after the other."""

    def meanwhile(child: int) -> None:
        time.sleep(seconds)
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            time.sleep(0.002)

    return meanwhile


def stop_after(seconds: float, patience: float) -> Callable[[int], None]:
    """Return a function that sends SIGTERM to a process after some time, and SIGKILL if it continues."""

    def meanwhile(child: int) -> None:
        for number, until in ((signal.SIGTERM, seconds), (signal.SIGKILL, patience)):
            end = time.monotonic() + until
            while time.monotonic() < end:
                # Without reaping it.
                if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    return
                time.sleep(0.01)
            os.kill(child, number)

    return meanwhile


def flaw(end: ProcessEnd, *statuses: int) -> str | None:
    """Return the flaw of a command's end; None if it is as it should be.

    Args:
        end: The end.
        statuses: The right statuses. With 1 and 2 a sentence is due; a traceback never is.
    """
    for sign in ("Traceback", "Exception ignored", "Fatal Python error"):
        if sign in end.output:
            return "a traceback"
    if end.status not in statuses:
        return f"status {end.status}"
    *_, last = end.output.rstrip("\n").split("\n")
    said = last.startswith("python -m ptb_lm.") and all(ord(c) >= 32 for c in last)
    return "refused, but not in a sentence" if end.status in (1, 2) and not said else None


def refused_or_done(end: ProcessEnd) -> str:
    """Return the outcome of a command that may do its work, or refuse it in one sentence."""
    return flaw(end, 0, 1, 2) or AS_PROMISED
