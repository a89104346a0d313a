"""The workers that are kept between rounds, while there is memory for them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ptb_lm.bench.process import TIMEOUT, Worker
from ptb_lm.bench.worker import Order
from ptb_lm.common import memory

# Workers are ended, the longest unused first, until this share of the memory is free.
FREE = 0.3


class Pool:
    """Workers by variant, each started when it is first needed and again when it was ended since.

    Args:
        identities: Numbers for workers.
        environment: Variables that their processes get beside ours.
        timeout: Seconds after which one is ended that does not answer.
    """

    def __init__(
        self, identities: Iterator[int], *, environment: Mapping[str, str], timeout: float = TIMEOUT
    ) -> None:
        self._identities = identities
        self._environment = environment
        self._timeout = timeout
        self._workers: dict[str, Worker] = {}  # the longest unused first

    def get(self, order: Order, *, log: Path) -> Worker:
        """Return the variant's worker, started if need be.

        Raises:
            WorkerError: It cannot do the workload.
        """
        worker = self._workers.pop(order.variant, None)
        if worker is None:
            self._make_room()
            number = next(self._identities)
            worker = Worker(
                order, identity=number, log=log, environment=self._environment, timeout=self._timeout
            )
        self._workers[order.variant] = worker
        return worker

    def holds_others(self, variant: str) -> bool:
        """Return whether workers of other variants are kept."""
        return any(name != variant for name in self._workers)

    def drop(self, variant: str) -> None:
        """End a variant's worker, if there is one."""
        worker = self._workers.pop(variant, None)
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """End all workers."""
        for variant in list(self._workers):
            self.drop(variant)

    def _make_room(self) -> None:
        while self._workers:
            taken = [worker.memory for worker in self._workers.values()]
            available, total = _memory()
            # A container may have less than its machine, and tells of all that is taken in it, caches too.
            limit = min(total, memory.container_limit())
            if min(available, limit - sum(taken)) - max(taken) > FREE * limit:
                return
            self.drop(next(iter(self._workers)))


def _memory() -> tuple[int, int]:
    """Return the machine's (available, total) memory in bytes; nothing available where that is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0, 1
    kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kibibytes["MemAvailable"] * 1024, kibibytes["MemTotal"] * 1024
