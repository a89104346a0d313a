"""The flags of a report and of a comparison: another baseline, and learning curves."""

from pathlib import Path

import pytest
from bench_rows import rounds, write
from runs import refusal, run_command

from ptb_lm.bench import __main__ as bench

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.7, "torch/cudnn": 2.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "out", rounds(SPEEDS))


def report(folder: Path, *more: object) -> str:
    assert run_command(bench, "report", folder, *more) == 0
    return (folder / "report.md").read_text()


def test_a_report_is_by_the_rows_baseline_or_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "× torch/basic (95 % interval)" in report(folder)
    assert "× torch/cudnn (95 % interval)" in report(folder, "--baseline", "torch/cudnn")
    sentence = refusal(capsys, bench, "report", folder, "--baseline", "torch/cudn")
    assert sentence.startswith("--baseline torch/cudn: ")


def test_a_comparison_is_by_the_rows_baseline_or_another(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path / "other", rounds(SPEEDS, seed=1))
    for flags, baseline in (([], "torch/basic"), (["--baseline", "torch/cudnn"], "torch/cudnn")):
        assert run_command(bench, "compare", folder, other, *flags) == 0
        assert f"| A: × {baseline} | B: × {baseline} |" in capsys.readouterr().out


def test_a_report_shows_learning_curves(folder: Path) -> None:
    text = report(folder, "--runs", "demo")
    assert "Learning curves" in text
    assert "| `demo`" in text, "the package's own"
    assert "Learning curves" not in report(folder)
