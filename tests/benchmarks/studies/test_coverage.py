"""How often intervals hold: the arithmetic on rows whose truth is known."""

import math
from pathlib import Path

import bench_rows
import numpy as np
import pytest
from scipy import stats

from benchmarks.studies import __main__ as studies
from benchmarks.studies import coverage
from ptb_lm.bench.summary import summarise

TWICE = {"torch/basic": 1.0, "torch/basic#again": 1.0}


def repeated(folder: Path, repetitions: int, *, again: float = 1.0, count: int) -> list[coverage.LogMean]:
    speeds = {**TWICE, "torch/basic#again": again}
    bench_rows.write(folder, bench_rows.rounds(speeds, count=count, noise=0.05, seed=3))
    (group,) = summarise(folder).groups
    return coverage.repetition_ratios(group, repetitions)


def test_each_repetition_is_what_its_rounds_alone_would_be(tmp_path: Path) -> None:
    ratios = repeated(tmp_path / "all", 4, count=23)
    assert [ratio.units for ratio in ratios] == [5] * 4, "three rounds are over"
    rows = list(bench_rows.rounds(TWICE, count=23, noise=0.05, seed=3))
    for number, ratio in enumerate(ratios):
        of = [row for row in rows if row["round"] // 5 == number]
        seconds = {name: [row["seconds"] for row in of if row["variant"] == name] for name in TWICE}
        logs = np.log(np.divide(seconds["torch/basic"], seconds["torch/basic#again"]))
        low, high = stats.t.interval(0.95, 4, logs.mean(), stats.sem(logs))
        assert ratio.interval == pytest.approx((math.exp(low), math.exp(high)))


def test_a_run_that_was_stopped_within_a_round_and_went_on_has_the_same_repetitions(tmp_path: Path) -> None:
    """The baseline's block before the stop has no partner: its round is measured again."""
    rows = [
        {**row, "session": "1" if row["round"] < 7 else "2"} for row in bench_rows.rounds(TWICE, count=20)
    ]
    lost = next(row for row in rows if (row["round"], row["variant"]) == (7, "torch/basic"))
    stopped = [*rows, {**lost, "session": "1", "process": 1000, "seconds": 2 * lost["seconds"]}]
    whole, again = (
        coverage.repetition_ratios(summarise(bench_rows.write(tmp_path / name, each)).groups[0], 4)
        for name, each in (("whole", rows), ("stopped", stopped))
    )
    assert again == whole


def test_of_what_is_right_nineteen_of_twenty_hold_and_of_what_is_wrong_few(tmp_path: Path) -> None:
    right = sum(ratio.differs is False for ratio in repeated(tmp_path / "right", 400, count=2000))
    assert stats.binomtest(right, 400, 0.95).pvalue > 0.01
    wrong = sum(ratio.differs is False for ratio in repeated(tmp_path / "wrong", 20, again=1.5, count=100))
    assert wrong <= 3
    assert stats.binom.cdf(wrong, 20, 0.95) < 1e-6


def test_the_command_says_how_many_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeated(tmp_path, 20, count=100)
    assert studies.main(["coverage", str(tmp_path), "--repetitions", "20"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| yes |") + printed.count("| no |") == 20
    assert printed.startswith("## small, train, torch/basic against itself\n")
    assert f"{printed.count('| yes |')} of 20 intervals of 95% contain 1, each of 5 processes: " in printed
    assert "measured alone" in printed
    assert studies.main(["coverage", str(tmp_path), "--repetitions", "60"]) == 2
    assert "100 rounds" in capsys.readouterr().err


def test_a_program_measured_among_others_is_named_and_not_said_to_be_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {"torch/basic": 1.0, "torch/cudnn@bf16": 2.0, "torch/cudnn#again@bf16": 2.0}
    rows = list(bench_rows.rounds(speeds, count=12))
    for row in rows:
        row["process"] = [*speeds].index(row["variant"])
        row["work"] = {**bench_rows.WORK, "precision": "bf16" if "@bf16" in row["variant"] else "fp32"}
    bench_rows.write(tmp_path, rows)
    assert studies.main(["coverage", str(tmp_path), "--repetitions", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## small, train, torch/cudnn@bf16 against itself\n")
    assert ", each of 6 rounds: " in printed
    assert "alone" not in printed
