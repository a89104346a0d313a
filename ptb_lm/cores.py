"""How busy the cores that this process may use are with the work of others."""

import os
import time
from pathlib import Path

HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Load:
    """What other processes took of the cores since this was made.

    Work at a lower priority (nice) does not count: it gives way.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter(), _others()

    def busy_cores(self) -> float:
        """Return how many cores other processes kept busy, on average; 0 where that is not known."""
        started, before = self._start
        now, seconds = _others(), time.perf_counter() - started
        if before is None or now is None or seconds <= 0:
            return 0.0
        return max(0.0, (now - before) / seconds)

    def hint(self, threads: int) -> str | None:
        """Return what to tell who trains with so many threads; None if they have a core each.

        The threads wait for each other many times a step. One that has to share its core holds up all.
        """
        cores, taken = len(_cores()), round(self.busy_cores())
        if taken < 1 or threads < 2 or threads + taken <= cores:
            return None
        fewer = max(1, cores - taken)
        return (
            f"other processes keep {taken} of {cores} cores busy: OMP_NUM_THREADS={fewer} is faster than "
            f"{threads} threads that wait for them"
        )


def _cores() -> set[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _others() -> float | None:
    """Return the seconds that these cores have spent on other processes; None if the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    ours = {f"cpu{core}" for core in _cores()}
    fields = [line.split() for line in lines if line.partition(" ")[0] in ours]
    own = os.times()  # with what this process has started and waited for: a compiler
    # user, nice, system, ...
    spent = sum(int(of[1]) + int(of[3]) for of in fields) / HERTZ
    return spent - own.user - own.system - own.children_user - own.children_system
