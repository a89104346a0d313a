"""The reports of a run: the files of a finished run, read as others would read them."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import runs

from ptb_lm import train
from ptb_lm.training.evaluation import perplexity_of

# The columns that every row has.
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
    folder = tmp_path_factory.mktemp("metrics")
    run = runs.train_run(runs.write_corpus(folder / "data"), folder / "run", "--decay-after", "1")
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    return run


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, Any]]:
    return runs.metrics(run)


@pytest.mark.slow
def test_metrics_hold_a_row_an_epoch(rows: list[dict[str, Any]]) -> None:
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row.keys() >= COLUMNS for row in rows)


@pytest.mark.slow
def test_metrics_hold_the_learning_rates_that_were_used(rows: list[dict[str, Any]]) -> None:
    assert [row["learning_rate"] for row in rows] == [1.0, 0.5, 0.25]


@pytest.mark.slow
def test_metrics_hold_plausible_numbers(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert 1 < row["train_perplexity"] < 100
        assert 1 < row["valid_perplexity"] < 100
        assert row["words_per_second"] > 0
        assert row["seconds"] > 0


@pytest.mark.slow
def test_training_learns(rows: list[dict[str, Any]]) -> None:
    assert rows[-1]["train_perplexity"] < rows[0]["train_perplexity"]


@pytest.mark.slow
def test_the_result_agrees_with_the_metrics(run: Path, rows: list[dict[str, Any]]) -> None:
    result = runs.result(run)
    assert result.keys() >= RESULT
    best = min(rows, key=lambda row: row["valid_perplexity"])
    assert (result["valid_perplexity"], result["best_epoch"]) == (best["valid_perplexity"], best["epoch"])
    assert result["epochs"] == len(rows)


@pytest.mark.slow
def test_the_result_holds_every_command_of_the_run(run: Path) -> None:
    first, second = runs.result(run)["command"].split(" && ")
    assert first.startswith("python -m ptb_lm.train --data ")
    assert second == f"python -m ptb_lm.train --resume {run} --epochs 3"


@pytest.mark.slow
def test_the_result_counts_the_parameters(run: Path) -> None:
    words, hidden, layers = len((run / "vocabulary.txt").read_text().splitlines()), 6, 2
    lstm = layers * (2 * hidden * 4 * hidden + 4 * hidden)
    assert runs.result(run)["parameters"] == words * hidden + lstm + hidden * words + words


@pytest.mark.slow
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
    assert perplexity_of(nll, tokens) == pytest.approx(expected, rel=1e-15)


def test_perplexity_of_nan_is_nan() -> None:
    assert math.isnan(perplexity_of(math.nan, 3))
