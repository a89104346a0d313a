"""The processes that the benchmark speaks to, in lines of JSON: a Worker for each variant, kept in a Pool."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ptb_lm.bench.run.timed_steps import WarmUp
from ptb_lm.bench.selection import Options
from ptb_lm.bench.variants import original
from ptb_lm.common import host

# Far above what a compilation takes: a process that is silent for so long hangs.
TIMEOUT = 1800.0
WORKER = "ptb_lm.bench.run.worker"
# Workers are ended, the least recently used first, until this share of the memory is free.
FREE_SHARE = 0.3


class WorkerError(Exception):
    """A worker cannot do its work.

    Attributes:
        status: "unavailable", "wrong" or "failed".
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Process:
    """A Python module in a process of its own, which answers each line with a line.

    Args:
        arguments: The module's name, and its arguments.
        environment: Variables that the process gets beside ours.
        timeout: Seconds after which a process that does not answer is ended.
        own_session: Session of its own for the process. A Ctrl-C at the terminal then does not reach it, and
            the processes that it started are ended with it. A worker's own processes stay in its session.
    """

    def __init__(
        self,
        *arguments: str,
        timeout: float = TIMEOUT,
        environment: Mapping[str, str] | None = None,
        own_session: bool = True,
    ) -> None:
        self._timeout = min(timeout, threading.TIMEOUT_MAX)
        self._is_silent = False  # for longer than that
        self._own_session = own_session
        # Not a pipe, which nobody would empty.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=own_session,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a question as a line of JSON, and return the answer.

        Raises:
            WorkerError: The answer is a refusal, is missing, or cannot be read.
        """
        self.send(**question)
        return self.receive()

    def send(self, **question: Any) -> None:
        """Send a question; the process may work at it until `receive` is called."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, and will not answer
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the answer to the question that was sent.

        Raises:
            WorkerError: The answer is a refusal, is missing, or cannot be read.
        """
        assert self._process.stdout is not None
        timer = threading.Timer(self._timeout, self._give_up)
        timer.daemon = True  # a Ctrl-C right after its start must not wait for it
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            raise WorkerError("failed", self._death())
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise WorkerError("failed", f"its process answered {line.strip()[:80]!r}") from None
        if "reason" in answer:
            raise WorkerError(answer["status"], answer["reason"])
        return answer

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
        if sys.platform == "win32" or not self._own_session:
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):  # none of the group is left
            os.killpg(self._process.pid, signal.SIGKILL)

    def _death(self) -> str:
        status = self._process.wait()
        if self._is_silent:
            return f"its process did not answer within {self._timeout:g} s"
        if status < 0:
            memory = "; perhaps for want of memory" if status == -9 else ""
            return f"its process was ended by signal {-status}{memory}"
        lines = self.stderr().strip().splitlines()
        return f"its process ended with status {status}" + (f": {lines[-1]}" if lines else "")


def order(options: Options, workload: str, variant: str, *, device: str) -> dict[str, Any]:
    """Return the order of a worker: the variant that it is to be.

    Args:
        options: Options of the run.
        workload: Name of a workload of the suite.
        variant: Name of the variant.
        device: "cpu" or "cuda".
    """
    return {"options": {**asdict(options), "device": device}, "workload": workload, "variant": variant}


class Worker:
    """A variant's process: started, compared with the reference, warmed up, ready to be timed.

    `build`, `check` and `warm_up` do their part once, however often they are called.

    Attributes:
        id: Number that no other worker of this record has.
        facts: The worker's description of itself, which grows with each part.
        memory: Peak of its host memory, in bytes.

    Args:
        order: The variant, the workload, and the options, as `order` returns them. The process begins to
            build the variant at once.
        identity: The id.
        log: File for the worker's stderr, if it fails.
        environment: Variables that its process gets beside ours.
        timeout: Seconds after which a worker that does not answer is ended.
        checked: Facts of a worker of the same program that was compared with the reference; None if there is
            none.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        *,
        identity: int,
        log: Path,
        environment: Mapping[str, str],
        timeout: float = TIMEOUT,
        checked: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = identity
        self.memory = 0
        self.facts: dict[str, Any] = {}
        self._log = log
        self._checked = checked
        self._refusal: WorkerError | None = None
        self._warm_ups: dict[str, WarmUp] = {}
        self._process = Process(WORKER, environment=environment, timeout=timeout)
        self._process.send(order=order)

    def build(self) -> None:
        """Wait until the variant is built.

        Raises:
            WorkerError: It cannot do the workload.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self.facts:
            try:
                self.facts = self._or_log(self._process.receive)
            except WorkerError as error:
                self._refusal = error
                raise

    def check(self) -> None:
        """Have the variant compared with the reference, unless a worker of the same program was.

        Raises:
            WorkerError: It is wrong, or cannot do the workload.
        """
        self.build()
        if self._checked is None and "parity" not in self.facts:
            self.facts |= self._ask(check=True)

    def warm_up(self, passes: Collection[str], *, steps: int, limit: float) -> dict[str, WarmUp]:
        """Do steps of each pass that are not counted, and then check what it computes.

        Its first losses must be those of the worker that was compared, to the last bit. If they are not, or
        if this is that worker, it is compared with the reference.

        Args:
            passes: "forward", "train" or both.
            steps: Number of steps, at least 3.
            limit: Seconds for the steps. The first two are done whatever they take. A third follows unless
                the second alone exceeds the limit, and then as many as fit.

        Raises:
            WorkerError: It failed, or is wrong by now.
        """
        self.check()
        if not self._warm_ups:
            found = {each: self._warm_up_pass(each, steps=steps, limit=limit) for each in passes}
            earlier = self._checked or {}
            told = self._ask(confirm=earlier.get("first_losses"))
            if told.pop("same"):
                told |= {name: earlier[name] for name in ("parity", "loss")}
                told["check"] = {**earlier["check"], "process": "another one, with the same first losses"}
            self.facts |= told
            self._warm_ups = found
        return self._warm_ups

    def _warm_up_pass(self, pass_name: str, *, steps: int, limit: float) -> WarmUp:
        # A compiler that compiles more than once does so in the first two steps.
        first, second = (self._block(pass_name, 1)["seconds"] for _ in range(2))
        total, done, last = first + second, 2, second
        if second <= limit:
            last = self._block(pass_name, 1)["seconds"]
            total, done = total + last, 3
            more = min(steps - done, int((limit - second - last) / last))
            if more > 0:
                rest = self._block(pass_name, more)["seconds"]
                total, done, last = total + rest, done + more, rest / more
        return WarmUp(
            first_step_seconds=first,
            warm_up_seconds=total,
            warm_up_steps=done,
            step_seconds=min(second, last),  # either may have been held up
        )

    def block(self, pass_name: str, steps: int) -> dict[str, Any]:
        """Do a block of steps after one that is not timed; return "seconds", "others" and "peak_memory".

        Raises:
            WorkerError: It failed.
        """
        return self._block(pass_name, steps, untimed=1)

    def _block(self, pass_name: str, steps: int, *, untimed: int = 0) -> dict[str, Any]:
        answer = self._ask(**{"pass": pass_name}, steps=steps, untimed=untimed)
        self.memory = max(self.memory, answer["peak_memory"]["host_bytes"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _ask(self, **question: Any) -> dict[str, Any]:
        return self._or_log(lambda: self._process.ask(**question))

    def _or_log(self, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return an answer of the process; keep what it wrote on stderr if it failed."""
        try:
            return answer()
        except WorkerError as error:
            if error.status == "failed":
                self._log.parent.mkdir(parents=True, exist_ok=True)
                self._log.write_text(self._process.stderr())
            raise


