"""Compare how fast a training step is today with how fast it was at an earlier commit.

    PTB_LM_BEFORE=COMMIT python scripts/compare_speed.py small block_fused fp32 [--processes N]

Both packages are in one process, and do the steps that the benchmark times. Blocks of steps alternate in the
order today, before, before, today, so that drift of the machine cancels: two versions of nearly equal speed
can be told apart by one per cent. It prints the speed of today over that of before, the geometric mean over
processes, with its 95 % interval.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.studies import prepare
from ptb_lm.bench import variants
from ptb_lm.bench.intervals import geometric_mean
from ptb_lm.bench.run.timed_steps import LanguageSteps
from ptb_lm.common import cli

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
    variants.add(f"before=benchmarks.rivals.before:{model}")
    today, earlier = (
        prepare(variant, recipe="tutorial", config=preset, device="cpu", precision=precision)
        for variant in (f"torch/{model}", "before/custom")
    )

    def block(steps: LanguageSteps) -> float:
        return steps.block("train", BLOCK_STEPS[preset], untimed=0)

    block(today), block(earlier)
    rounds = []
    for _ in range(ROUNDS):
        first, *others, last = map(block, (today, earlier, earlier, today))
        rounds.append(sum(others) / (first + last))
    return statistics.median(rounds)


if __name__ == "__main__":
    sys.exit(main())
