"""What a run tells: the files of a finished run, read as others would read them."""

import io
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import runs

from ptb_lm import train
from ptb_lm.training import runlog

# What DESIGN.md promises of each row.
COLUMNS = {"epoch", "learning_rate", "train_perplexity", "valid_perplexity", "words_per_second", "seconds"}
RESULT = {
    "test_perplexity",
    "valid_perplexity",
    "words_per_second",
    "parameters",
    "engine",
    "environment",
    "command",
    "seconds",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs, the last of them after a resume."""
    folder = tmp_path_factory.mktemp("runlog")
    run = runs.train_run(runs.write_corpus(folder / "data"), folder / "run", "--decay-after", "1")
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    return run


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, Any]]:
    return runs.metrics(run)


def test_metrics_hold_a_row_an_epoch(rows: list[dict[str, Any]]) -> None:
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row.keys() >= COLUMNS for row in rows)


def test_metrics_hold_the_learning_rates_that_were_used(rows: list[dict[str, Any]]) -> None:
    assert [row["learning_rate"] for row in rows] == [1.0, 0.5, 0.25]


def test_metrics_hold_plausible_numbers(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert 1 < row["train_perplexity"] < 100
        assert 1 < row["valid_perplexity"] < 100
        assert row["words_per_second"] > 0
        assert row["seconds"] > 0


def test_training_learns(rows: list[dict[str, Any]]) -> None:
    assert rows[-1]["train_perplexity"] < rows[0]["train_perplexity"]


def test_the_result_agrees_with_the_metrics(run: Path, rows: list[dict[str, Any]]) -> None:
    result = runs.result(run)
    assert result.keys() >= RESULT
    best = min(rows, key=lambda row: row["valid_perplexity"])
    assert (result["valid_perplexity"], result["best_epoch"]) == (best["valid_perplexity"], best["epoch"])
    assert result["epochs"] == len(rows)


def test_the_result_holds_every_command_of_the_run(run: Path) -> None:
    first, second = runs.result(run)["command"].split(" && ")
    assert first.startswith("python -m ptb_lm.train --data ")
    assert second == f"python -m ptb_lm.train --resume {run} --epochs 3"


def test_the_result_counts_the_parameters(run: Path) -> None:
    words, hidden, layers = len((run / "vocabulary.txt").read_text().splitlines()), 6, 2
    lstm = layers * (2 * hidden * 4 * hidden + 4 * hidden)
    assert runs.result(run)["parameters"] == words * hidden + lstm + hidden * words + words


def test_the_result_says_where_it_was_made(run: Path) -> None:
    import torch

    environment = runs.result(run)["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["threads"] == torch.get_num_threads()
    assert environment.keys() >= {"commit", "numpy", "platform", "processor", "cores", "device", "started"}


@pytest.mark.parametrize(
    ("nll", "tokens", "expected"),
    [(0.0, 3, 1.0), (3 * math.log(7), 3, 7.0), (1e6, 3, math.inf), (math.inf, 3, math.inf)],
)
def test_perplexity(nll: float, tokens: int, expected: float) -> None:
    assert runlog.perplexity(nll, tokens) == pytest.approx(expected, rel=1e-15)


def test_perplexity_of_nan_is_nan() -> None:
    assert math.isnan(runlog.perplexity(math.nan, 3))


def test_the_progress_bar_is_silent_unless_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    written = {}
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with runlog.progress(3, "epoch 1/2") as bar:
            bar.update(3)
        written[stream.isatty()] = stream.getvalue()
    assert written[False] == ""
    assert "epoch 1/2" in written[True]


def test_the_commit_is_the_checkouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Installed into the environment of another project, the package has no commit of its own."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    monkeypatch.setattr(runlog, "__file__", str(tmp_path / "ptb_lm" / "runlog.py"))
    (tmp_path / "ptb_lm").mkdir()
    assert runlog.environment()["commit"] == head.stdout.strip()
    installed = tmp_path / "site-packages" / "ptb_lm"
    installed.mkdir(parents=True)
    monkeypatch.setattr(runlog, "__file__", str(installed / "runlog.py"))
    assert runlog.environment()["commit"] is None


def test_the_commit_is_marked_when_the_code_has_changed_and_not_when_results_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    code, page = tmp_path / "ptb_lm" / "runlog.py", tmp_path / "results" / "README.md"
    for path in (code, page):
        path.parent.mkdir()
        path.write_text("first\n")
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    monkeypatch.setattr(runlog, "__file__", str(code))
    monkeypatch.setenv("PTB_LM_COMMIT", "of no use here")
    assert runlog.environment()["commit"] == head
    page.write_text("second\n")
    assert runlog.environment()["commit"] == head
    code.write_text("second\n")
    assert runlog.environment()["commit"] == f"{head} with uncommitted changes"


def test_a_copy_without_git_is_told_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "__file__", str(tmp_path / "ptb_lm" / "runlog.py"))
    monkeypatch.delenv("PTB_LM_COMMIT", raising=False)
    assert runlog.environment()["commit"] is None
    monkeypatch.setenv("PTB_LM_COMMIT", "0123abc")
    assert runlog.environment()["commit"] == "0123abc"
