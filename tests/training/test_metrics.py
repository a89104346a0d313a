"""The reports of a run: the files of a finished run, read as others would read them."""

import math
import sys
from pathlib import Path

import pytest
import runs

from ptb_lm import train
from ptb_lm.training import metrics
from ptb_lm.training.evaluation import format_perplexity, perplexity_from_nll


@pytest.mark.slow
def test_the_result_agrees_with_the_metrics_and_names_the_run(data: Path, tmp_path: Path) -> None:
    """Of three epochs, the last of them after a resume."""
    import torch

    run = runs.train_run(data, tmp_path / "run", "--decay-after", "1")
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    result, rows = runs.result(run), runs.metrics(run)
    best = min(rows, key=lambda row: row["valid_perplexity"])
    assert (result["valid_perplexity"], result["best_epoch"]) == (best["valid_perplexity"], best["epoch"])
    assert result["epochs"] == len(rows)
    first, second = result["command"].split(" && ")
    assert first.startswith("python -m ptb_lm.train --data ")
    assert second == f"python -m ptb_lm.train --resume {run} --epochs 3"
    words, hidden, layers = len((run / "vocabulary.txt").read_text().splitlines()), 6, 2
    lstm = layers * (2 * hidden * 4 * hidden + 4 * hidden)
    assert result["parameters"] == words * hidden + lstm + hidden * words + words
    environment = result["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["threads"] == torch.get_num_threads()
    assert environment.keys() >= {"commit", "numpy", "platform", "processor", "cores", "device", "started"}


def test_the_speed_of_epochs_is_that_of_all_their_words() -> None:
    rows = [{"words_per_second": 100.0, "seconds": 1.0}, {"words_per_second": 10.0, "seconds": 9.0}]
    assert metrics.words_per_second(rows) == pytest.approx(19)


def test_the_values_of_steps_are_those_since_the_moment_before() -> None:
    """Of four steps of 12 words, one was not clocked, as one that compiles."""
    before = metrics.Progress(step=2, nll=9, gradient_norms=4, clocked_tokens=12, clocked_seconds=1)
    nll = 9 + 48 * math.log(7)
    now = metrics.Progress(step=6, nll=nll, gradient_norms=10, clocked_tokens=48, clocked_seconds=4)
    expected = {"loss": math.log(7), "perplexity": 7, "gradient_norm": 1.5, "learning_rate": 0.5}
    values = {f"step/{name}": value for name, value in (expected | {"words_per_second": 12}).items()}
    assert metrics.step_scalars(before, now, tokens=48, rate=0.5) == pytest.approx(values)
    now.clocked_seconds = before.clocked_seconds
    assert "step/words_per_second" not in metrics.step_scalars(before, now, tokens=48, rate=0.5)


@pytest.mark.parametrize(
    ("nll", "tokens", "expected"),
    [
        (0.0, 3, 1.0),
        (3 * math.log(7), 3, 7.0),
        (1e6, 3, math.inf),
        (math.inf, 3, math.inf),
        (math.nan, 3, math.nan),
    ],
)
def test_perplexity(nll: float, tokens: int, expected: float) -> None:
    assert perplexity_from_nll(nll, tokens) == pytest.approx(expected, rel=1e-15, nan_ok=True)


@pytest.mark.parametrize("value", [1.004, 98.7654, 1e6 / 3, 2e7, 3.21e250, 1e308])
def test_a_perplexity_of_any_size_is_a_short_number(value: float) -> None:
    for digits in (1, 2, 4):
        text = format_perplexity(value, digits=digits)
        assert len(text) <= 12 + digits
        assert float(text) == pytest.approx(value, rel=10.0**-digits)
