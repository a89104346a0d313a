"""The headline of a report: speeds by model, what to use, and by how much it is faster."""

import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import scipy.stats
from bench_rows import WORK, document, rounds, row, unmeasured

from ptb_lm.bench.reporting import result_table
from ptb_lm.bench.results import ResultGroup, speed_ratio
from ptb_lm.bench.summary import summarise
from ptb_lm.pages import plots
from ptb_lm.pages.bars import SpeedPlot
from ptb_lm.pages.document import to_markdown

TWO = {"torch/basic": 1.0, "torch/cudnn": 2.0}
OVER_ALL = [*rounds(TWO), *rounds(TWO, workload="medium")]
STEADY, UNSTEADY = (2.0,) * 5, (2.0, 3.0, 2.0, 3.0, 2.0)
SURE = ["use torch/cudnn. In 2 of 2 passes the intervals show "]
FIRST_SURE = ["use torch/cudnn. In 1 of 2 passes (small) the intervals show "]


def blocks(seconds: Mapping[str, tuple[float, ...]], **changes: Any) -> list[dict[str, Any]]:
    """A block a round and process, of these seconds."""
    return [
        row(variant=variant, round=n, process=10 * index + n, seconds=each, **changes)
        for index, (variant, times) in enumerate(seconds.items())
        for n, each in enumerate(times)
    ]


def broken_off(speeds: Mapping[str, float], variant: str, **changes: Any) -> list[dict[str, Any]]:
    """Rounds of which a variant did two."""
    kept = [each for each in rounds(speeds, **changes) if each["variant"] != variant or each["round"] < 2]
    return [*kept, unmeasured("failed", "killed", variant=variant, planned_rounds=5, **changes)]


