"""The memory that this process may have, and clauses about a failed allocation."""

import math
import os
import re
from pathlib import Path

# Messages of NumPy, torch and CUDA: "Unable to allocate 7.28 TiB for an array", "you tried to allocate 64
# bytes", "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free".
_ALLOCATION = re.compile(r"allocate (\d+(?:\.\d*)?) ?(bytes|[KMGTPE]iB)")
_GPU_CAPACITY = re.compile(r"total capacity of (\d+(?:\.\d*)? ?[KMGT]iB)")
# The limits of a container, by version 2 and by version 1 of Linux's control groups.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def limit() -> float:
    """Return how many bytes this process may have: of the machine, its container, its ulimit; or infinity."""
    return min(_machine_limit(), container_limit(), _process_limit())


def container_limit() -> float:
    """Return how many bytes all processes of this container may have together; infinity without a limit."""
    return min(map(_read_limit, _CONTAINER_LIMITS))


def _machine_limit() -> float:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def _read_limit(file: str) -> float:
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return math.inf


def _process_limit() -> float:
    try:
        import resource
    except ImportError:  # Windows has none
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def describe_need(size: float, what: str) -> str:
    """Return a clause: the need for so many bytes, and how many this process may have."""
    return f"{what} {format_size(size)}, and there are {format_size(limit())}"


def describe_failure(error: BaseException) -> str:
    """Return a clause about the allocation that an error says has failed; "" if it does not say its size."""
    found, gpu = _ALLOCATION.search(str(error)), _GPU_CAPACITY.search(str(error))
    if not found:
        return ""
    size = float(found[1]) * 1024 ** _UNITS.index(found[2])
    if gpu:
        return f"the last allocation was {format_size(size)}, and the GPU has {gpu[1]}"
    return describe_need(size, "the last allocation was")


def format_size(size: float) -> str:
    """Return a number of bytes in the unit that people read best."""
    if not math.isfinite(size):
        return "an unknown amount"
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:,.{1 if power else 0}f} {_UNITS[power]}"
