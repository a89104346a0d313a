"""Runs with windows of random lengths and with rates that move at every step: what they train and report."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from rank_program import stopped_after
from support import assert_arrays
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ptb_lm import train
from ptb_lm.data import corpus
from ptb_lm.model import parameters, reference, reference_updates
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.training import trainer
from ptb_lm.training.metrics import Progress
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.window_plan import WindowPlan

pytestmark = pytest.mark.slow

FLAGS = (
    *("--vary-num-steps", "--num-steps", "10", "--schedule", "one-cycle", "--epochs", "3"),
    *("--precision", "fp64", "--max-grad-norm", "2"),
)
DROPPED = (*FLAGS, "--keep-prob", "0.8", "--variational", "--average-epochs", "0.5")


@pytest.fixture(scope="module")
def never_stopped(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train_run(small_corpus, tmp_path_factory.mktemp("random") / "run", *DROPPED)


def plan_of(run: Path) -> WindowPlan:
    config = RunDirectory(run).read_config()
    return WindowPlan(corpus.load(Path(config.data)), config.hyperparameters, seed=config.choice.seed)


def test_a_whole_run_equals_the_reference(small_corpus: Path, tmp_path: Path) -> None:
    """Each window with its own bound on the gradient; the train perplexity is that of all its targets."""
    run = runs.train_run(small_corpus, tmp_path / "run", *FLAGS)
    config = RunDirectory(run).read_config().hyperparameters
    data, plan = corpus.load(small_corpus), plan_of(run)
    weights: dict[str, np.ndarray] = {
        name: array.astype(np.float64)
        for name, array in parameters.draw_initial(config, len(data.vocabulary), seed=1).items()
    }
    rows_BL, clipped = corpus.rows(data.splits["train"], 4), []
    for epoch, row in enumerate(runs.metrics(run)):
        state, nll, targets = reference.zero_state(weights, 4), 0.0, 0
        steps = plan.steps(epoch)
        for step, (x_BT, y_BT) in enumerate(plan.windows(rows_BL, epoch)):
            loss, gradients, state = reference.loss_and_gradients(weights, x_BT, y_BT, state)
            bound = 2 * x_BT.shape[1] / 10
            weights, norm = reference_updates.sgd_update(
                weights,
                gradients,
                learning_rate=config.learning_rate_at(epoch, step, steps),
                max_grad_norm=bound,
            )
            nll, targets = nll + 4 * loss, targets + y_BT.size
            clipped.append(norm > bound)
        assert row["train_perplexity"] == pytest.approx(math.exp(nll / targets), rel=1e-9)
        assert row["learning_rate"] == config.learning_rate_at(epoch, 0, steps)
    assert 0 < sum(clipped) < len(clipped)
    assert_arrays(RunDirectory(run).read_state().weights, weights, atol=1e-9)


@pytest.mark.parametrize("place", ["first step", "in an epoch", "end of an epoch", "next epoch"])
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    place: str,
    never_stopped: Path,
    small_corpus: Path,
    tmp_path: Path,
) -> None:
    """To the bit: windows, rates, masks and averages."""
    plan, run = plan_of(never_stopped), tmp_path / "run"
    first, second = plan.steps(0), plan.steps(1)
    assert len({first, second, plan.steps(2)}) > 1, "epochs of this seed have as many windows"
    stop = {
        "first step": 1,
        "in an epoch": first // 2,
        "end of an epoch": first + second,
        "next epoch": first + second + 3,
    }[place]
    with stopped_after(stop):
        assert train.main(runs.arguments(small_corpus, run, *DROPPED)) == 143
    progress = RunDirectory(run).read_state().progress
    assert plan.steps_before(progress.epoch) + progress.step == stop
    assert train.main(["--resume", str(run)]) == 0
    runs.assert_equal_runs(run, never_stopped)


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
def test_each_step_has_its_own_rate_also_after_a_resume(
    schedule: str,
    small_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates, step = list[float](), TorchBackend.train_step

    def train_step(self: TorchBackend, *given: Any, learning_rate: float) -> Any:
        rates.append(learning_rate)
        return step(self, *given, learning_rate=learning_rate)

    monkeypatch.setattr(TorchBackend, "train_step", train_step)
    flags = ("--schedule", schedule, "--epochs", "2")
    with stopped_after(20):
        assert train.main(runs.arguments(small_corpus, tmp_path / "run", *flags)) == 143
    assert train.main(["--resume", str(tmp_path / "run")]) == 0
    config = RunDirectory(tmp_path / "run").read_config().hyperparameters
    steps = plan_of(tmp_path / "run").steps(0)
    assert rates == [config.learning_rate_at(epoch, each, steps) for epoch in (0, 1) for each in range(steps)]
    assert len({*rates}) > 0.9 * len(rates)
    out = capsys.readouterr().out
    assert "3 epochs in place of 2" not in out
    for epoch in (0, 1):  # its line has the rates of the first and of the last step
        first, last = (config.learning_rate_at(epoch, each, steps) for each in (0, steps - 1))
        assert f"epoch  {epoch + 1}/2  lr {first:.4g} to {last:.4g}  perplexity" in out
    assert train.main(["--resume", str(tmp_path / "run"), "--epochs", "3"]) == 0
    (told,) = re.findall(r"3 epochs in place of 2 .*rate, which is (\S+) now", capsys.readouterr().out)
    assert float(told) == pytest.approx(rates[2 * steps], rel=1e-2)
    assert rates[2 * steps :] == [
        config.replace(epochs=3).learning_rate_at(2, each, steps) for each in range(steps)
    ]


def test_tensorboard_and_the_clock_count_true_targets(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each epoch all are clocked but those of the first step of a length, which compiles."""
    clocked, next_epoch = list[int](), Progress.next_epoch

    def note(self: Progress) -> None:
        clocked.append(self.clocked_tokens)
        next_epoch(self)

    monkeypatch.setattr(Progress, "next_epoch", note)
    monkeypatch.setattr(trainer, "READ_SECONDS", 0.0)  # a point for each step
    run = runs.train_run(small_corpus, tmp_path / "run", *FLAGS, "--epochs", "2")
    plan, rows_BL = plan_of(run), corpus.rows(corpus.load(small_corpus).splits["train"], 4)
    targets = [[y_BT.size for _, y_BT in plan.windows(rows_BL, epoch)] for epoch in (0, 1)]
    firsts = {size: (epoch, size) for epoch in (1, 0) for size in targets[epoch]}.values()
    assert clocked == [
        sum(targets[epoch]) - sum(size for when, size in firsts if when == epoch) for epoch in (0, 1)
    ]
    assert 1 < len(firsts) < len(targets[0])
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    losses, rates = (events.Scalars(f"step/{name}") for name in ("loss", "learning_rate"))
    assert [point.step for point in losses] == list(range(1, len(targets[0]) + len(targets[1]) + 1))
    # An epoch's mean loss is that of its points, each weighted by its targets.
    for epoch, row in enumerate(runs.metrics(run)):
        begin = epoch * len(targets[0])
        values = [point.value for point in losses[begin : begin + len(targets[epoch])]]
        mean = np.average(values, weights=targets[epoch])
        assert math.exp(mean) == pytest.approx(row["train_perplexity"], rel=1e-5)
    config = RunDirectory(run).read_config().hyperparameters
    for step, point in enumerate(rates[: len(targets[0])]):
        assert point.value == pytest.approx(config.learning_rate_at(0, step, len(targets[0])), rel=1e-6)