# Case -> its rows, and parts of the first line.
CASES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "one round": (
        [row(), row(variant="torch/cudnn", seconds=1.0)],
        ["small, train: use torch/cudnn, ", "too few rounds", "torch/basic"],
    ),
    "few processes": ([{**each, "process": 1} for each in rounds(TWO)], ["faster than torch/basic", "fewer"]),
    "a second measurement came out ahead": (
        [*rounds({"torch/basic": 1.9, "torch/cudnn": 1.0, "torch/cudnn#again": 2.0})],
        ["use torch/basic", "second time, torch/cudnn"],
    ),
    # A baseline of one round puts a variant first that was slower in all the others.
    "rounds in common": (
        [
            row(seconds=9.0, process=99),
            *blocks({"torch/block": (2.0, 2.5, 2.6, 2.4), "torch/cudnn": (2.1, 2.0, 2.1, 1.9)}),
        ],
        ["small, train: torch/cudnn and torch/block do not differ"],
    ),
    "the fastest failed": (
        broken_off({**TWO, "torch/block": 1.5}, "torch/cudnn"),
        ["small, train: use torch/block: ", "to its end: torch/cudnn."],
    ),
    "no choice": ([row()], ["only torch/basic was measured: 8,000 words per second."]),
    "the others failed": (
        [*rounds({"torch/basic": 1.0}), unmeasured("failed", "bad luck", variant="torch/cudnn")],
        ["small, train: only torch/basic was measured: "],
    ),
    "the others broke off": (
        broken_off(TWO, "torch/cudnn"),
        ["only torch/basic was measured to its end: ", "not measured to its end: torch/cudnn."],
    ),
    "a resolution by rounds": (
        [{**each, "process": 1} for each in rounds({"torch/basic": 1.0, "torch/basic#again": 1.0})],
        ["The resolution is ", "with 1 process; other processes may differ"],
    ),
    # What to use is said without it.
    "a skipped baseline": (
        [
            unmeasured("unavailable", "no GPU"),
            *rounds({"torch/cudnn": 2.0, "torch/block": 1.0}),
        ],
        ["small, train: use torch/cudnn: ", " faster than torch/block."],
    ),
    "all failed": (
        [unmeasured("failed", "bad luck"), unmeasured("wrong", "off", variant="torch/cudnn")],
        ["small, train: nothing was measured to its end."],
    ),
    "a second measurement without the first": (
        [*rounds({"torch/basic": 1.0, "torch/cudnn#again": 2.0})],
        ["small, train: use torch/cudnn#again: ", " faster than torch/basic."],
    ),
    # Two programs of one name in tables: each counts.
    "one label twice": (
        [*rounds({"torch/basic": 1.0, "torch/cudnn": 2.0, "torch/cudnn@fp32": 4.0}, label="a label")],
        ["use a label: ", " faster than each of the other 2."],
    ),
    # The interval ends at 1: it does not leave out that both are the same.
    "intervals that touch": (
        [*blocks({"torch/cudnn": STEADY, "torch/basic": STEADY})],
        ["small, train: torch/cudnn and torch/basic do not differ by more than 0 %."],
    ),
    "bounds that decide nothing": (
        [*blocks({"torch/cudnn": (1.0, 9.0, 2.0, 8.0), "torch/basic": (9.0, 1.0, 8.0, 1.0)})],
        ["do not differ by more than", "decide nothing"],
    ),
    "a repetition alone": (
        [row(), row(variant="torch/basic#again")],
        ["only torch/basic was measured: 8,000 words per second."],
    ),
    "nothing": ([unmeasured("failed", "bad luck")], ["small, train: nothing was measured"]),
    "the same in all passes": (OVER_ALL, SURE),
    "a pass without figures": ([*OVER_ALL, unmeasured("failed", "bad luck", workload="large")], SURE),
    "one each": (
        [*OVER_ALL, *rounds({"torch/basic": 1.0, "torch/cudnn": 0.5}, workload="large")],
        ["use torch/cudnn for small and medium; torch/basic for large. ", "In 3 of 3 passes "],
    ),
    "what could not do a pass": (
        [
            *OVER_ALL,
            *rounds({"torch/basic": 1.0}, workload="large"),
            unmeasured("failed", "killed", variant="torch/cudnn", workload="large"),
        ],
        ["torch/cudnn for small and medium; torch/basic for large. ", "2 of 3 passes (small and medium) "],
    ),
    # In one of two passes nothing is shown.
    "few processes in one": (
        [*rounds(TWO), *({**each, "process": 1} for each in rounds(TWO, workload="medium"))],
        FIRST_SURE,
    ),
    "broken off in one": (
        [*rounds(TWO), *broken_off({**TWO, "torch/block": 4.0}, "torch/block", workload="medium")],
        FIRST_SURE,
    ),
    "one round of one": (
        [*rounds(TWO), *blocks({"torch/basic": (4.0,), "torch/cudnn": (2.0,)}, workload="medium")],
        FIRST_SURE,
    ),
    "equal in one": (
        [*rounds(TWO), *blocks({"torch/cudnn": STEADY, "torch/basic": UNSTEADY}, workload="medium")],
        FIRST_SURE,
    ),
    "no round in common in one": (
        [
            *rounds(TWO, baseline="torch/cudnn"),
            *rounds({"torch/cudnn": 2.0}, workload="medium", baseline="torch/cudnn"),
            row(workload="medium", baseline="torch/cudnn", round=7, process=99, seconds=9.0),
        ],
        FIRST_SURE,
    ),
    # Each is first in one pass, and no interval shows it.
    "what may be the fastest in all": (
        [
            *blocks({"torch/basic": STEADY, "torch/cudnn": UNSTEADY}),
            *blocks({"torch/basic": UNSTEADY, "torch/cudnn": STEADY}, workload="medium"),
        ],
        [
            "torch/basic for small; torch/cudnn for medium.",
            "In 0 of 2",
            "torch/basic may be",
        ],
    ),
}
NOT_TOLD = {
    "a second measurement behind": rounds({"torch/basic": 1.9, "torch/cudnn": 1.0, "torch/cudnn#again": 1.8}),
    "a second measurement of the fastest": rounds({**TWO, "torch/cudnn#again": 2.1}),
    "enough processes": rounds(TWO),
    "what could not do a pass": CASES["what could not do a pass"][0],
}


