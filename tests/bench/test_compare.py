"""Two benchmarks with known ratios against each other."""

from pathlib import Path
from typing import Any

import pytest
from bench_rows import ENVIRONMENT, WORK, rounds, row, unmeasured, write

from ptb_lm.bench.reporting.compare import compare
from ptb_lm.errors import UserError

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.7, "torch/cudnn": 2.0}


def compared(folder: Path, a: Any, b: Any) -> list[str]:
    return compare(write(folder / "a", a), write(folder / "b", b)).splitlines()


def line_of(lines: list[str], variant: str) -> list[str]:
    (line,) = (line for line in lines if line.startswith(f"| `{variant}` |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_first_line_is_the_verdict(tmp_path: Path) -> None:
    a, b = rounds(SPEEDS, seed=1), rounds({**SPEEDS, "torch/cudnn": 2.5}, seed=2)
    lines = compared(tmp_path, a, b)
    assert lines[0] == "1 of 2 ratios agree within their intervals."
    assert line_of(lines, "torch/block")[4] == "agree"
    assert line_of(lines, "torch/cudnn")[4] == "differ"
    assert line_of(lines, "torch/basic")[3:5] == ["–", "baseline"]
    change = float(line_of(lines, "torch/cudnn")[3].split()[0])
    assert change == pytest.approx(1.25, abs=0.08)


def test_a_machine_that_is_twice_as_slow_has_the_same_ratios(tmp_path: Path) -> None:
    a = list(rounds(SPEEDS, seed=1))
    slow = [
        {**each, "seconds": 2 * each["seconds"], "environment": {**ENVIRONMENT, "cpu": "Slow"}} for each in a
    ]
    lines = compared(tmp_path, a, slow)
    assert lines[0].startswith("2 of 2 ratios agree")
    assert line_of(lines, "torch/cudnn")[3].startswith("1.00 ")
    assert line_of(lines, "torch/cudnn")[7] == "-50.0 %"
    assert "cpu Slow" in lines[4]
    assert any("not measured side by side" in line for line in lines)


def test_a_verdict_by_rounds_alone_says_so(tmp_path: Path) -> None:
    """The variants of B have a process each, in which they do all rounds."""
    a = list(rounds(SPEEDS, seed=1))
    processes = {variant: number for number, variant in enumerate(SPEEDS)}
    b = [{**each, "process": processes[each["variant"]]} for each in rounds(SPEEDS, seed=2)]
    lines = compared(tmp_path, a, b)
    assert line_of(lines, "torch/basic")[4] == "baseline"
    assert line_of(lines, "torch/block")[4] == "agree, by rounds"
    assert any(line.startswith('A verdict "by rounds"') for line in lines)
    again = compared(tmp_path, a, list(rounds(SPEEDS, seed=2)))
    assert line_of(again, "torch/block")[4] == "agree"
    assert not any("by rounds" in line for line in again)


def test_how_often_the_same_is_called_different(tmp_path: Path) -> None:
    """At most 5 % of 600 ratios, by chance; three standard errors are 3 %: a benchmark's two go together."""
    differ = 0
    for seed in range(300):
        a, b = rounds(SPEEDS, seed=2 * seed), rounds(SPEEDS, seed=2 * seed + 1, count=7)
        lines = compared(tmp_path, a, b)
        differ += sum(line_of(lines, variant)[4] == "differ" for variant in ("torch/block", "torch/cudnn"))
    assert 0.02 < differ / 600 < 0.08


def test_what_is_in_one_only_is_listed(tmp_path: Path) -> None:
    a = [*rounds(SPEEDS), row(workload="medium")]
    b = [
        *rounds({"torch/basic": 1.0, "torch/block": 0.7, "tensorflow/basic": 0.9}),
        unmeasured("failed", "killed", variant="torch/cudnn"),
    ]
    lines = compared(tmp_path, a, b)
    assert lines[0].endswith(
        " In one of the two this was not measured to the end: torch/cudnn of small, train (failed in B: "
        "killed)."
    )
    assert "- only in A: small, train: torch/cudnn" not in lines, "it is in both"
    assert "- only in A: medium, train: torch/basic" in lines
    assert "- only in B: small, train: tensorflow/basic" in lines


def test_one_round_tells_nothing(tmp_path: Path) -> None:
    lines = compared(tmp_path, rounds(SPEEDS, count=1), rounds(SPEEDS))
    assert lines[0] == "No ratio can be compared, for want of an interval."
    assert line_of(lines, "torch/cudnn")[4] == "no interval"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"baseline": "torch/cudnn"}, "the baseline is torch/basic in A and torch/cudnn in B"),
        (
            {"work": {**WORK, "precision": "bf16"}},
            "the work is not the same: precision is fp32 in A and bf16 in B",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    lines = compared(tmp_path, rounds(SPEEDS), rounds(SPEEDS, **changes))
    assert lines[0] == "No ratio can be compared."
    assert f"- small, train is not compared: {why}" in lines


def test_variants_of_their_own_precision_are_compared_each_with_itself(tmp_path: Path) -> None:
    def rows_of(speed: float) -> list[dict[str, Any]]:
        precisions = {"torch/basic": "fp32", "torch/cudnn@bf16": "bf16"}
        speeds = {"torch/basic": 1.0, "torch/cudnn@bf16": speed}
        return [
            {**each, "work": {**WORK, "precision": precisions[each["variant"]]}} for each in rounds(speeds)
        ]

    lines = compared(tmp_path, rows_of(2.0), rows_of(2.0))
    assert lines[0] == "1 of 1 ratios agree within their intervals."
    assert not any("is not compared" in line for line in lines)


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    a, b = [row()], [row(workload="medium"), row(workload="medium", pass_="forward")]
    with pytest.raises(UserError) as caught:
        compared(tmp_path, a, b)
    assert str(caught.value) == (
        f"no workload of a suite is in both: {tmp_path / 'a'} holds quick/small (train); {tmp_path / 'b'} "
        "holds quick/medium (forward and train)"
    )


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing does not exist$"):
        compare(write(tmp_path / "a", [row()]), tmp_path / "missing")
