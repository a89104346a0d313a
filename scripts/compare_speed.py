"""Compare how fast a training step is today with how fast it was at an earlier commit.

    PTB_LM_BEFORE=COMMIT python scripts/compare_speed.py small block_fused fp32 [--processes N]

Both packages are in one process. Blocks of steps alternate in the order today, before, before, today, so that
drift of the machine cancels: two versions of nearly equal speed can be told apart by one per cent. It prints
the speed of today over that of before, the geometric mean over processes, with its 95 % interval.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.rivals import before
from ptb_lm.bench.intervals import geometric_mean
from ptb_lm.common import cli
from ptb_lm.model import backend, parameters
from ptb_lm.model.backend import Backend
from ptb_lm.model.choice import Choice
from ptb_lm.model.presets import RECIPES

WINDOWS = 40  # distinct ones
VOCABULARY = 10_000
ROUNDS = 8
BLOCK_STEPS = {"small": 10, "medium": 2}


def main() -> int:
    """Print the ratio; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", choices=BLOCK_STEPS)
    parser.add_argument("model", choices=("block_fused", "cudnn"))
    parser.add_argument("precision", choices=("fp32", "bf16"))
    parser.add_argument("--processes", type=cli.whole_number(0), default=6, help="default: %(default)s")
    given = parser.parse_args()
    flags = [given.preset, given.model, given.precision]
    if given.processes == 0:  # one of those that the first process starts
        print(measure(*flags))
        return 0
    command = [sys.executable, __file__, *flags, "--processes", "0"]
    ratios = [
        float(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ).stdout)
        for _ in range(given.processes)
    ]
    mean = geometric_mean([[ratio] for ratio in ratios])
    low, high = mean.interval or (math.nan, math.nan)
    print(f"{' '.join(flags)}: {mean.estimate:.4f} ({low:.4f} to {high:.4f}), {given.processes} processes")
    return 0


def measure(preset: str, model: str, precision: str) -> float:
    """Return the speed of today over that of before: the median of rounds."""
    config = RECIPES["tutorial"][preset]
    weights = parameters.draw_initial(config, VOCABULARY, seed=1)
    choice = Choice.create(model=model, precision=precision, device="cpu")
    today = time_blocks(backend.build(config, weights, choice))
    build_before = getattr(before, model)
    earlier = time_blocks(build_before(config, weights, **choice.to_json()))
    steps = BLOCK_STEPS[preset]
    today(steps), earlier(steps)
    rounds = []
    for _ in range(ROUNDS):
        first, *others, last = today(steps), earlier(steps), earlier(steps), today(steps)
        rounds.append(sum(others) / (first + last))
    return statistics.median(rounds)


def time_blocks(model: Backend) -> Callable[[int], float]:
    """Return a function that does some training steps, and returns their seconds."""
    batch, window = model.config.batch_size, model.config.num_steps
    ids = np.random.default_rng(1).integers(VOCABULARY, size=(batch, window * WINDOWS + 1))
    rows_BL = model.to_device(ids.astype(np.int32))
    state, done = model.zero_state(batch), 0

    def block(steps: int) -> float:
        nonlocal state, done
        model.read([])
        start, losses = time.perf_counter(), []
        for _ in range(steps):
            begin = done % WINDOWS * window
            x_BT = rows_BL[:, begin : begin + window]
            y_BT = rows_BL[:, begin + 1 : begin + window + 1]
            state, loss = model.train_step(x_BT, y_BT, state, learning_rate=0.1)
            losses.append(loss)
            done += 1
        model.read(losses)
        return time.perf_counter() - start

    return block


if __name__ == "__main__":
    sys.exit(main())
