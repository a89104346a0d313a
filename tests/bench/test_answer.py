"""What a report says first: what to take, in which passes, and by how much it is faster."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bench_rows import document, rounds, row, unmeasured

from ptb_lm.bench.findings import Group, speed_ratio
from ptb_lm.bench.reporting.page import to_markdown
from ptb_lm.bench.summary import summarise

TWO = {"torch/basic": 1.0, "torch/cudnn": 2.0}
OVER_ALL = [*rounds(TWO), *rounds(TWO, workload="medium")]
STEADY, UNSTEADY = (2.0,) * 5, (2.0, 3.0, 2.0, 3.0, 2.0)
SURE = ["take torch/cudnn. That every other is slower is shown in 2 of 2 passes."]
FIRST_SURE = ["take torch/cudnn. ", "is shown in 1 of 2 passes: small."]


def blocks(seconds: Mapping[str, tuple[float, ...]], **changes: Any) -> list[dict[str, Any]]:
    """A block a round and process, of these seconds."""
    return [
        row(variant=variant, round=n, process=10 * place + n, seconds=each, **changes)
        for place, (variant, times) in enumerate(seconds.items())
        for n, each in enumerate(times)
    ]


def broken_off(speeds: Mapping[str, float], variant: str, **changes: Any) -> list[dict[str, Any]]:
    """Rounds of which a variant did two."""
    kept = [each for each in rounds(speeds, **changes) if each["variant"] != variant or each["round"] < 2]
    return [*kept, unmeasured("failed", "killed", variant=variant, planned_rounds=5, **changes)]


# What happened -> its rows, and what the first line says.
CASES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "one round": (
        [row(), row(variant="torch/cudnn", seconds=1.0)],
        ["take torch/cudnn, 16,000 words a second.", "too few rounds to compare it with torch/basic"],
    ),
    "few processes": ([{**each, "process": 1} for each in rounds(TWO)], ["faster than torch/basic", "fewer"]),
    "a second measurement came out ahead": (
        [*rounds({"torch/basic": 1.9, "torch/cudnn": 1.0, "torch/cudnn#again": 2.0})],
        ["take torch/basic", "Measured a second time, torch/cudnn"],
    ),
    # A baseline of one round puts a variant first that was slower in all the others.
    "rounds in common": (
        [
            row(seconds=9.0, process=99),
            *blocks({"torch/block": (2.0, 2.5, 2.6, 2.4), "torch/cudnn": (2.1, 2.0, 2.1, 1.9)}),
        ],
        ["small, train: take torch/cudnn, "],
    ),
    "the fastest failed": (
        broken_off({**TWO, "torch/block": 1.5}, "torch/cudnn"),
        ["small, train: take torch/block, ", "not measured to the end: torch/cudnn."],
    ),
    "no choice": ([row()], ["only torch/basic was measured: 8,000 words a second."]),
    "a repetition alone": (
        [row(), row(variant="torch/basic#again")],
        ["only torch/basic was measured: 8,000 words a second."],
    ),
    "nothing": ([unmeasured("failed", "bad luck")], ["small, train: nothing was measured"]),
    "the same in all passes": (OVER_ALL, SURE),
    "a pass without figures": ([*OVER_ALL, unmeasured("failed", "bad luck", workload="large")], SURE),
    "one each": (
        [*OVER_ALL, *rounds({"torch/basic": 1.0, "torch/cudnn": 0.5}, workload="large")],
        ["take torch/cudnn for small and medium; torch/basic for large. ", "in 3 of 3 passes"],
    ),
    "what could not do a pass": (
        [
            *OVER_ALL,
            *rounds({"torch/basic": 1.0}, workload="large"),
            unmeasured("failed", "killed", variant="torch/cudnn", workload="large"),
        ],
        ["torch/cudnn for small and medium; torch/basic for large. ", "2 of 3 passes: small and medium."],
    ),
    # What is not shown in one of two passes.
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
    # Each is first in one pass, by nothing that an interval shows.
    "what may be the fastest in all": (
        [
            *blocks({"torch/basic": STEADY, "torch/cudnn": UNSTEADY}),
            *blocks({"torch/basic": UNSTEADY, "torch/cudnn": STEADY}, workload="medium"),
        ],
        [
            "torch/basic for small; torch/cudnn for medium.",
            "in 0 of 2",
            "torch/basic may be the fastest in all",
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
def test_what_the_first_line_does_not_say(rows: Any, tmp_path: Path) -> None:
    first = document(tmp_path, rows).lead[0]
    assert not re.search("second time|fewer|may be the fastest", first)


def interval(group: Group, of: str, to: str) -> tuple[float, float]:
    one, other = group.result(of), group.result(to)
    assert one is not None
    assert other is not None
    ratio = speed_ratio(one, other)
    assert ratio is not None
    assert ratio.interval is not None
    return ratio.interval


@pytest.mark.parametrize("seed", range(3))
def test_distances_are_the_ends_of_intervals(seed: int, tmp_path: Path) -> None:
    """Of what is slower the lower end; of what may be as fast the end that is farther from 1."""
    speeds = {**TWO, "torch/block": 2.0, "torch/jit": 1.2}
    report = document(tmp_path, rounds(speeds, noise=0.1, seed=seed))
    (group,) = summarise(tmp_path).groups
    fastest, near = sorted(
        ("torch/block", "torch/cudnn"), key=lambda each: f" take {each}," not in report.lead[0]
    )
    least = interval(group, fastest, "torch/jit")[0] - 1
    low, high = interval(group, fastest, near)
    assert f"at least {100 * least:.1f} % faster than the other 2; the nearest is torch/jit" in report.lead[0]
    assert f"{near} (at most {100 * (max(high, 1 / low) - 1):.1f} % apart)" in report.lead[0]


def test_where_each_is_slower_than_some_other_distances_are_inverted(tmp_path: Path) -> None:
    """Each two have three rounds in common, in which one was faster than the next, in a circle."""
    circle = ("torch/basic", "torch/block", "torch/cudnn")
    rows = [
        row(variant=variant, round=3 * place + n, process=place + 10 * n, seconds=seconds)
        for place, one in enumerate(circle)
        for n in range(3)
        for variant, seconds in ((one, 1 + n / 100), (circle[(place + 1) % 3], 1.1 + place / 100))
    ]
    (take,) = document(tmp_path, rows).lead
    (group,) = summarise(tmp_path).groups
    assert group.fastest is not None
    ahead = circle[circle.index(group.fastest.variant) - 1]
    low, high = interval(group, group.fastest.variant, ahead)
    assert high < 1
    assert f"not shown to be faster than {ahead} (at most {100 * (1 / low - 1):.1f} % apart)" in take
