"""How much a busy process slows down a training, by how torch's threads wait for each other.

    python -m benchmarks.studies contention --config medium --precision bf16 --out DIR

Training steps on random words are timed alone and beside a process that keeps one core busy, in each way to
wait and with one thread fewer.
"""

import argparse
import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.studies import prepare, write_rows
from ptb_lm.common import cli, host
from ptb_lm.common.errors import UserError
from ptb_lm.common.markdown_tables import write_markdown

BUSY = [sys.executable, "-c", "while True: pass"]
NEIGHBOURS: dict[str, list[str] | None] = {
    "alone": None,
    "beside one at nice 19": ["nice", "-n", "19", *BUSY],
    "beside one at nice 0": BUSY,
}


def run(arguments: argparse.Namespace) -> int:
    """Print a table of words per second, and keep it with its rows in OUT; return the exit status."""
    if arguments.step:
        return _steps(arguments)
    rows = []
    for _ in range(arguments.rounds):
        for name, waits in _ways().items():
            for neighbour, command in NEIGHBOURS.items():
                with _run_beside(command):
                    rate = _measure_rate(arguments.command, waits)
                rows.append({"way": name, "neighbour": neighbour, "words_per_second": rate})
    text = table(rows)
    cli.print_line(text)
    facts = {"command": arguments.command, **host.environment()}
    write_rows(arguments.out, (facts, *rows), table_md=text)
    return 0


def _ways() -> dict[str, dict[str, str]]:
    cores = len(host.cores())
    ways: dict[str, dict[str, str]] = {
        "as the package sets it": {},
        "spin for ever (OMP_WAIT_POLICY=active)": {"OMP_WAIT_POLICY": "active"},
        "sleep at once (OMP_WAIT_POLICY=passive)": {"OMP_WAIT_POLICY": "passive"},
        "a thread on each core (OMP_PROC_BIND=true)": {"OMP_PROC_BIND": "true"},
    }
    if cores > 1:
        ways[f"one thread fewer (OMP_NUM_THREADS={cores - 1})"] = {"OMP_NUM_THREADS": str(cores - 1)}
    return ways


@contextlib.contextmanager
def _run_beside(command: list[str] | None) -> Iterator[None]:
    if command is None:
        yield
        return
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def _measure_rate(command: str, waits: dict[str, str]) -> float:
    """Return the words per second that a process of its own does.

    Raises:
        UserError: It refuses, with this sentence.
        subprocess.CalledProcessError: It failed; its stderr has been shown.
    """
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:], "--step"],
        capture_output=True,
        text=True,
        env={**os.environ, **waits},
    )
    if done.returncode == cli.EXIT_USAGE:
        raise UserError(done.stderr.splitlines()[-1].partition(": ")[2])
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()
    return float(done.stdout.splitlines()[-1])


def _steps(arguments: argparse.Namespace) -> int:
    """Print the words per second of some steps."""
    steps = prepare(
        f"torch/{arguments.model}",
        recipe="default",
        config=arguments.config,
        device="cpu",
        precision=arguments.precision,
    )
    steps.losses("train", 3)
    done, start = 0, time.perf_counter()
    while not done or time.perf_counter() - start < arguments.seconds:
        steps.losses("train", 1)
        done += 1
    print(done * steps.task.items / (time.perf_counter() - start))
    return 0


def table(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return the table of some rows: a line for each way to wait, a column for each neighbour."""
    rates: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        rates.setdefault(row["way"], {}).setdefault(row["neighbour"], []).append(row["words_per_second"])
    neighbours = dict.fromkeys(row["neighbour"] for row in rows)
    lines = (
        [way, *(f"{statistics.median(r):,.0f} ({min(r):,.0f} to {max(r):,.0f})" for r in columns.values())]
        for way, columns in rates.items()
    )
    titles = ("words a second: median (lowest to highest)", *(f"{each}:" for each in neighbours))
    return write_markdown(titles, lines)
