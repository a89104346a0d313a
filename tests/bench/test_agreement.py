"""Two benchmarks with known ratios against each other."""

from pathlib import Path
from typing import Any

import pytest
from bench_rows import ENVIRONMENT, WORK, cells, rounds, row, section, unmeasured, write

from ptb_lm.bench.reporting.agreement import compare_benchmarks
from ptb_lm.common.errors import UserError
from ptb_lm.pages.document import Document

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.7, "torch/cudnn": 2.0}


def comparison(folder: Path, a: Any, b: Any) -> tuple[Document, dict[str, dict[str, str]]]:
    """Return the comparison and the cells of small by variant; none where it is not compared."""
    found = compare_benchmarks(write(folder / "a", a), write(folder / "b", b))
    titles = [each.title for each in found.sections]
    return found, cells(section(found, "small, train").tables[0].table) if "small, train" in titles else {}


def left_out(found: Document) -> list[str]:
    return [*section(found, "Left out").tables[0].remarks]


def test_the_title_is_the_verdict(tmp_path: Path) -> None:
    a, b = rounds(SPEEDS, seed=1), rounds({**SPEEDS, "torch/cudnn": 2.5}, seed=2)
    found, small = comparison(tmp_path, a, b)
    assert found.title.startswith("1 of 2 ratios agree")
    assert found.subtitle == "small on CPU, float32: basic, block and cudnn"
    verdicts = {variant: line["verdict"] for variant, line in small.items()}
    assert verdicts == {"torch/cudnn": "differ", "torch/basic": "baseline", "torch/block": "agree"}
    assert [*verdicts] == ["torch/cudnn", "torch/basic", "torch/block"], "the fastest first"
    assert float(small["torch/cudnn"]["B / A"].split()[0]) == pytest.approx(1.25, abs=0.08)


def test_a_machine_that_is_twice_as_slow_has_the_same_ratios(tmp_path: Path) -> None:
    a = list(rounds(SPEEDS, seed=1))
    other = {**ENVIRONMENT, "cpu": "Slow"}
    found, small = comparison(
        tmp_path, a, [{**each, "seconds": 2 * each["seconds"], "environment": other} for each in a]
    )
    assert found.title.startswith("2 of 2 ratios agree")
    assert small["torch/cudnn"]["B / A"].startswith("1.00 ")
    assert small["torch/cudnn"]["change of speed, not paired"] == "-50.0 %"
    assert "cpu Slow" in found.lead[1]


def test_what_is_measured_once_more_is_no_further_ratio(tmp_path: Path) -> None:
    speeds = {**SPEEDS, "torch/basic#again": 1.0}
    found, small = comparison(tmp_path, rounds(speeds, seed=1), rounds(speeds, seed=2))
    assert found.title.startswith("2 of 2 ratios agree")
    assert "torch/basic#again" in small


def test_a_verdict_by_rounds_alone_says_so(tmp_path: Path) -> None:
    """The variants of B have a process each, in which they do all rounds."""
    a = list(rounds(SPEEDS, seed=1))
    processes = {variant: number for number, variant in enumerate(SPEEDS)}
    b = [{**each, "process": processes[each["variant"]]} for each in rounds(SPEEDS, seed=2)]
    found, small = comparison(tmp_path, a, b)
    assert small["torch/block"]["verdict"] == "agree, by rounds"
    assert "by rounds" in section(found, "How to read this").paragraphs[-1]
    again = [
        {**each, "variant": "torch/basic#again", "process": 90 + each["round"]}
        for each in a
        if each["variant"] == "torch/basic" and each["round"] < 2
    ]
    found, small = comparison(tmp_path, [*a, *again], [*rounds(SPEEDS, seed=2), *again])
    assert small["torch/basic#again"]["verdict"] == "agree, by rounds"
    assert "by rounds" in section(found, "How to read this").paragraphs[-1], "of a second measurement, too"
    found, small = comparison(tmp_path, a, list(rounds(SPEEDS, seed=2)))
    assert small["torch/block"]["verdict"] == "agree"
    assert "by rounds" not in section(found, "How to read this").paragraphs[-1]


def test_variants_of_one_benchmark_alone_are_listed(tmp_path: Path) -> None:
    a = [*rounds(SPEEDS), row(workload="medium")]
    b = [
        *rounds({"torch/basic": 1.0, "torch/block": 0.7, "tensorflow/basic": 0.9}),
        unmeasured("failed", "killed", variant="torch/cudnn"),
    ]
    found, _ = comparison(tmp_path, a, b)
    assert found.warnings[0].endswith("torch/cudnn of small, train (failed in B: killed)")
    assert left_out(found) == [
        "only in A: medium, train: torch/basic",
        "only in B: small, train: tensorflow/basic",
    ], "torch/cudnn is in both"


