"""The machine and the process: its memory, hidden output, other processes, and the environment."""

import contextlib
import ctypes
import functools
import math
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ptb_lm.common import control_groups, streams
from ptb_lm.common.program import PACKAGE, version

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
LARGEST_KEPT = 2**30
# Some of those that `git rev-parse --local-env-vars` lists.
REPOSITORY_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)
HERTZ = os.sysconf("SC_CLK_TCK")
# Messages of NumPy, torch and CUDA: "Unable to allocate 7.28 TiB for an array", "you tried to allocate 64
# bytes", "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free".
_ALLOCATION = re.compile(r"allocate (\d+(?:\.\d*)?) ?(bytes|[KMGTPE]iB)")
_GPU_CAPACITY = re.compile(r"total capacity of (\d+(?:\.\d*)? ?[KMGT]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def environment() -> dict[str, Any]:
    """Return versions and machine facts; the backend adds its own."""
    quota = control_groups.cpu_quota()
    return {
        "ptb_lm": version(),
        "commit": _git_commit(),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(cores()),
        **({} if quota is None else {"cpu_quota": quota}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def keep_freed_memory() -> None:
    """Tell the C library to keep freed memory for the next allocation, instead of giving it back.

    A step frees some hundred megabytes, and the next one allocates them again. Given back in between, each of
    their pages is fetched again by a page fault: some ten thousand a step. On other C libraries than glibc
    nothing changes.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Older versions accept at most 32 MiB. Below the size of a tensor the other settings do harm.
        if mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) or mallopt(M_MMAP_THRESHOLD, 2**25):
            mallopt(M_TRIM_THRESHOLD, LARGEST_KEPT)
        # TensorFlow's operations run on threads of its own. The heaps that such threads get hold 64 MiB, and
        # one that has become empty is given back all the same; the process's first heap is not.
        mallopt(M_ARENA_MAX, 1)


@contextlib.contextmanager
def hold_back_stderr() -> Iterator[None]:
    """Hold back the body's output on file descriptor 2, and show it only if the body fails.

    TensorFlow's libraries write notices while they are loaded, before they read TF_CPP_MIN_LOG_LEVEL
    (https://github.com/tensorflow/tensorflow/issues/100442).
    """
    if sys.stderr is None:  # it is closed, and nobody sees notices
        yield
        return
    sys.stderr.flush()
    terminal = streams.terminal = os.dup(2)
    with tempfile.TemporaryFile() as notices:
        os.dup2(notices.fileno(), 2)
        try:
            yield
        except BaseException:
            notices.seek(0)
            os.write(terminal, notices.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            streams.terminal = 2
            os.close(terminal)


@contextlib.contextmanager
def set_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Return a context in which variables of the environment have some values."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _seconds_of_other_processes() -> float | None:
    """Return the seconds of this process's cores that others used; None if unknown.

    Work at a lower priority (nice) does not count, because it gives way, unless this process has one, too.
    """
    spent = seconds_of_cores((1, 2, 3) if os.nice(0) > 0 else (1, 3))
    own = os.times()  # with children that this process has waited for: a compiler
    ours = own.user + own.system + own.children_user + own.children_system
    return None if spent is None else spent - ours


class Load:
    """Measures how much of the cores others have used since it was made.

    Args:
        seconds_of_others: Function that returns the seconds of this process's cores that others used so far;
            None where the system does not tell. By default others are all other processes.
    """

    def __init__(self, seconds_of_others: Callable[[], float | None] = _seconds_of_other_processes) -> None:
        self._seconds_of_others = seconds_of_others
        self._start = time.perf_counter(), seconds_of_others()

    def busy_cores(self) -> float | None:
        """Return how many cores others kept busy, on average; None where that is not known."""
        start, before = self._start
        now, seconds = self._seconds_of_others(), time.perf_counter() - start
        if before is None or now is None or seconds <= 0:
            return None
        return max(0.0, (now - before) / seconds)

    def hint(self, threads: int) -> str | None:
        """Return advice for a training with so many threads; None if they have a core each.

        The threads wait for each other many times a step. One that has to share its core holds up all, and so
        does one that a quota stops.
        """
        count, taken, free = len(cores()), round(self.busy_cores() or 0), usable_cores()
        quota = control_groups.cpu_quota() or math.inf
        if quota < count and free < threads and free <= count - taken:
            why, fewer = f"this process may use the time of {quota:g} of {count} cores", free
        elif taken >= 1 and threads >= 2 and threads + taken > count:
            why, fewer = f"other processes keep {taken} of {count} cores busy", max(1, count - taken)
        else:
            return None
        return (
            f"{why}: training with OMP_NUM_THREADS={fewer} is often several times faster than with {threads} "
            "threads, which wait for a core; set it before a start or a --resume"
        )


def cores() -> set[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many threads can compute at once, at least 1: by the cores, and by a quota of their time."""
    return max(1, int(min(len(cores()), control_groups.cpu_quota() or math.inf)))


def seconds_of_cores(columns: Sequence[int]) -> float | None:
    """Return the seconds that this process's cores have spent on some kinds of work, by all processes.

    Args:
        columns: The kinds, as columns of /proc/stat: 1 is user, 2 nice, 3 system.

    Returns:
        None where the system does not tell.
    """
    lines = _read("/proc/stat").splitlines()
    if not lines:
        return None
    ours = {f"cpu{core}" for core in cores()}
    fields = [line.split() for line in lines if line.partition(" ")[0] in ours]
    return sum(int(row[column]) for row in fields for column in columns) / HERTZ


def git_environment() -> dict[str, str]:
    """Return the environment for git without what names a repository, as in a hook of another one."""
    return {name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES}


def _git_commit() -> str | None:
    """Return the commit of the checkout that this package lies in, marked if its code has changed.

    Code is Python and C++; in the package a file that git does not know counts too.

    A copy of a checkout without its .git has the commit in PTB_LM_COMMIT.
    """
    checkout = PACKAGE.parent
    if not (checkout / ".git").exists():  # installed, perhaps inside another project's checkout
        return os.environ.get("PTB_LM_COMMIT") or None
    # Without optional locks: whoever kills us, or fills the disk, must not leave one in the checkout.
    status = ["git", "--no-optional-locks", "-C", str(checkout), "status", "--porcelain=v2", "--branch"]
    # Code only: results that a script has just written change nothing of the code that it ran.
    status += ["--untracked-files=all", "--", "*.py", "*.cpp"]
    try:
        done = subprocess.run(
            status,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            env=git_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = re.search("^# branch.oid ([0-9a-f]+)$", done.stdout, re.MULTILINE)
    if commit is None:  # no repository that git trusts, or one without a commit
        return None
    has_changes = re.search(rf"^(?:[^#?]|\? {PACKAGE.name}/)", done.stdout, re.MULTILINE)
    return commit[1] + (" with uncommitted changes" if has_changes else "")


@functools.cache
def read_cpuinfo() -> str:
    """Return what Linux knows of the processor; "" on other systems."""
    return _read("/proc/cpuinfo")


def _read(file: str | Path) -> str:
    """Return what the system says in a file; "" where there is no such file."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""


def _processor() -> str:
    """Return the name of the first processor."""
    facts: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in read_cpuinfo().splitlines()):
        facts.setdefault(name.strip(), value.strip())
    # An ARM processor has numbers: of its designer, and of its kind of core.
    numbers = [f"{name} {facts[f'CPU {name}']}" for name in ("implementer", "part") if f"CPU {name}" in facts]
    arm = " ".join(["ARM", *numbers]) if numbers else ""
    return facts.get("model name") or arm or platform.processor() or platform.machine()


def memory_limit() -> float:
    """Return how many bytes this process may have: of the machine, by control groups, by ulimit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    process, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(
        machine, control_groups.memory_limit(), math.inf if process == resource.RLIM_INFINITY else process
    )


def machine_memory() -> tuple[int, int]:
    """Return the machine's (available, total) memory in bytes; nothing available where that is unknown."""
    lines = _read("/proc/meminfo").splitlines()
    if not lines:
        return 0, 1
    kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kibibytes["MemAvailable"] * 1024, kibibytes["MemTotal"] * 1024


def describe_memory_need(size: float, what: str) -> str:
    """Return a clause: the need for so many bytes, and how many this process may have."""
    return f"{what} {format_size(size)}, and there are {format_size(memory_limit())}"


def describe_failed_allocation(error: BaseException) -> str:
    """Return a clause about the allocation that an error says has failed; "" if it does not say its size."""
    found, gpu = _ALLOCATION.search(str(error)), _GPU_CAPACITY.search(str(error))
    if not found:
        return ""
    size = float(found[1]) * 1024 ** _UNITS.index(found[2])
    if gpu:
        return f"the last allocation was {format_size(size)}, and the GPU has {gpu[1]}"
    return describe_memory_need(size, "the last allocation was")


def format_size(size: float) -> str:
    """Return a number of bytes in the unit that people read best."""
    if not math.isfinite(size):
        return "an unknown amount"
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:,.{1 if power else 0}f} {_UNITS[power]}"
