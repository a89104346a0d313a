"""The processes that the benchmark speaks to, in lines of JSON."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ptb_lm.bench.worker import Order

# Far above what a compilation takes: a process that is silent for so long hangs.
TIMEOUT = 1800.0


class WorkerError(Exception):
    """A worker cannot do its work.

    Attributes:
        status: "unavailable", "wrong" or "failed".
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class WarmUp(NamedTuple):
    """What a worker did before it was timed."""

    first_step_seconds: float  # with tracing and compilation
    warm_up_seconds: float  # of all these steps
    warm_up_steps: int
    step_seconds: float  # what a step will take: the least of those after the first


class Process:
    """A Python module in a process of its own, which answers each line with a line.

    Args:
        arguments: Of `python -m`.
        environment: Variables that it gets beside ours.
        timeout: Seconds after which a process that does not answer is ended.
    """

    def __init__(
        self, *arguments: str, timeout: float = TIMEOUT, environment: Mapping[str, str] | None = None
    ) -> None:
        self._timeout = min(timeout, threading.TIMEOUT_MAX)
        self._silent = False  # for longer than that
        # Not a pipe, which nobody would empty.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(environment or {})},
            # A Ctrl-C at the terminal is the runner's to handle, and a group is ended with all its compilers.
            start_new_session=True,
        )

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and return the answer.

        Raises:
            WorkerError: There is none, or none that can be read; with what the process wrote last.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(self._timeout, self._give_up)
        timer.daemon = True  # a Ctrl-C right after its start must not wait for it
        timer.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer.endswith("\n"):
            raise WorkerError("failed", self._death())
        try:
            parsed: dict[str, Any] = json.loads(answer)
        except ValueError:
            raise WorkerError("failed", f"its process answered {answer.strip()[:80]!r}") from None
        return parsed

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
        self._silent = True
        self._kill()

    def _kill(self) -> None:
        if sys.platform == "win32":
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):  # none of the group is left
            os.killpg(self._process.pid, signal.SIGKILL)

    def _death(self) -> str:
        status = self._process.wait()
        if self._silent:
            return f"its process did not answer within {self._timeout:g} s"
        if status < 0:
            memory = "; perhaps for want of memory" if status == -9 else ""
            return f"its process was ended by signal {-status}{memory}"
        lines = self.stderr().strip().splitlines()
        return f"its process ended with status {status}" + (f": {lines[-1]}" if lines else "")


class Worker:
    """A variant's process: started, compared with the reference, warmed up, ready to be timed.

    Attributes:
        id: A number of its own in this record.
        facts: What the worker said of itself.
        memory: The peak of its host memory, in bytes.

    Args:
        order: What it is to be.
        identity: The id.
        log: Where to keep what it wrote on stderr, if it fails.
        environment: Variables that its process gets beside ours.
        timeout: Seconds after which it is ended if it does not answer.

    Raises:
        WorkerError: It cannot do the workload.
    """

    def __init__(
        self,
        order: Order,
        *,
        identity: int,
        log: Path,
        environment: Mapping[str, str],
        timeout: float = TIMEOUT,
    ) -> None:
        self.id = identity
        self.memory = 0
        self._log = log
        self._warm_ups: dict[str, WarmUp] = {}
        self._process = Process("ptb_lm.bench.worker", environment=environment, timeout=timeout)
        try:
            self.facts = self._ask(order.to_json())
        except BaseException:
            self.close()
            raise

    def warm_up(self, pass_name: str, *, steps: int, limit: float) -> WarmUp:
        """Do steps that are not counted, once; compilation is in the first. Then it is compared again.

        Args:
            pass_name: "forward" or "train".
            steps: How many, at least 3.
            limit: Seconds; the first two steps are done whatever they take, of the others as many as fit, one
                at least unless the second took longer by itself.

        Raises:
            WorkerError: It failed, or is wrong by now.
        """
        if pass_name not in self._warm_ups:
            # What a compiler does more than once, it does in the first two steps.
            first, second = (self._block(pass_name, 1)["seconds"] for _ in range(2))
            total, done, last = first + second, 2, second
            if second <= limit:
                last = self._block(pass_name, 1)["seconds"]
                total, done = total + last, 3
                more = min(steps - done, int((limit - second - last) / last))
                if more > 0:
                    rest = self._block(pass_name, more)["seconds"]
                    total, done, last = total + rest, done + more, rest / more
            self._ask(json.dumps({"compare": "again"}))
            self._warm_ups[pass_name] = WarmUp(
                first_step_seconds=first,
                warm_up_seconds=total,
                warm_up_steps=done,
                step_seconds=min(second, last),  # either may have been held up
            )
        return self._warm_ups[pass_name]

    def block(self, pass_name: str, steps: int) -> dict[str, Any]:
        """Do a block of steps after one that is not timed; return "seconds", "others" and "peak_memory".

        Raises:
            WorkerError: It failed.
        """
        return self._block(pass_name, steps, untimed=1)

    def _block(self, pass_name: str, steps: int, *, untimed: int = 0) -> dict[str, Any]:
        answer = self._ask(json.dumps({"pass": pass_name, "steps": steps, "untimed": untimed}))
        self.memory = max(self.memory, answer["peak_memory"]["host_bytes"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _ask(self, line: str) -> dict[str, Any]:
        try:
            answer = self._process.ask(line)
            if answer.get("status", "ready") != "ready":
                raise WorkerError(answer["status"], answer["reason"])
        except WorkerError as error:
            if error.status == "failed":
                self._log.parent.mkdir(parents=True, exist_ok=True)
                self._log.write_text(self._process.stderr())
            raise
        return answer
