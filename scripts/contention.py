"""What a busy process beside a training costs it, by how torch's threads wait for each other.

    python scripts/contention.py --config medium --precision bf16 --out DIR

Times training steps on random words, alone and beside a process that keeps one core busy, in each way to wait
and with one thread fewer. Prints a table of words per second; --out keeps it in table.md, with the raw rows.
"""

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_lm import cli
from ptb_lm.files import atomic_write
from ptb_lm.model.backend import FRAMEWORKS
from ptb_lm.model.config import PRESETS, RECIPES
from ptb_lm.training import runlog

PROG = "python scripts/contention.py"
BUSY = [sys.executable, "-c", "while True: pass"]
NEIGHBOURS: dict[str, list[str] | None] = {
    "alone": None,
    "beside one at nice 19": ["nice", "-n", "19", *BUSY],
    "beside one at nice 0": BUSY,
}


def main() -> int:
    """Measure; return the exit status."""
    return cli.run(PROG, _main)


def _main() -> int:
    parser = cli.Parser(prog=PROG, description="What a busy process beside a training costs it.")
    parser.add_argument("--config", choices=tuple(PRESETS), default="medium")
    parser.add_argument("--model", default="block_fused", choices=tuple(FRAMEWORKS["torch"].models))
    parser.add_argument("--precision", choices=FRAMEWORKS["torch"].precisions, default="fp32")
    parser.add_argument("--seconds", type=cli.positive, default=4.0, help="a block's (default: %(default)g)")
    parser.add_argument("--rounds", type=cli.whole(1), default=3, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="keep table.md and rows.jsonl there")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)  # what it starts itself
    arguments = parser.parse_args()
    if arguments.step:
        return _steps(arguments)
    rows = []
    for _ in range(arguments.rounds):
        for name, waits in _ways().items():
            for neighbour, command in NEIGHBOURS.items():
                with _running(command):
                    rate = _measured(waits)
                rows.append({"way": name, "neighbour": neighbour, "words_per_second": rate})
    text = _table(rows)
    runlog.say(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        facts = {"command": shlex.join([*PROG.split(), *sys.argv[1:]]), **runlog.environment()}
        lines = [json.dumps(row) + "\n" for row in (facts, *rows)]
        atomic_write(arguments.out / "rows.jsonl", "".join(lines))
        atomic_write(arguments.out / "table.md", text + "\n")
    return 0


def _ways() -> dict[str, dict[str, str]]:
    cores = len(os.sched_getaffinity(0))
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
def _running(command: list[str] | None) -> Iterator[None]:
    if command is None:
        yield
        return
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def _measured(waits: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--step"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **waits},
    )
    return float(done.stdout.splitlines()[-1])


def _steps(arguments: argparse.Namespace) -> int:
    """Print the words per second of some steps."""
    from ptb_lm.bench.language_workloads import PTB_VOCABULARY
    from ptb_lm.bench.workloads import LanguageTask
    from ptb_lm.data import corpus
    from ptb_lm.model import backend, parameters
    from ptb_lm.model.choice import Choice

    config = RECIPES["default"][arguments.config]
    task = LanguageTask(config=config, vocabulary_size=PTB_VOCABULARY)
    choice = Choice.of(model=arguments.model, device="cpu", precision=arguments.precision)
    model = backend.build(config, parameters.initial(config, PTB_VOCABULARY, seed=1), choice)
    ((x_BT, y_BT),) = corpus.windows(model.place(task.rows(1, seed=1)), config.num_steps)
    state: Any = model.zero_state(config.batch_size)
    done, start = -3, time.perf_counter()
    while done < 1 or time.perf_counter() - start < arguments.seconds:
        if done == 0:
            start = time.perf_counter()
        state, loss = model.train_step(x_BT, y_BT, state, learning_rate=0.1)
        model.read([loss])
        done += 1
    print(done * config.batch_size * config.num_steps / (time.perf_counter() - start))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| words a second: median (lowest to highest) | {' | '.join(NEIGHBOURS)} |",
        f"|---|{'--:|' * len(NEIGHBOURS)}",
    ]
    for way in dict.fromkeys(row["way"] for row in rows):
        cells = []
        for neighbour in NEIGHBOURS:
            rates = [r["words_per_second"] for r in rows if (r["way"], r["neighbour"]) == (way, neighbour)]
            cells.append(f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
