"""The bars that a run prints at its end."""

from pathlib import Path

import pytest
from bench_rows import rounds, row, unmeasured, write

from ptb_lm.bench.reporting import terminal
from ptb_lm.bench.summary import summarise

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.5, "torch/cudnn": 2.0}


def chart(folder: Path, rows: object, *, width: int = 100, encoding: str | None = "utf-8") -> list[str]:
    return terminal.chart(summarise(write(folder, rows)), width=width, encoding=encoding).splitlines()


def test_bars_are_as_long_as_the_ratios_with_figures_beside_them(tmp_path: Path) -> None:
    title, *bars = chart(tmp_path, rounds(SPEEDS, noise=0.0001))
    assert title == "small, train: words a second, times as fast as torch/basic (bars; 95 % interval)"
    assert [bar.split()[0] for bar in bars] == ["torch/cudnn", "torch/basic", "torch/block"]
    lengths = [bar.count("█") for bar in bars]
    assert lengths[0] > 30
    assert lengths == pytest.approx([lengths[0], lengths[0] / 2, lengths[0] / 4], abs=1)
    assert bars[0].endswith(" 2.00 (2.00–2.00)")
    assert bars[1].endswith(" 1.00")
    assert all(len(bar) <= 100 for bar in bars)


def test_a_terminal_without_blocks_gets_number_signs(tmp_path: Path) -> None:
    bars = chart(tmp_path, rounds(SPEEDS), encoding="ascii")
    assert "#" in bars[1]
    assert "█" not in "".join(bars)


@pytest.mark.parametrize("width", [1, 40])
def test_a_narrow_terminal_still_gets_bars(width: int, tmp_path: Path) -> None:
    assert all("█" in bar for bar in chart(tmp_path, rounds(SPEEDS), width=width)[1:])


def test_without_a_baseline_bars_are_of_rates(tmp_path: Path) -> None:
    rows = [row(variant="torch/block"), row(variant="torch/cudnn", seconds=1.0)]
    title, *bars = chart(tmp_path, rows)
    assert title == "small, train: words a second (bars)"
    assert [bar.split()[0] for bar in bars] == ["torch/cudnn", "torch/block"]
    assert bars[0].endswith(" 16,000")


def test_a_pass_without_figures_says_so(tmp_path: Path) -> None:
    assert chart(tmp_path, [unmeasured("failed", "bad luck")]) == ["small, train: nothing was measured"]