@pytest.mark.parametrize(("rows", "told"), CASES.values(), ids=CASES)
def test_the_first_line(rows: list[dict[str, Any]], told: list[str], tmp_path: Path) -> None:
    report = document(tmp_path, rows)
    assert all(each in report.lead[0] for each in told), report.lead
    assert f"\n- {report.lead[0]}\n" in to_markdown(report)


@pytest.mark.parametrize("rows", NOT_TOLD.values(), ids=NOT_TOLD)
def test_the_first_line_leaves_out(rows: Any, tmp_path: Path) -> None:
    first = document(tmp_path, rows).lead[0]
    assert not re.search("second time|fewer|may be", first)


def interval(group: ResultGroup, of: str, to: str) -> tuple[float, float]:
    return speed_ratio(group.result(of), group.result(to)).interval


def joint_low(group: ResultGroup, of: str, to: str) -> float:
    """The lower end of the interval of a pair, by Bonferroni's rule for all pairs."""
    ratio = speed_ratio(group.result(of), group.result(to))
    pairs = len(group.results) * (len(group.results) - 1) / 2
    quantile = scipy.stats.t.ppf(1 - 0.05 / pairs / 2, ratio.units - 1)
    return math.exp(ratio.mean - quantile * ratio.error)


def at_least(bound: float) -> str:
    """Rounded down, so that the claim holds."""
    return f"{math.floor(1000 * bound) / 10:.1f} %"


def at_most(bound: float) -> str:
    return f"{math.ceil(1000 * bound) / 10:.1f} %"


@pytest.mark.parametrize("seed", range(3))
def test_distances_are_the_ends_of_intervals(seed: int, tmp_path: Path) -> None:
    """At least the lowest end for what is slower; at most the end that is farther from 1 for the others.

    The first is the end of a wider interval. It may be of a noisy one, and names none.
    """
    speeds = {**TWO, "torch/block": 2.0, "torch/jit": 1.2}
    report = document(tmp_path, rounds(speeds, noise=0.04, seed=seed))
    (group,) = summarise(tmp_path).groups
    fastest = group.fastest.variant
    near = ({"torch/block", "torch/cudnn"} - {fastest}).pop()
    least = min(joint_low(group, fastest, each) for each in ("torch/basic", "torch/jit")) - 1
    low, high = interval(group, fastest, near)
    (sentence,) = report.lead
    numbers = re.findall(r"[\d.]+ %", sentence)
    assert numbers == [at_most(max(high, 1 / low) - 1), at_least(least)]
    assert re.findall("torch/[a-z]+", sentence) == [fastest, near, fastest]


def test_one_that_is_faster_than_every_other_is_taken(tmp_path: Path) -> None:
    report = document(tmp_path, rounds({**TWO, "torch/jit": 1.5}))
    (group,) = summarise(tmp_path).groups
    least = joint_low(group, "torch/cudnn", "torch/jit") - 1
    (sentence,) = report.lead
    assert sentence.startswith("small, train: use torch/cudnn: ")
    assert f" {at_least(least)} faster than each of the other 2." in sentence


@pytest.mark.slow
def test_of_equal_programs_few_are_said_to_be_faster(tmp_path: Path) -> None:
    """In fewer than one report of twenty, but for chance, though the fastest is chosen by the same rows."""
    speeds = dict.fromkeys(
        ("torch/basic", "torch/block", "torch/block_fused", "torch/cudnn", "torch/jit"), 1.0
    )
    leads = [document(tmp_path / str(n), rounds(speeds, noise=0.05, seed=n)).lead for n in range(60)]
    assert sum("at least" in sentence for (sentence,) in leads) <= 6


