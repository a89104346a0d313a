"""The settings of a report, which its folder keeps for later reports and comparisons."""

import json
from pathlib import Path

import pytest
import runs
from bench_rows import rounds, write
from runs import refusal, run_command

from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import report_settings
from ptb_lm.bench.report_settings import ReportSettings
from ptb_lm.bench.reporting.compare import compare
from ptb_lm.bench.reporting.page import to_markdown
from ptb_lm.common.errors import UserError

SPEEDS = {"torch/basic": 1.0, "torch/block": 0.7, "torch/cudnn": 2.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "out", rounds(SPEEDS))


def report(folder: Path, *more: object) -> str:
    assert run_command(bench, "report", folder, *more) == 0
    return (folder / "report.md").read_text()


def test_a_baseline_is_given_once(folder: Path) -> None:
    assert "× torch/basic (95 % interval)" in report(folder)
    assert not (folder / "report.json").exists(), "nothing was chosen"
    assert "× torch/cudnn (95 % interval)" in report(folder, "--baseline", "torch/cudnn")
    assert "× torch/cudnn (95 % interval)" in report(folder)
    assert "× torch/block (95 % interval)" in report(folder, "--baseline", "torch/block")
    assert "× torch/block (95 % interval)" in report(folder)


def test_a_comparison_is_by_the_baseline_that_was_chosen(folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", rounds(SPEEDS, seed=1))
    report(folder, "--baseline", "torch/cudnn")
    assert "torch/cudnn in A and torch/basic in B" in to_markdown(compare(folder, other))
    report(other, "--baseline", "torch/cudnn")
    assert "| A: × torch/cudnn | B: × torch/cudnn |" in to_markdown(compare(folder, other))


def test_a_refused_baseline_is_not_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(folder, "--baseline", "torch/cudnn")
    sentence = refusal(capsys, bench, "report", folder, "--baseline", "torch/cudn")
    assert sentence.startswith("--baseline torch/cudn: ")
    assert "× torch/cudnn (95 % interval)" in report(folder)


@pytest.mark.slow
def test_runs_are_given_once_and_may_be_left_out_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.train_run(runs.write_corpus(tmp_path / "data"), tmp_path / "checkpoints" / "a run")
    monkeypatch.chdir(tmp_path)
    assert "Learning curves" in report(Path("out"), "--runs", "checkpoints/a run")
    assert json.loads((folder / "report.json").read_text())["runs"] == ["../checkpoints/a run"]
    monkeypatch.chdir(tmp_path.parent)
    assert "Learning curves" in report(folder, "--baseline", "torch/cudnn")
    run.rename(tmp_path / "moved")
    assert f"the run {run} " in refusal(capsys, bench, "report", folder)
    assert "Learning curves" in report(folder, "--runs", tmp_path / "moved")
    without = report(folder, "--runs")
    assert "Learning curves" not in without
    assert "× torch/cudnn (95 % interval)" in without
    assert "Learning curves" not in report(folder)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"baseline": 1}', "baseline cannot be 1"),
        ('{"runs": "a"}', "runs cannot be 'a'"),
        ('{"runs": [1]}', "runs cannot be [1]"),
    ],
)
def test_a_broken_file_is_one_sentence(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(UserError) as caught:
        report_settings.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'report.json'}: {why}")


def test_a_name_beyond_ascii_comes_back(tmp_path: Path) -> None:
    chosen = ReportSettings(baseline="mine ü/custom", runs=(tmp_path / "Läufe" / "1",))
    report_settings.write(tmp_path, chosen)
    assert report_settings.read(tmp_path) == chosen


def test_a_file_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(UserError, match=r"report.json: not valid JSON$"):
        report_settings.read(tmp_path)