def test_what_was_not_measured_to_its_end_is_told_of_both(tmp_path: Path) -> None:
    """It failed in both; and A was interrupted."""
    a, b = (
        [
            each
            for each in rounds(SPEEDS, seed=seed)
            if each["round"] < (count if each["variant"] == "torch/block" else 4)
        ]
        for seed, count in ((1, 2), (2, 3))
    )
    failed = unmeasured("failed", "killed", variant="torch/block", planned_rounds=5)
    whole = row(round=4, process=99, planned_rounds=5)
    found, _ = comparison(tmp_path, [*a, failed], [*b, failed, whole, {**whole, "variant": "torch/cudnn"}])
    broken_off, unfinished = found.warnings
    assert all(f"torch/block of small, train (failed in {name}: killed)" in broken_off for name in "AB")
    assert "in A: 4 of 5 rounds" in unfinished


def test_one_round_tells_nothing(tmp_path: Path) -> None:
    found, small = comparison(tmp_path, rounds(SPEEDS, count=1), rounds(SPEEDS))
    assert found.title.startswith("No ratio")
    assert "interval" in found.title
    assert small["torch/cudnn"]["verdict"] == "no interval"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"baseline": "torch/cudnn"}, "the baseline is torch/basic in A and torch/cudnn in B"),
        ({"work": {**WORK, "precision": "bf16"}}, "precision is fp32 in A and bf16 in B"),
        ({"work": {**WORK, "parameters": 9}}, "parameters is 4651600 in A and 9 in B"),
    ],
)
def test_the_reason_is_given_where_ratios_do_not_compare(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    found, _ = comparison(tmp_path, rounds(SPEEDS), rounds(SPEEDS, **changes))
    assert found.title.startswith("No ratio")
    (told,) = left_out(found)
    assert told.endswith(why)


def test_the_same_work_may_be_counted_otherwise(tmp_path: Path) -> None:
    work = {**WORK, "flops_per_step": 1.2e10}
    found, _ = comparison(tmp_path, rounds(SPEEDS, seed=1), rounds(SPEEDS, seed=2, work=work))
    assert found.title.startswith("2 of 2 ratios agree")


def test_a_baseline_that_was_not_measured_is_the_reason(tmp_path: Path) -> None:
    without = [each for each in rounds(SPEEDS) if each["variant"] != "torch/basic"]
    found, _ = comparison(tmp_path, rounds(SPEEDS), without)
    (told,) = left_out(found)[:1]
    assert told.endswith("the baseline torch/basic was not measured in B")
    assert "interval" not in found.title


def test_what_only_one_has_is_named_but_not_explained(tmp_path: Path) -> None:
    a, b = rounds(SPEEDS), rounds({"torch/basic": 1.0, "torch/block_fused": 2.0, "torch/cudnn": 2.0})
    found, _ = comparison(tmp_path, a, [{**each, "work": {**WORK, "device": "cuda"}} for each in b])
    assert found.subtitle == "small on CPU and GPU, float32: basic, block, block_fused and cudnn"
    explained = "\n".join(section(found, "small, train").tables[0].remarks)
    assert "cudnn" in explained
    assert "block" not in explained


def test_variants_of_their_own_precision_are_compared_each_with_itself(tmp_path: Path) -> None:
    precisions = {"torch/basic": "fp32", "torch/cudnn@bf16": "bf16"}
    rows = [
        {**each, "work": {**WORK, "precision": precisions[each["variant"]]}}
        for each in rounds({"torch/basic": 1.0, "torch/cudnn@bf16": 2.0})
    ]
    found, small = comparison(tmp_path, rows, rows)
    assert found.title.startswith("1 of 1 ratios agree")
    assert small["torch/cudnn@bf16"]["verdict"] == "agree"


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    a, b = [row()], [row(workload="medium"), row(workload="medium", pass_="forward")]
    with pytest.raises(
        UserError, match=r"holds quick/small \(train\); .* quick/medium \(forward and train\)"
    ):
        comparison(tmp_path, a, b)


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing does not exist$"):
        compare_benchmarks(write(tmp_path / "a", [row()]), tmp_path / "missing")