def test_where_each_is_slower_than_some_other_distances_are_inverted(tmp_path: Path) -> None:
    """Each two have three rounds in common, in which one was faster than the next, in a circle."""
    circle = ("torch/basic", "torch/block", "torch/cudnn")
    rows = [
        row(variant=variant, round=3 * index + n, process=index + 10 * n, seconds=seconds)
        for index, one in enumerate(circle)
        for n in range(3)
        for variant, seconds in ((one, 1 + n / 100), (circle[(index + 1) % 3], 1.1 + index / 100))
    ]
    (sentence,) = document(tmp_path, rows).lead
    (group,) = summarise(tmp_path).groups
    ahead = circle[circle.index(group.fastest.variant) - 1]
    low, high = interval(group, group.fastest.variant, ahead)
    assert high < 1
    assert sentence.startswith(f"small, train: {group.fastest.variant} and {ahead} ")
    assert f" {at_most(1 / low - 1)}" in sentence


MIXED = {"torch/basic/jit": 1.2, "torch/basic": 1.0, "tensorflow/basic": 1.1, "mine/custom": 0.5}
LOW = {**WORK, "precision": "bf16"}


def test_speeds_are_by_model_and_framework_the_fastest_execution_of_each(tmp_path: Path) -> None:
    rows = [*rounds(MIXED), *rounds({"torch/cudnn": 3.0, "torch/cudnn#again": 9.0}, seed=1)]
    medium = rounds({"torch/basic": 1.0}, workload="medium", pass_="forward")
    report = document(tmp_path, [*rows, *medium])
    (speeds,) = report.tables
    assert [line[:2] for line in speeds.table.rows] == [
        ["basic", "torch"],
        ["basic", "TensorFlow"],
        ["cudnn", "torch"],
        ["custom", "mine"],
    ]
    small, forward = (group for group in summarise(tmp_path).groups)
    assert [column.title.partition(":")[0] for column in speeds.table.columns[2:]] == [
        "small",
        "medium, forward",
    ]
    results = [small.result(each) for each in ("torch/basic/jit", "tensorflow/basic", "torch/cudnn")]
    for line, result in zip(speeds.table.rows, results, strict=False):
        rates = [400 * each.steps / each.seconds for each in result.blocks]
        assert str(line[2]).startswith(f"{math.exp(statistics.fmean(map(math.log, rates))):,.0f} (")
    assert len(speeds.remarks) == 1, "of torch/basic one execution is left out"
    (chart,) = report.plots
    assert isinstance(chart, SpeedPlot)
    bars = [[bar.text for bars in panel.values() for bar in bars] for panel in chart.panels.values()]
    assert bars == [
        [text.partition(" ")[0] for line in speeds.table.rows if (text := str(line[index])) != "–"]
        for index in (2, 3)
    ]
    assert forward.pass_name == "forward"


@pytest.mark.parametrize("changes", [{"process": 1}, {}])
def test_a_speed_of_fewer_than_three_processes_says_so(changes: dict[str, int], tmp_path: Path) -> None:
    """With one variant no ratio would."""
    alone = [{**each, **changes} for each in rounds({"torch/cudnn": 1.0})]
    (speeds,) = document(tmp_path, alone).tables
    assert speeds.remarks == [result_table.ROUNDS_ALONE] * len(changes)


def test_precisions_have_a_row_each_where_there_are_several(tmp_path: Path) -> None:
    rows = [*rounds({"torch/cudnn": 1.0}), *rounds({"torch/cudnn@bf16": 2.0}, work=LOW)]
    (speeds,) = document(tmp_path, rows).tables
    assert [line[1] for line in speeds.table.rows] == ["torch, bfloat16", "torch, float32"]


def test_without_figures_there_is_no_table_and_no_chart(tmp_path: Path) -> None:
    report = document(tmp_path, [unmeasured("failed", "bad luck")])
    assert [*report.tables, *report.plots] == []


def test_the_chart_is_a_file_with_all_names(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    (chart,) = document(tmp_path, rounds(MIXED)).plots
    root = ElementTree.fromstring(plots.to_file(chart, kind="svg"))
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"basic", "custom", "TensorFlow", "mine"} <= texts