class Pool:
    """Workers by variant, kept between rounds while there is memory for them.

    Args:
        identities: Numbers for workers.
        environment: Variables that their processes get beside ours.
        timeout: Seconds after which a worker that does not answer is ended.
    """

    def __init__(
        self, identities: Iterator[int], *, environment: Mapping[str, str], timeout: float = TIMEOUT
    ) -> None:
        self._identities = identities
        self._environment = environment
        self._timeout = timeout
        self._workers: dict[str, Worker] = {}  # least recently used first
        self._peaks: dict[str, int] = {}  # bytes of memory, by program

    def get(self, order: Mapping[str, Any], *, log: Path, checked: Mapping[str, Any] | None = None) -> Worker:
        """Return the variant's worker, started if there is none; others are ended to make room for it."""
        variant = order["variant"]
        worker = self._workers.pop(variant, None)
        if worker is None:
            while self._workers and not self.has_room(variant):
                self.drop(next(iter(self._workers)))
            worker = Worker(
                order,
                identity=next(self._identities),
                log=log,
                environment=self._environment,
                timeout=self._timeout,
                checked=checked,
            )
        self._workers[variant] = worker
        return worker

    def __contains__(self, variant: str) -> bool:
        return variant in self._workers

    def has_others(self, variant: str) -> bool:
        """Return whether workers of other variants are kept."""
        return any(name != variant for name in self._workers)

    def drop(self, variant: str) -> None:
        """End a variant's worker, if there is one."""
        worker = self._workers.pop(variant, None)
        if worker is not None:
            self._peaks[original(variant)] = max(worker.memory, self._peaks.get(original(variant), 0))
            worker.close()

    def close(self) -> None:
        """End all workers."""
        for variant in list(self._workers):
            self.drop(variant)

    def has_room(self, variant: str) -> bool:
        """Return whether there is memory for a variant's worker, as large as the largest if it is unknown."""
        taken = [worker.memory for worker in self._workers.values()]
        needed = [
            max(worker.memory, self._peaks.get(original(name), 0)) for name, worker in self._workers.items()
        ]
        own = self._peaks.get(original(variant), max(needed, default=0))
        available, total = host.machine_memory()
        # A container may have less than its machine, and tells of all that is taken in it, caches too.
        limit = min(total, host.container_memory_limit())
        available -= sum(needed) - sum(taken)  # which workers that have just started will take
        return min(available, limit - sum(needed)) - own > FREE_SHARE * limit
