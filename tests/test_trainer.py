"""The training loop: what it computes, and that stopping and resuming changes nothing."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptb_lm import checkpoint, corpus, parameters, reference, trainer
from ptb_lm.config import SMALL
from ptb_lm.interrupt import StopRequest
from ptb_lm.rundir import RunDirectory
from ptb_lm.schedule import learning_rate
from ptb_lm.train import main

SIZES = {"hidden-size": 6, "num-layers": 2, "batch-size": 3, "num-steps": 4, "epochs": 2, "decay-after": 1}
FLAGS = [part for name, value in SIZES.items() for part in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of a few hundred words, drawn at random."""
    folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    for split, lines in (("train", 30), ("valid", 6), ("test", 5)):
        words = rng.zipf(1.5, size=(lines, 7)).clip(max=20)
        content = "".join(" ".join(f"w{word}" for word in line) + " <unk>\n" for line in words)
        (folder / f"{split}.txt").write_text(content)
    return folder


def arguments(text_folder: Path, run: Path, *more: str) -> list[str]:
    return ["--data", str(text_folder), "--run-dir", str(run), "--precision", "fp64", *FLAGS, *more]


def final_state(run: Path) -> dict[str, np.ndarray]:
    return checkpoint.load(RunDirectory(run).state)[0]


def assert_equal_runs(run: Path, expected: Path) -> None:
    """The same weights, state, metrics (but for the clock) and result, to the last bit."""
    state, expected_state = final_state(run), final_state(expected)
    assert state.keys() == expected_state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(array, expected_state[name], err_msg=name)
    best, expected_best = (checkpoint.load(RunDirectory(path).weights)[0] for path in (run, expected))
    for name, array in best.items():
        np.testing.assert_array_equal(array, expected_best[name], err_msg=name)
    assert untimed_rows(run) == untimed_rows(expected)
    for key in ("test_perplexity", "valid_perplexity", "best_epoch", "epochs"):
        assert result(run)[key] == result(expected)[key]


def untimed_rows(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("words_per_second", "seconds")} for row in rows]


def result(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "result.json").read_text())
    return loaded


def test_a_whole_run_equals_the_reference(text_folder: Path, tmp_path: Path) -> None:
    """Schedule, order, carried state, clipping, validation and test: done again in NumPy."""
    run = tmp_path / "run"
    assert main(arguments(text_folder, run, "--max-grad-norm", "2")) == 0
    config = SMALL.replace(
        **{name.replace("-", "_"): value for name, value in SIZES.items()}, max_grad_norm=2.0
    )
    data = corpus.load(text_folder)
    weights = {
        name: array.astype(np.float64)
        for name, array in parameters.initial(config, len(data.vocabulary), seed=1).items()
    }

    def perplexity(split: str, batch: int) -> float:
        rows_BL = corpus.rows(data.splits[split], batch)
        zero = reference.zero_state(weights, batch)
        loss, _, _ = reference.loss_and_gradients(weights, rows_BL[:, :-1], rows_BL[:, 1:], zero)
        return math.exp(loss / (rows_BL.shape[1] - 1))

    for epoch, row in enumerate(untimed_rows(run)):
        state, total, steps = reference.zero_state(weights, 3), 0.0, 0
        for x_BT, y_BT in corpus.windows(corpus.rows(data.splits["train"], 3), 4):
            loss, gradients, state = reference.loss_and_gradients(weights, x_BT, y_BT, state)
            weights, _ = reference.sgd_update(
                weights, gradients, learning_rate=learning_rate(config, epoch), max_grad_norm=2.0
            )
            total, steps = total + loss, steps + 1
        assert row["epoch"] == epoch + 1
        assert row["learning_rate"] == [1.0, 0.5][epoch]
        assert row["train_perplexity"] == pytest.approx(math.exp(total / (4 * steps)), rel=1e-10)
        assert row["valid_perplexity"] == pytest.approx(perplexity("valid", 3), rel=1e-10)
    if result(run)["best_epoch"] == 2:  # saved in float32
        assert result(run)["test_perplexity"] == pytest.approx(perplexity("test", 1), rel=1e-6)


