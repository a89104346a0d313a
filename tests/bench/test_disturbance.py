"""The part of the cores that others take beside a block, and the block that counts then."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ptb_lm.bench.run import machine
from ptb_lm.common import host

# Prints what others took, what a process took that it started, the wall seconds and the cores.
MEASURE = """
import json, os, subprocess, sys, time
from ptb_lm.common import host
from ptb_lm.bench.run.machine import seconds_of_others
load, start = host.Load(seconds_of_others), time.perf_counter()
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(1)
fields = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()
taken, wall = load.busy_cores(), time.perf_counter() - start
child.kill()
print(json.dumps([taken, sum(map(int, fields[11:13])) / host.HERTZ, wall, len(host.cores())]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc/stat")
def test_processes_of_another_session_count_and_those_of_this_one_do_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
        start, before = time.perf_counter(), _ticks(busy.pid)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE], check=True, capture_output=True, start_new_session=True
        )
        share = (_ticks(busy.pid) - before) / host.HERTZ / (time.perf_counter() - start)
        busy.kill()
    taken, own, wall, cores = json.loads(done.stdout)
    assert own > 0.2
    # Tests beside this one count as well, up to the rest of the cores.
    assert 0.5 * share < taken <= cores - own / wall + 0.15


def _ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


@pytest.mark.parametrize(
    ("others", "tries", "kept"),
    [
        ([0.02], 1, 0),
        ([0.5, 0.1], 2, 1),
        ([0.5, 0.2, 0.9, 0.0], 3, 1),
        ([None], 1, 0),
    ],
)
def test_a_disturbed_block_is_measured_again(others: list[float | None], tries: int, kept: int) -> None:
    """However long it took: the seconds decide nothing."""
    blocks: list[dict[str, Any]] = [
        {"others": taken, "seconds": seconds} for taken, seconds in zip(others, (9, 1, 7, 3), strict=False)
    ]
    left = iter(blocks)
    found = machine.least_disturbed(lambda: next(left))
    assert found is blocks[kept]
    assert [*left] == blocks[tries:]
