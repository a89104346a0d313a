"""Words per second of some variants, interleaved: the whole training step on real text, on the CPU.

    python scripts/speed.py --config small --out results/speed-small plain torch/cudnn tensorflow/basic/xla

A variant is `plain` (scripts/plain_loop.py) or FRAMEWORK/MODEL[/EXECUTION[/UNROLL]]. Each lives in a process
of its own and waits; a round is a block of training steps of every variant, in random order, so that a
machine that speeds up or slows down does so for all. Ratios are to the first variant, round by round. The
first block of each is warm-up, and so is all compilation.
"""

import argparse
import itertools
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptb_lm import backend, corpus, datasets, parameters, runlog
from ptb_lm.config import PRESETS, Config
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write

Train = Callable[[list[Any]], float]  # trains on some windows; returns their negative log likelihood


def main() -> None:
    """Measure, print a table, and write OUT/rounds.jsonl, OUT/result.json and OUT/table.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="+", metavar="VARIANT")
    parser.add_argument("--config", choices=tuple(PRESETS), default="small")
    parser.add_argument("--data", default="ptb")
    parser.add_argument("--block", type=int, default=20, help="training steps of a variant in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _work(arguments.variants[0], PRESETS[arguments.config], arguments.data, arguments.block)
    else:
        _measure(arguments)


def _work(variant: str, config: Config, data: str, block: int) -> None:
    """Train a block of steps for every line on stdin; answer with a line of JSON."""
    loaded = datasets.load(data)
    rows_BL = corpus.rows(loaded.splits["train"], config.batch_size)
    # Round after round of the text, as epochs are.
    windows = itertools.chain.from_iterable(
        corpus.windows(rows_BL, config.num_steps) for _ in itertools.count()
    )
    try:
        train, facts = _loop(variant, config, len(loaded.vocabulary))
    except UserError as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        taken = list(itertools.islice(windows, block))
        start = time.perf_counter()
        nll = train(taken)
        seconds = time.perf_counter() - start
        print(
            json.dumps({"words": sum(y.size for _, y in taken), "nll": nll, "seconds": seconds}), flush=True
        )


def _loop(variant: str, config: Config, vocabulary_size: int) -> tuple[Train, dict[str, Any]]:
    if variant == "plain":
        from plain_loop import PlainLoop

        import ptb_lm.torch_backend  # noqa: F401 - sets how torch's threads wait, for plain as for ours

        return PlainLoop(config, vocabulary_size).train, {"engine": "torch modules"}
    framework, model, *options = variant.split("/")
    execution, unroll = (*options, None, None)[:2]
    weights = parameters.initial(config, vocabulary_size, seed=1)
    built = backend.build(
        config,
        weights,
        framework=framework,
        model=model,
        execution=execution,
        unroll=unroll,
        device="cpu",
        precision="fp32",
        seed=1,
    )
    state = built.zero_state(config.batch_size)

    def train(windows: list[Any]) -> float:
        nonlocal state
        losses = []
        for x_BT, y_BT in windows:
            state, loss = built.train_step(x_BT, y_BT, state, learning_rate=config.learning_rate)
            losses.append(loss)
        return sum(measured.nll for measured in built.read(losses))

    return train, {"engine": built.engine, "environment": built.environment()}


class _Worker:
    """A variant in a process of its own."""

    def __init__(self, variant: str, arguments: argparse.Namespace) -> None:
        flags = ["--config", arguments.config, "--data", arguments.data, "--block", str(arguments.block)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", *flags, variant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()

    def block(self) -> dict[str, float]:
        """Train a block of steps; return its words, seconds and negative log likelihood."""
        assert self.process.stdin is not None
        self.process.stdin.write("block\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{shlex.join(map(str, self.process.args))} ended with {self.process.wait()}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def _measure(arguments: argparse.Namespace) -> None:
    workers = {variant: _Worker(variant, arguments) for variant in arguments.variants}
    speeds: dict[str, list[float]] = {v: [] for v, w in workers.items() if "unavailable" not in w.facts}
    nll = dict.fromkeys(speeds, 0.0)
    warm_up = {variant: workers[variant].block()["seconds"] for variant in speeds}
    words = 0.0
    bar = runlog.progress(arguments.rounds * len(speeds), "rounds")
    with bar:
        for _ in range(arguments.rounds):
            for variant in random.sample(list(speeds), len(speeds)):
                measured = workers[variant].block()
                speeds[variant].append(measured["words"] / measured["seconds"])
                nll[variant] += measured["nll"]
                bar.update()
            words += measured["words"]
    for worker in workers.values():
        worker.close()

    baseline = speeds[arguments.variants[0]]
    rows = []
    for variant, worker in workers.items():
        row: dict[str, Any] = {"variant": variant, **worker.facts}
        if variant in speeds:
            ratios = [speed / base for speed, base in zip(speeds[variant], baseline, strict=True)]
            row |= {
                "words_per_second": statistics.median(speeds[variant]),
                "ratio": statistics.median(ratios),
                "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2,
                "train_perplexity": runlog.perplexity(nll[variant], int(words)),
                "warm_up_seconds": warm_up[variant],
                "rounds": speeds[variant],
            }
        rows.append(row)
    table = _table(rows, arguments)
    print(table)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        result = {
            "command": shlex.join(["python", *sys.argv]),
            "environment": runlog.environment(),
            "steps_per_block": arguments.block,
            "rows": rows,
        }
        atomic_write(arguments.out / "result.json", json.dumps(result, indent=1) + "\n")
        atomic_write(arguments.out / "table.md", table)


def _table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    lines = [
        f"{arguments.config}: words per second of the training step, median of {arguments.rounds} "
        f"interleaved rounds of {arguments.block} steps; ratio to {arguments.variants[0]} and its quartiles.",
        "",
        "| variant | words/s | ratio | quartiles | first block, s |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        if "unavailable" in row:
            lines.append(f"| {row['variant']} | | | {row['unavailable']} | |")
        else:
            low, high = row["ratio_quartiles"]
            lines.append(
                f"| {row['variant']} | {row['words_per_second']:,.0f} | {row['ratio']:.2f} "
                f"| {low:.2f} to {high:.2f} | {row['warm_up_seconds']:.1f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
