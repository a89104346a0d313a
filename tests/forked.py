"""Python in a process that has torch already: importing it takes longer than what is asked."""

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO


class Module:
    """What subprocess.Popen is of `python -m`, with pipes and in a session of its own."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes], **ignored: object
    ) -> None:
        _, _, module, *arguments = command
        asked, asks = multiprocessing.Pipe(duplex=False)
        answers, answered = multiprocessing.Pipe(duplex=False)
        with asked, answered, Connection(os.dup(stderr.fileno())) as log:
            self._process = _start(_run_module, module, arguments, env, (asked, answered, log))
        self.stdin, self.stdout = os.fdopen(os.dup(asks.fileno()), "w"), os.fdopen(os.dup(answers.fileno()))
        asks.close()
        answers.close()

    @property
    def pid(self) -> int | None:
        """Its number, and its group's."""
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; return its status, or a signal below zero."""
        self._process.join(timeout)
        return self._process.exitcode

    def communicate(self) -> None:
        """Wait for its end, whatever it still writes."""
        self.stdin.close()
        self.stdout.read()
        self.stdout.close()
        self.wait()


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c` does, with some variables beside ours."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start(_run_program, program, {**os.environ, **environment}, Path(folder))
        process.join()
        written = [(Path(folder) / name).read_text() for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(program, process.exitcode or 0, *written)


def _start(function: Callable[..., None], *given: object) -> multiprocessing.process.BaseProcess:
    """Start a function of this file in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo"])  # what an optimiser of torch's imports
    process = context.Process(target=function, args=given)
    process.start()
    return process


def _run_program(program: str, environment: Mapping[str, str], terminal: Path) -> None:
    """Run a program in this process, which writes into files of a folder."""
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        with (terminal / name).open("w") as file:
            os.dup2(file.fileno(), descriptor)
    _run(lambda: exec(program, {"__name__": "__main__"}), environment)


def _run_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], terminal: Sequence[Connection]
) -> None:
    """Run a module as `python -m` does, in this process."""
    os.setsid()
    gc.freeze()  # what torch's import has made: a collection would look at all of it
    for descriptor, end in enumerate(terminal):
        os.dup2(end.fileno(), descriptor)
        end.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put nothing there
    sys.argv[1:] = arguments
    _run(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), environment)


def _run(program: Callable[[], object], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # of the variables before
    try:
        program()
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them
        sys.stdout.flush()
