"""The limits of this process by Linux's control groups: of its container, or its job of Slurm or systemd."""

import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")  # has a line for each hierarchy of groups: its controllers, our group


def cpu_quota() -> float | None:
    """Return how many cores' time our group may use; None without a limit."""
    quotas = []
    for values in _settings("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(ValueError):  # "max"
            quota, period = map(int, values)
            if quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit() -> float:
    """Return how many bytes our group's processes may have together; infinity without a limit."""
    limits = itertools.chain(*_settings("memory", ("memory.max",), ("memory.limit_in_bytes",)))
    return min((int(limit) for limit in limits if limit.isdigit()), default=math.inf)  # not "max"


def _settings(controller: str, version_2: Sequence[str], version_1: Sequence[str]) -> Iterator[list[str]]:
    """Yield what some files of our group say, and what those of each group around it say.

    Args:
        controller: Name of the controller of these limits: "cpu" or "memory".
        version_2: Names of the files in version 2 of control groups.
        version_1: Names of the files in version 1.
    """
    # In a container our group is the root, by whatever name the kernel calls it: there is no folder of that.
    groups = {(ROOT, version_2): "/", (ROOT / controller, version_1): "/"}
    with contextlib.suppress(OSError):  # not Linux, or /proc is not mounted
        for line in filter(None, os.fsdecode(MEMBERSHIP.read_bytes()).split("\n")):
            _, controllers, group = line.split(":", 2)
            if not controllers:
                groups[ROOT, version_2] = group
            elif controller in controllers.split(","):
                groups[ROOT / controller, version_1] = group
    for (root, names), group in groups.items():
        own = PurePosixPath(group.lstrip("/"))
        for around in (own, *own.parents):
            with contextlib.suppress(OSError):
                yield " ".join((root / around / name).read_text(encoding="utf-8") for name in names).split()
