"""The part of the cores that others took while a block was timed: other processes, or other machines.

Threads that share a step wait for each other hundreds of times in it. So a process that takes part of a core
now and then can hold up a block many times over. While other programs worked, a block of 1.5 s was seen to
take 58 s. Such a block is measured again. What decides is what the others took, never how long the block was.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ptb_lm.common import host

DISTURBANCE_LIMIT = 0.1  # of a core that others took, from which on a block is measured again
TRIES = 3  # at most; what counts is the block beside which others took the least
# Columns of /proc/stat: user, nice, system, interrupts and those put off, and what the host gave to others.
_BUSY = (1, 2, 3, 6, 7, 8)


def watch_others() -> Callable[[], float | None]:
    """Begin to measure the part of this process's cores that others take.

    The processes of this process's session are no others: a worker has a session of its own, with what it
    starts.

    Returns:
        A function that returns how many cores others took since, on average; None where the system does not
        tell.
    """
    start, before = time.perf_counter(), _seconds_of_others()

    def cores() -> float | None:
        now, seconds = _seconds_of_others(), time.perf_counter() - start
        if before is None or now is None or seconds <= 0:
            return None
        return max(0.0, (now - before) / seconds)

    return cores


def least_disturbed(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure a block, and again while others take too much; return the one beside which they took the least.

    Args:
        measure: A function that returns a block, with the cores that others took as "others".
    """
    blocks: list[dict[str, Any]] = []
    while len(blocks) < TRIES:
        blocks.append(measure())
        others = blocks[-1]["others"]
        if others is None or others <= DISTURBANCE_LIMIT:
            return blocks[-1]
    return min(blocks, key=lambda block: float(block["others"]))


def _seconds_of_others() -> float | None:
    """Return the seconds of this process's cores that were not its session's; None if unknown."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    cores = {f"cpu{core}" for core in host.cores()}
    fields = [line.split() for line in lines if line.partition(" ")[0] in cores]
    busy = sum(int(row[column]) for row in fields for column in _BUSY)
    # With the ticks of the children that a process has waited for.
    ours = sum(sum(map(int, fields[11:15])) for _, fields in session_processes())
    return (busy - ours) / host.HERTZ


def session_processes() -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder in /proc of each process of this session, and what its stat says behind the name."""
    session = os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield path.parent, fields
