"""The processes of variants: a Worker for each, kept in a Pool while there is memory for it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

from ptb_lm.bench.run.machine import Machine
from ptb_lm.bench.run.process import TIMEOUT, WORKER, Process, WorkerError
from ptb_lm.bench.run.timed_steps import WarmUp
from ptb_lm.bench.selection import Options
from ptb_lm.bench.variants import original
from ptb_lm.common import control_groups, host

# Workers are ended, the least recently used first, until this share of the memory is free.
FREE_SHARE = 0.3


class Worker:
    """A variant's process: started, compared with the reference, warmed up, ready to be timed.

    `build` and `warm_up` do their part once, however often they are called.

    Attributes:
        id: Number that no other worker of this record has.
        facts: The worker's description of itself, which grows with each part.
        warm_ups: The steps before it was timed, by pass; empty until `warm_up` has done them.
        memory: Peak of its host memory, in bytes.

    Args:
        options: Options of the run.
        workload: Name of a workload of the suite.
        variant: Name of the variant, which the process begins to build at once.
        machine: Machine whose device it computes on.
        identity: The id.
        timeout: Seconds after which a worker that does not reply is ended.
        checked: Facts of a worker of the same program that was compared with the reference; None if there is
            none.
    """

    def __init__(
        self,
        options: Options,
        workload: str,
        variant: str,
        machine: Machine,
        *,
        identity: int = 0,
        timeout: float = TIMEOUT,
        checked: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = identity
        self.memory = 0
        self.facts: dict[str, Any] = {}
        self._checked = checked
        self._refusal: WorkerError | None = None
        self.warm_ups: dict[str, WarmUp] = {}
        self._process = Process(WORKER, environment=machine.environment, timeout=timeout)
        chosen = {**asdict(options), "device": machine.device}
        self._process.send(order={"options": chosen, "workload": workload, "variant": variant})

    def build(self) -> None:
        """Wait until the variant is built.

        Raises:
            WorkerError: It cannot do the workload.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self.facts:
            try:
                self.facts = self._process.receive()
            except WorkerError as error:
                self._refusal = error
                raise

    def warm_up(self, passes: Collection[str], *, steps: int, limit: float) -> None:
        """Do steps of each pass that are not counted, and check what the variant computes.

        The first worker of a program is compared with the reference, before these steps and after them. A
        later one is only if its first losses differ from the first worker's in any bit.

        Args:
            passes: "forward", "train" or both.
            steps: Number of steps, at least 3.
            limit: Seconds for the steps. The first two are done whatever they take. A third follows unless
                the second alone exceeds the limit, and then as many as fit.

        Raises:
            WorkerError: It failed, is wrong, or cannot do the workload.
        """
        self.build()
        if not self.warm_ups:
            if self._checked is None:
                self.facts |= self._process.ask(check=True)
            found = {each: self._warm_up_pass(each, steps=steps, limit=limit) for each in passes}
            earlier = self._checked or {}
            facts = self._process.ask(confirm=earlier.get("first_losses"))
            if facts.pop("same"):
                facts |= {name: earlier[name] for name in ("parity", "loss")}
                facts["check"] = {**earlier["check"], "process": "another one, with the same first losses"}
            self.facts |= facts
            self.warm_ups = found

    def _warm_up_pass(self, pass_name: str, *, steps: int, limit: float) -> WarmUp:
        # A compiler that compiles more than once does so in the first two steps.
        first, second = (self.block(pass_name, 1, untimed=0)["seconds"] for _ in range(2))
        total, done, last = first + second, 2, second
        if second <= limit:
            last = self.block(pass_name, 1, untimed=0)["seconds"]
            total, done = total + last, 3
            more = min(steps - done, int((limit - second - last) / last))
            if more > 0:
                rest = self.block(pass_name, more, untimed=0)["seconds"]
                total, done, last = total + rest, done + more, rest / more
        return WarmUp(
            first_step_seconds=first,
            warm_up_seconds=total,
            warm_up_steps=done,
            step_seconds=min(second, last),  # either may have been held up
        )

    def block(self, pass_name: str, steps: int, *, untimed: int = 1) -> dict[str, Any]:
        """Do a block of steps after some that are not timed; return "seconds", "others" and "peak_memory".

        Raises:
            WorkerError: It failed.
        """
        reply = self._process.ask(**{"pass": pass_name}, steps=steps, untimed=untimed)
        self.memory = max(self.memory, reply["peak_memory"]["host_bytes"])
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.close()


class Pool:
    """Workers by variant, kept between rounds while there is memory for them.

    Args:
        start: Function that starts the worker of a variant.
    """

    def __init__(self, start: Callable[[str], Worker]) -> None:
        self._start = start
        self._workers: dict[str, Worker] = {}  # least recently used first
        self._peaks: dict[str, int] = {}  # bytes of memory, by program

    def get(self, variant: str) -> Worker:
        """Return the variant's worker, started if there is none; others are ended to make room for it."""
        worker = self._workers.pop(variant, None)
        if worker is None:
            while self._workers and not self.has_room(variant):
                self.drop(next(iter(self._workers)))
            worker = self._start(variant)
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
        limit = min(total, control_groups.memory_limit())
        available -= sum(needed) - sum(taken)  # which workers that have just started will take
        return min(available, limit - sum(needed)) - own > FREE_SHARE * limit
