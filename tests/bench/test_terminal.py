"""The bars, the sentences, the tables and the notes that a run prints at its end."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from bench_rows import rounds, row, unmeasured, write

from ptb_lm.bench.reporting import doubts, result_table
from ptb_lm.bench.reporting.formats import marked_ratio
from ptb_lm.bench.reporting.headline import sentences, to_text
from ptb_lm.bench.results import speed_ratio
from ptb_lm.bench.summary import summarise

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.5, "torch/cudnn": 2.0, "torch/cudnn#again": 1.9}


def chart(folder: Path, rows: object, *, width: int = 80, encoding: str | None = "utf-8") -> list[str]:
    return to_text(summarise(write(folder, rows)), width=width, encoding=encoding).splitlines()


def bars(lines: list[str], block: str = "█") -> list[int]:
    """Return the lengths of the bars."""
    return [line.count(block) for line in lines if block in line]


def figures(lines: list[str]) -> list[str]:
    """Return the lines with the figures of each variant, which follow its name."""
    return [line for line in lines if re.match(r"  +[\d,]+ ", line) and "█" not in line]


def test_bars_are_as_long_as_the_speeds_by_model(tmp_path: Path) -> None:
    lines = chart(tmp_path, rounds(SPEEDS, noise=0.0001), width=120)
    assert lines[0] == "small on CPU, float32: basic, block and cudnn"
    labels = [line.partition("  ")[0] for line in lines if "█" in line]
    assert labels == ["basic, torch", "block, torch", "cudnn, torch"], "and not the second measurement"
    basic, block, cudnn = bars(lines)
    assert cudnn > 30
    assert (basic, block) == pytest.approx((cudnn / 2, cudnn / 4), abs=1)
    assert all(len(line) <= 120 for line in lines)
    names = [line for line in lines if line in SPEEDS]
    assert names == sorted(SPEEDS, key=lambda each: -SPEEDS[each])


def test_the_sentences_follow_the_bars(tmp_path: Path) -> None:
    lines = chart(tmp_path, rounds(SPEEDS), width=200)
    (sentence,) = sentences(summarise(tmp_path).groups)
    last_bar = max(index for index, line in enumerate(lines) if "█" in line)
    assert lines[last_bar + 1 : last_bar + 3] == ["", sentence]


def test_each_is_compared_with_the_baseline_the_fastest_and_the_next(tmp_path: Path) -> None:
    """The figures are those of the report: paired by round, with the intervals of processes."""
    lines = chart(tmp_path, rounds(SPEEDS, noise=0.05))
    assert all(len(line) <= 80 for line in lines)
    (group,) = summarise(tmp_path).groups
    baseline, fastest = group.result("torch/basic"), group.fastest
    pairs = pairwise([*group.measured_results, None])
    for line, (result, following) in zip(figures(lines), pairs, strict=True):
        others = [baseline, fastest, *([following] if following else [])]
        wanted = [marked_ratio(speed_ratio(result, other)) for other in others]
        assert re.findall(r"\d\.\d+(?: \(\d\.\d+–\d\.\d+\)~?)?", line.split(",")[-1]) == wanted


def test_without_a_baseline_others_are_compared(tmp_path: Path) -> None:
    rows = [row(variant="torch/block"), row(variant="torch/cudnn", seconds=1.0)]
    first, second = figures(chart(tmp_path, rows))
    assert first.split() == ["16,000", "–", "1.00", "2.00"]
    assert second.split() == ["8,000", "–", "0.50", "–"]


@pytest.mark.parametrize("speeds", [SPEEDS, {"torch/cudnn": 1.0}])
@pytest.mark.parametrize(("few", "lines"), [(True, 1), (False, 0)])
def test_intervals_of_rounds_alone_are_said_so(
    few: bool, lines: int, speeds: dict[str, float], tmp_path: Path
) -> None:
    rows = [{**each, **({"process": 1} if few else {})} for each in rounds(speeds)]
    text = " ".join(chart(tmp_path, rows))
    assert text.count(result_table.ROUNDS_ALONE) == lines


def test_names_are_explained_once(tmp_path: Path) -> None:
    command = "python -m ptb_lm.bench run quick --add old=benchmarks.rivals.before:cudnn mine=my.models:lstm"
    speeds = {**SPEEDS, "old/custom": 0.9, "mine/custom": 0.8}
    rows = [*rounds(speeds, command=command), *rounds(speeds, workload="medium", command=command)]
    text = " ".join(" ".join(chart(tmp_path, rows)).split())
    assert text.startswith("small and medium on CPU, float32: basic, block, cudnn, ")
    for explained in (
        "torch/basic: elementary operations",
        "old/custom: cudnn of this package at an earlier commit",
        "mine/custom: my.models:lstm",
        "torch/cudnn#again: measured",
    ):
        assert text.count(explained) == 1


def test_a_terminal_without_blocks_gets_number_signs(tmp_path: Path) -> None:
    lines = chart(tmp_path, rounds(SPEEDS), encoding="ascii")
    assert len(bars(lines, "##")) == 3
    assert "█" not in "".join(lines)


@pytest.mark.parametrize("width", [1, 40])
def test_a_narrow_terminal_still_gets_bars(width: int, tmp_path: Path) -> None:
    assert len(bars(chart(tmp_path, rounds(SPEEDS), width=width))) == 3


def test_a_narrow_terminal_gets_the_same_figures_one_below_the_other(tmp_path: Path) -> None:
    rows = list(rounds(SPEEDS, noise=0.05))
    wide, narrow = (chart(tmp_path / str(width), rows, width=width) for width in (80, 40))
    assert max(map(len, narrow)) <= 40
    figure = r"\d\S*(?: \(\d\.\d+–\d\.\d+\)~?)?|–"
    wanted = [found for line in figures(wide) for found in re.findall(figure, line)]
    titles = r"  (?:words/s|× (?:baseline|fastest|next)) +(.*)"
    assert [found[1] for line in narrow if (found := re.fullmatch(titles, line))] == wanted


def test_a_pass_without_figures_says_so(tmp_path: Path) -> None:
    lines = chart(tmp_path, [unmeasured("failed", "bad luck"), unmeasured("failed", "bad luck", variant="b")])
    assert "small, train: nothing was measured to its end." in lines
    assert lines[-1] == "small, train: failed: torch/basic and b: bad luck"


def test_cuts_and_failures_halfway_are_told(tmp_path: Path) -> None:
    """Of a second measurement, too; a note of all variants names none."""
    cut = "1 of 3 steps a round (limit: 0.001 s)"
    rows = [each for each in rounds(SPEEDS, note=cut) if "#again" not in each["variant"] or each["round"] < 2]
    failed = unmeasured("failed", "killed", variant="torch/cudnn#again", planned_rounds=5)
    lines = chart(tmp_path, [*rows, failed], width=120)
    told = [line for line in lines if line.startswith("small, train, ")]
    assert told == [
        f"small, train, all: {cut}",
        "small, train, torch/cudnn#again: failed after 2 of 5 rounds: killed",
    ]


def test_a_note_of_a_wrong_variant_does_not_count(tmp_path: Path) -> None:
    """It has no figures; of those that have, one has no note."""
    cut = "1 of 3 steps a round (limit: 0.001 s)"
    speeds = {"torch/basic": 1.0, "a": 1.1, "b": 1.2}
    rows = [{**each, "note": None if each["variant"] == "a" else cut} for each in rounds(speeds)]
    lines = chart(tmp_path, [*rows, unmeasured("wrong", "its loss is off", variant="b")], width=120)
    assert [line for line in lines if line.endswith(cut)] == [f"small, train, torch/basic: {cut}"]


def test_the_report_s_warnings_are_told(tmp_path: Path) -> None:
    text = " ".join(" ".join(chart(tmp_path, rounds(SPEEDS, noise=0.5))).split())
    warnings = doubts.warnings(summarise(tmp_path))
    assert warnings
    assert all(f"warning: {each}" in text for each in warnings)