def test_the_best_weights_are_kept(text_folder: Path, tmp_path: Path) -> None:
    """A learning rate that ruins the second epoch: the first epoch's weights are tested."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert main(arguments(text_folder, once, "--epochs", "1")) == 0
    assert main(arguments(text_folder, twice, "--lr-decay", "20", "--max-grad-norm", "1000")) == 0
    first, second = untimed_rows(twice)
    assert second["valid_perplexity"] > first["valid_perplexity"]
    assert main(arguments(text_folder, once, "--epochs", "1", "--overwrite", "--max-grad-norm", "1000")) == 0
    assert result(twice)["best_epoch"] == 1
    assert result(twice)["valid_perplexity"] == first["valid_perplexity"]
    assert result(twice)["test_perplexity"] == result(once)["test_perplexity"]


class StopAfter(StopRequest):
    """A stop request that arrives at the n-th time the trainer asks."""

    def __init__(self, asked: int) -> None:
        self._left = asked
        super().__init__()

    @property
    def signal_number(self) -> int | None:  # type: ignore[override]
        self._left -= 1
        return signal.SIGTERM if self._left < 0 else None

    @signal_number.setter
    def signal_number(self, value: int | None) -> None:
        pass


@pytest.mark.parametrize("asked", [0, 1, 7, 20, 40, 41, 42, 43, 44, 60, 83, 84, 85, 86, 87, 88, 90])
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    asked: int, text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, validation and test, with dropout on; float32, as people train."""
    more = ("--keep-prob", "0.7", "--precision", "fp32")
    run, expected = tmp_path / "run", tmp_path / "expected"
    assert main(arguments(text_folder, expected, *more)) == 0
    with monkeypatch.context() as patch:
        patch.setattr("ptb_lm.train.StopRequest", lambda: StopAfter(asked))
        status = main(arguments(text_folder, run, *more))
    if status == 143:
        assert not (run / "result.json").exists()
        assert main(["--resume", str(run)]) == 0
    else:
        assert status == 0
    assert_equal_runs(run, expected)


def test_stopped_again_and_again_equals_never_stopped(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, expected = tmp_path / "run", tmp_path / "expected"
    assert main(arguments(text_folder, expected, "--keep-prob", "0.7")) == 0
    first, status, stops = arguments(text_folder, run, "--keep-prob", "0.7"), 143, 0
    monkeypatch.setattr("ptb_lm.train.StopRequest", lambda: StopAfter(9))
    while status == 143:
        status = main(["--resume", str(run)] if stops else first)
        stops += 1
    assert status == 0
    assert stops > 5
    assert_equal_runs(run, expected)


def test_a_killed_run_goes_on_from_its_newest_state(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any time, the files of the last save are whole; here between two saves."""
    run, expected = tmp_path / "run", tmp_path / "expected"
    assert main(arguments(text_folder, expected)) == 0
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "READ_SECONDS", 0.0)

    class Killed(BaseException):
        pass

    saves = iter(range(30))
    original = trainer.Trainer._save

    def save_or_die(self: trainer.Trainer) -> None:
        if next(saves, None) is None:
            raise Killed
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_save", save_or_die)
        with pytest.raises(Killed):
            main(arguments(text_folder, run))
    assert main(["--resume", str(run)]) == 0
    assert_equal_runs(run, expected)


def test_resume_with_more_epochs_equals_a_longer_run(text_folder: Path, tmp_path: Path) -> None:
    run, expected = tmp_path / "run", tmp_path / "expected"
    assert main(arguments(text_folder, expected, "--epochs", "3")) == 0
    assert main(arguments(text_folder, run)) == 0
    assert main(["--resume", str(run), "--epochs", "3"]) == 0
    assert_equal_runs(run, expected)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_print_the_resume_command(
    number: signal.Signals, status: int, text_folder: Path, tmp_path: Path
) -> None:
    run, expected = tmp_path / "run", tmp_path / "expected"
    flags = ("--epochs", "40", "--lr-decay", "0.99")
    command = [sys.executable, "-m", "ptb_lm.train", *arguments(text_folder, run, *flags)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status, stderr
    assert f"python -m ptb_lm.train --resume {run}" in stderr
    assert "Traceback" not in stderr
    assert not list(run.rglob("*.tmp"))
    assert main(["--resume", str(run)]) == 0
    assert main(arguments(text_folder, expected, *flags)) == 0
    assert_equal_runs(run, expected)
