"""NT-ASGD: when averaging begins, what is averaged, and that stopping and resuming changes nothing."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from rank_program import backend_type, stopped_after
from support import assert_arrays, installed, reference_perplexity

from ptb_lm import train
from ptb_lm.data import corpus
from ptb_lm.model.backend import Backend
from ptb_lm.training import tensors
from ptb_lm.training.averaging import first_stall
from ptb_lm.training.run_directory import RunDirectory

Weights = dict[str, np.ndarray]


def published_trigger(valid: Sequence[float], nonmono: int) -> int | None:
    """The criterion of salesforce/awd-lstm-lm, main.py, line by line."""
    best_val_loss: list[float] = []
    for epoch, val_loss in enumerate(valid, start=1):
        if len(best_val_loss) > nonmono and val_loss > min(best_val_loss[:-nonmono]):
            return epoch
        best_val_loss.append(val_loss)
    return None


def test_the_first_stall_is_the_published_trigger() -> None:
    rng, found = np.random.default_rng(0), set[int | None]()
    for number in range(400):
        # Of few values, so that some are equal; some fall all the time.
        valid = rng.integers(1, 7, size=rng.integers(0, 14)).astype(float)
        if number % 3 == 0:
            valid = np.sort(valid)[::-1]
        patience = int(rng.integers(1, 6))
        expected = published_trigger(valid.tolist(), patience)
        assert first_stall(valid.tolist(), patience) == expected, (valid, patience)
        found.add(expected)
    assert len(found) > 8
    assert None in found


def test_what_comes_later_does_not_move_the_first_stall() -> None:
    valid = [9.0, 8.0, 7.0, 8.5, 6.0, 1.0, 99.0]
    assert [first_stall(valid[:done], 1) for done in range(8)] == [None] * 4 + [4] * 4
    assert first_stall(valid, 2) == 7


# A run.

STEPS = 35  # of an epoch
FLAGS = (
    *("--precision", "fp64", "--epochs", "6", "--average-after-stall", "1", "--keep-prob", "0.8"),
    *("--learning-rate", "3", "--decay-after", "6"),
)


@pytest.fixture(scope="module", params=["torch", pytest.param("tensorflow", marks=installed("tensorflow"))])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def recorded(
    framework: str, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Weights]]:
    """A run, and its weights after each training step."""
    run, after = tmp_path_factory.mktemp("recorded") / "run", list[Weights]()
    kind = backend_type(framework)
    step = kind.train_step

    @functools.wraps(step)
    def train_step(self: Backend, *given: Any, **more: Any) -> Any:
        done = step(self, *given, **more)
        after.append({name: array.copy() for name, array in self.export_weights().items()})
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "train_step", train_step)
        runs.train_run(data, run, *FLAGS, "--framework", framework, "--model", "basic")
    return run, after


def trigger(run: Path) -> int:
    """The epochs after which averaging began, by the published criterion."""
    epochs = published_trigger([row["valid_perplexity"] for row in runs.metrics(run)], 1)
    assert epochs is not None
    assert 2 < epochs < 5, "the flags must let a run stall, and go on"
    return epochs


def mean(of: Sequence[Weights]) -> Weights:
    return {name: np.mean([weights[name] for weights in of], axis=0) for name in of[0]}


def valid_perplexity(weights: Weights, data: Path) -> float:
    return reference_perplexity(weights, corpus.load(data).splits["valid"], batch_size=4)


@pytest.mark.slow
def test_averages_are_the_mean_of_all_weights_since_the_stall(
    recorded: tuple[Path, list[Weights]], data: Path
) -> None:
    """They are scored and kept from the next epoch on; before it, the weights are."""
    run, after = recorded
    begin, rows = trigger(run) * STEPS, runs.metrics(run)
    assert len(after) == 6 * STEPS
    saved = RunDirectory(run).read_state()
    for name, array in mean(after[begin:]).items():
        np.testing.assert_allclose(saved.averages[name], array, rtol=0, atol=1e-13, err_msg=name)
        np.testing.assert_array_equal(saved.weights[name], after[-1][name])
    for epoch, row in enumerate(rows, start=1):
        done = epoch * STEPS
        scored = mean(after[begin:done]) if done > begin else after[done - 1]
        assert row["valid_perplexity"] == pytest.approx(valid_perplexity(scored, data), rel=1e-10)
        without = valid_perplexity(after[done - 1], data)
        assert row["unaveraged_valid_perplexity"] == pytest.approx(without, rel=1e-10)


@pytest.mark.slow
def test_the_best_weights_are_the_averages(recorded: tuple[Path, list[Weights]]) -> None:
    run, after = recorded
    best = runs.result(run)["best_epoch"]
    assert best > trigger(run), "the flags must let the average be better than what came before"
    kept, _ = tensors.load(RunDirectory(run).weights_path)
    assert_arrays(kept, mean(after[trigger(run) * STEPS : best * STEPS]), atol=1e-6)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Let torch's optimisers keep their own numbers in float64, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_averages_are_those_of_torch_s_asgd(recorded: tuple[Path, list[Weights]]) -> None:
    """torch.optim.ASGD(lambd=0, t0=0) makes the same steps; its mean leaves out the first of them."""
    run, after = recorded
    before, *since = after[trigger(run) * STEPS - 1 :]
    parameters = {name: torch.tensor(array) for name, array in before.items()}
    optimizer = torch.optim.ASGD(parameters.values(), lr=0.5, lambd=0, t0=0)
    for weights in since:
        for name, parameter in parameters.items():
            parameter.grad = (parameter - torch.tensor(weights[name])) / 0.5
        optimizer.step()
    saved, count = RunDirectory(run).read_state().averages, len(since)
    for name, parameter in parameters.items():
        theirs = optimizer.state[parameter]["ax"].numpy()
        expected = (since[0][name] + (count - 1) * theirs) / count
        np.testing.assert_allclose(saved[name], expected, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "step"),
    [
        *(("torch", step) for step in (-5, 0, 1, 8, STEPS, STEPS + 3)),
        pytest.param("tensorflow", 8, marks=installed("tensorflow")),  # the trainer owns the rest
    ],
    indirect=["framework"],
    scope="module",
)
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    step: int,
    framework: str,
    recorded: tuple[Path, list[Weights]],
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stopped so many steps after the last one before averaging begins, which is said."""
    (expected, _), run = recorded, tmp_path / "run"
    flags = (*FLAGS, "--framework", framework, "--model", "basic")
    with stopped_after(trigger(expected) * STEPS + step, framework):
        assert train.main(runs.arguments(data, run, *flags)) == 143
    progress = RunDirectory(run).read_state().progress
    assert progress.epoch * STEPS + progress.step == trigger(expected) * STEPS + step
    assert train.main(["--resume", str(run)]) == 0
    assert f"from epoch {trigger(expected) + 1} on, the weights are averaged" in "".join(capsys.readouterr())
    runs.assert_equal_runs(run, expected)
