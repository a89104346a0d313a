"""What a report warns of: mixed rows, a machine that was not quiet, a run that resolves little."""

import math
from pathlib import Path
from typing import Any

import pytest
from bench_rows import ENVIRONMENT, document, rounds, row, unmeasured, write

from ptb_lm.bench.reporting.report import build
from ptb_lm.bench.summary import summarise
from ptb_lm.pages.document import to_markdown

UNTESTED = "there is no A/A test"
TWO = {"torch/basic": 1.0, "torch/cudnn": 2.0}
FEW = {**ENVIRONMENT, "cores": 8, "cpu_quota": 1.5}
SESSIONS = ["2026-11-21T06:00:00+0000", "2026-11-22T07:30:00+0000"]
MIXED = [
    row(session=SESSIONS[0], environment={**ENVIRONMENT, "commit": "1b4b876fb8"}),
    row(
        session=SESSIONS[1],
        round=1,
        environment={**ENVIRONMENT, "torch": "2.14.0", "commit": "2c5c987fc and changes"},
    ),
    row(session=SESSIONS[1], variant="tensorflow/basic", environment={"tensorflow": "2.21.0"}),
]
QUIET = [row(round=index, process=index, others=0.02) for index in range(3)]


def beside(*gflops: float) -> list[dict[str, Any]]:
    """Blocks beside which the machine reached so much."""
    return [row(round=index, process=index, gemm_gflops=rate) for index, rate in enumerate(gflops)]


def again(noise: float) -> list[dict[str, Any]]:
    """An A/A test whose log ratios are -noise, 0 and noise."""
    return [
        row(variant=variant, round=n, process=10 * index + n, seconds=2 * math.exp(index * (n - 1) * noise))
        for index, variant in enumerate(("torch/basic#again", "torch/basic"))
        for n in range(3)
    ]


def half_width(noise: float) -> str:
    """Their standard error is noise / sqrt(3), and t of two degrees of freedom 4.303."""
    return f"{100 * (math.exp(4.3027 * noise / math.sqrt(3)) - 1):.1f} %"


# What happened -> its rows, and what the only warning says; nothing where there is none.
CASES: dict[str, tuple[Any, list[str]]] = {
    "several commits, versions and sessions": (
        MIXED,
        [
            "commits (1b4b876, 2c5c987 and changes)",
            "versions of torch (2.13.0, 2.14.0)",
            "sessions (2026-11-21 06:00, 2026-11-22 07:30)",
        ],
    ),
    "two machines": (
        [row(round=n, environment={**ENVIRONMENT, "processor": name}) for n, name in enumerate("AB")],
        ["several processors (A, B)"],
    ),
    "rows of TensorFlow have no torch": (MIXED[1:], []),
    "fewer cores than threads": (
        [row(environment=FEW), row(variant="keras/lstm", environment={**FEW, "threads": "one a core"})],
        ["1.5 cores, and 8 threads", "OMP_NUM_THREADS=1"],
    ),
    "a core a thread": ([row(environment={**ENVIRONMENT, "cpu_quota": 2.0})], []),
    "no compiler": (
        [row(environment={**ENVIRONMENT, "no_kernels": "there is no C++ compiler; install g++"})],
        ["there is no C++ compiler; install g++."],
    ),
    "an interrupted run": (
        [each for each in rounds({**TWO, "torch/basic#again": 1.0}) if each["round"] < 3],
        ["small, train: not measured to its end: 3 of 5 rounds."],
    ),
    "fewer rounds by a limit": (
        [row(note="1 of 5 rounds (limit: 0.001 s), 1 of 3 steps a round (limit: 0.001 s)", planned_rounds=5)],
        [],
    ),
    # Of which the notes tell.
    "a failure halfway": ([row(planned_rounds=5), unmeasured("failed", "killed", planned_rounds=5)], []),
    "a quiet machine": (QUIET, []),
    "a disturbed block": ([*QUIET[:2], row(round=2, process=2, others=0.4)], ["1 of 3 blocks"]),
    "one slow block": (beside(367, 200, 364, 370, 372, 373, 371, 369), []),
    # As an hour may be slower than the one before it, because of other machines of the same host.
    "two speeds of the machine": (
        beside(367, 264, 264, 372, 372, 372, 264, 264),
        ["264 GFLOP/s or less", "372 or more", "fp32, torch.mm (MKL), 2048 × 2048 × 2048, threads: 2"],
    ),
    "the same program": ([*rounds({"torch/basic": 1.0, "torch/basic#again": 1.0}, seed=1)], []),
    "the same program twice as fast": (
        [*rounds({"torch/basic": 1.0, "torch/basic#again": 1.5}, noise=0.01)],
        ["torch/basic#again is the same program as torch/basic"],
    ),
    "a coarse run": (again(0.1), ["resolution", half_width(0.1)]),
    "a fine run": (again(0.01), []),
    "two variants": ([*rounds(TWO)], [UNTESTED]),
    "one round of an A/A test": (
        [*rounds(TWO), row(variant="torch/basic#again", process=99, note="1 of 5 rounds (limit: 9 s)")],
        [UNTESTED],
    ),
    "an A/A test": ([*rounds({**TWO, "torch/basic#again": 1.0})], []),
    "nothing to compare": ([*rounds({"torch/basic": 1.0})], []),
}


@pytest.mark.parametrize(("rows", "told"), CASES.values(), ids=CASES)
def test_a_report_warns(rows: Any, told: list[str], tmp_path: Path) -> None:
    found = [each for each in document(tmp_path, rows).warnings if UNTESTED in told or UNTESTED not in each]
    assert len(found) == bool(told), found
    assert all(each in found[0] for each in told)


def test_warnings_are_up_front(tmp_path: Path) -> None:
    write(tmp_path, [row(baseline="torch/cudnn")], end="{")
    top = to_markdown(build(summarise(tmp_path))).partition("\n## ")[0]
    first, second = (line for line in top.splitlines() if line.startswith("> **Warning:** "))
    assert "cut off" in first
    assert "baseline torch/cudnn" in second
