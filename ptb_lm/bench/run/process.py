"""A process that the benchmark speaks to, in lines of JSON."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, TextIO

# Far above what a compilation takes: a process that is silent for so long hangs.
TIMEOUT = 1800.0
GRACE = 30.0  # for a process that has closed its replies to end
WORKER = "ptb_lm.bench.run.worker"


class WorkerError(Exception):
    """A worker cannot do its work.

    Attributes:
        status: "unavailable", "wrong" or "failed".
        log: Text that its process wrote on stderr, if it failed; "" otherwise.
    """

    def __init__(self, status: str, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.log = log if status == "failed" else ""


class Process:
    """A Python module in a process of its own, which replies to each line with a line.

    It has a session of its own: a Ctrl-C at the terminal does not reach it, and the processes that it started
    are ended with it.

    Args:
        arguments: The module's name, and its arguments.
        environment: Variables that the process gets beside ours.
        timeout: Seconds after which a process that does not reply is ended.
    """

    def __init__(
        self,
        *arguments: str,
        timeout: float = TIMEOUT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout = min(timeout, threading.TIMEOUT_MAX)
        self._is_silent = False  # for longer than that
        # Not a pipe, which nobody would empty.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request as a line of JSON, and return the reply.

        Raises:
            WorkerError: The reply is a refusal, is missing, or cannot be read.
        """
        self.send(**request)
        return self.receive()

    def send(self, **request: Any) -> None:
        """Send a request; the process may work at it until `receive` is called."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, and will not reply
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the reply to the request that was sent.

        Raises:
            WorkerError: The reply is a refusal, is missing, or cannot be read.
        """
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            raise WorkerError("failed", "its process was ended to make room")
        timer = threading.Timer(self._timeout, self._give_up)
        timer.daemon = True  # a Ctrl-C right after its start must not wait for it
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            raise WorkerError("failed", self._death(), self.stderr())
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            nonsense = f"its process answered {line.strip()[:80]!r}"
            raise WorkerError("failed", nonsense, self.stderr()) from None
        if "reason" in reply:
            raise WorkerError(reply["status"], reply["reason"], self.stderr())
        return reply

    def close(self) -> None:
        """End the process and those that it started."""
        self._kill()
        self._process.communicate()
        self._stderr.close()

    def stderr(self) -> str:
        """Return what the process wrote on stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def _give_up(self) -> None:
        self._is_silent = True
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # none of the group is left
            os.killpg(self._process.pid, signal.SIGKILL)

    def _death(self) -> str:
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
            return "its process closed its replies, and did not end"
        if self._is_silent:
            return f"its process did not answer within {self._timeout:g} s"
        return f"its process {describe_end(status, self.stderr())}"


def describe_end(status: int, stderr: str) -> str:
    """Return a clause about a process that has ended: by which signal, or with which status and last line."""
    if status < 0:
        memory = "; perhaps for want of memory" if status == -9 else ""
        return f"was ended by signal {-status}{memory}"
    lines = stderr.strip().splitlines()
    return f"ended with status {status}" + (f": {lines[-1]}" if lines else "")


def end_with_asker(requests: TextIO) -> None:
    """See to it that this process, and those that it started, end as soon as nobody can ask it any more.

    A program that does not come back never reads the end of the requests. It would take a core for ever, and
    disturb the next benchmark.
    """
    threading.Thread(target=_wait_and_end, args=(requests.fileno(),), daemon=True).start()


def _wait_and_end(requests: int) -> None:
    asker = select.poll()
    asker.register(requests, 0)  # for nothing but its end, of which poll always tells
    asker.poll()
    os.killpg(os.getpid(), signal.SIGKILL)
