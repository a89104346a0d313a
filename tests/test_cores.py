"""What other processes take of the cores."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptb_lm import cores

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc/stat")


def test_a_busy_process_counts() -> None:
    """At least what it had; other tests may be at work beside it."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(0.2)
        measured, before, start = cores.Load(), _seconds_of(busy.pid), time.perf_counter()
        time.sleep(1.0)
        taken, share = measured.busy_cores(), (_seconds_of(busy.pid) - before) / (time.perf_counter() - start)
        busy.kill()
    assert taken > share - 0.15


def test_this_process_does_not_count() -> None:
    """However long it computes, and what it has started: the others have the rest of the cores at most."""
    count, wall = len(cores._cores()), time.perf_counter()
    before, own = cores._others(), sum(os.times()[:4])
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    while sum(os.times()[:4]) - own < 0.6:
        pass
    after, computed = cores._others(), sum(os.times()[:4]) - own
    assert before is not None
    assert after is not None
    assert after - before <= count * (time.perf_counter() - wall) - computed + 0.1


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / cores.HERTZ


@pytest.mark.parametrize(
    ("taken", "threads", "expected"),
    [
        (0.3, 8, None),
        (1.1, 1, None),
        (1.1, 6, None),
        (0.9, 8, "OMP_NUM_THREADS=7"),
        (20.0, 8, "OMP_NUM_THREADS=1"),
    ],
)
def test_the_hint_names_the_threads_that_have_a_core_each(
    taken: float, threads: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores.Load, "busy_cores", lambda self: taken)
    hint = cores.Load().hint(threads)
    assert (hint is None) if expected is None else expected in (hint or "")
