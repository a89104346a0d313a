"""The training loop: what it computes, and that stopping and resuming changes nothing."""

import errno
import functools
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_program import stopped_at_question
from runs import assert_equal_runs, result, untimed_rows
from support import assert_arrays, reference_perplexity
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ptb_lm import evaluate
from ptb_lm.common.errors import DivergenceError
from ptb_lm.common.signals import StopRequest
from ptb_lm.data import corpus
from ptb_lm.model import parameters, reference, reference_updates
from ptb_lm.model.backend import StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.presets import SMALL
from ptb_lm.model.ranks import SINGLE_PROCESS
from ptb_lm.train import main
from ptb_lm.training import checkpoint, trainer
from ptb_lm.training.metrics import Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.tensors import SavedState

pytestmark = pytest.mark.slow

SIZES = {"hidden-size": 6, "num-layers": 2, "batch-size": 3, "num-steps": 4, "epochs": 2, "decay-after": 1}
FLAGS = [
    "--recipe",
    "tutorial",
    *(part for name, value in SIZES.items() for part in (f"--{name}", str(value))),
]


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


@pytest.fixture(scope="module")
def never_stopped(text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a run to its end, once for each set of flags, to be looked at only."""

    @functools.cache
    def trained(*more: str) -> Path:
        run = tmp_path_factory.mktemp("never-stopped") / "run"
        assert main(arguments(text_folder, run, *more)) == 0
        return run

    return trained


@pytest.mark.parametrize(
    "horizon", [pytest.param(0.0, id="weights"), pytest.param(0.3, id="averages of tied weights")]
)
def test_a_whole_run_equals_the_reference(horizon: float, text_folder: Path, tmp_path: Path) -> None:
    """Schedule, order, carried state, clipping, averaging, validation and test: done again in NumPy."""
    run = tmp_path / "run"
    more = ("--tie-weights", "--average-epochs", str(horizon)) if horizon else ()
    assert main(arguments(text_folder, run, "--max-grad-norm", "2", *more)) == 0
    config = SMALL.replace(
        **{name.replace("-", "_"): value for name, value in SIZES.items()},
        max_grad_norm=2.0,
        tie_weights=horizon > 0,
    )
    data = corpus.load(text_folder)
    weights = {
        name: array.astype(np.float64)
        for name, array in parameters.draw_initial(config, len(data.vocabulary), seed=1).items()
    }

    averages, updates, every = dict[str, np.ndarray](), 0, 10

    def perplexity(split: str, batch: int, *, averaged: bool = True) -> float:
        judged = (averaged and averages) or weights
        return reference_perplexity(judged, data.splits[split], batch_size=batch)

    for epoch, row in enumerate(untimed_rows(run)):
        state, total, steps, norms = reference.zero_state(weights, 3), 0.0, 0, 0.0
        for x_BT, y_BT in corpus.windows(corpus.rows(data.splits["train"], 3), 4):
            loss, gradients, state = reference.loss_and_gradients(weights, x_BT, y_BT, state)
            weights, norm = reference_updates.sgd_update(
                weights, gradients, learning_rate=config.learning_rate_at(epoch), max_grad_norm=2.0
            )
            total, steps, norms = total + loss, steps + 1, norms + norm
            if horizon and (epoch * 22 + steps) % every == 0:
                updates += 1
                w = max(4 / (updates + 3), 1 - math.exp(-every / (horizon * 22)))
                for name, array in weights.items():
                    average = averages.get(name, array)
                    averages[name] = average + w * (array - average)
        assert row["epoch"] == epoch + 1
        assert row["learning_rate"] == [1.0, 0.5][epoch]
        assert row["train_perplexity"] == pytest.approx(math.exp(total / (4 * steps)), rel=1e-10)
        assert row["valid_perplexity"] == pytest.approx(perplexity("valid", 3), rel=1e-10)
        unaveraged = [perplexity("valid", 3, averaged=False)] if horizon else []
        assert [v for k, v in row.items() if k.startswith("unav")] == pytest.approx(unaveraged, rel=1e-10)
        assert row["gradient_norm"] == pytest.approx(norms / steps, rel=1e-10)
    assert result(run)["best_epoch"] == 2
    assert updates == (4 if horizon else 0)
    # The weights are saved in float32.
    assert result(run)["test_perplexity"] == pytest.approx(perplexity("test", 1), rel=1e-6)


def test_to_average_changes_nothing_that_is_trained(
    never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path
) -> None:
    """With dropout: the weights of both runs end equal to the bit, and were scored so in every epoch."""
    with_average, without = never_stopped(*REGULARISED), tmp_path / "without"
    assert main(arguments(text_folder, without, *REGULARISED, "--average-epochs", "0")) == 0
    assert_arrays(RunDirectory(with_average).read_state().weights, RunDirectory(without).read_state().weights)
    averaged, trained = untimed_rows(with_average), untimed_rows(without)
    assert all(row["valid_perplexity"] != row["unaveraged_valid_perplexity"] for row in averaged)
    for row in averaged:
        row["valid_perplexity"] = row.pop("unaveraged_valid_perplexity")
    assert averaged == trained


def test_the_best_weights_are_kept(text_folder: Path, tmp_path: Path) -> None:
    """A learning rate that ruins the second epoch: the first's weights are tested, and the last's."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert main(arguments(text_folder, twice, *RUINED)) == 0
    first, second = untimed_rows(twice)
    assert second["valid_perplexity"] > first["valid_perplexity"]
    assert main(arguments(text_folder, once, "--epochs", "1", "--max-grad-norm", "1000")) == 0
    assert result(twice)["best_epoch"] == 1
    assert result(twice)["valid_perplexity"] == first["valid_perplexity"]
    assert result(twice)["test_perplexity"] == result(once)["test_perplexity"]
    assert result(twice)["final_valid_perplexity"] == second["valid_perplexity"]
    assert result(twice)["final_test_perplexity"] == pytest.approx(perplexity_of_the_state(twice), rel=1e-10)
    for kind in ("test", "valid"):
        assert result(once)[f"final_{kind}_perplexity"] == result(once)[f"{kind}_perplexity"]


# Of the second epoch, which ends worse than the first.
RUINED = ("--lr-decay", "20", "--max-grad-norm", "1000")


def perplexity_of_the_state(run: Path) -> float:
    """Perplexity of the weights that the last epoch ended with, by the reference."""
    weights, _, _, averages = RunDirectory(run).read_state()
    data = corpus.load(Path(RunDirectory(run).read_config().data))
    return reference_perplexity(averages or weights, data.splits["test"])


RUINED_AVERAGES = (*RUINED, "--average-epochs", "0.2")


def test_the_last_epoch_s_averages_are_tested(never_stopped: Callable[..., Path]) -> None:
    run = never_stopped(*RUINED_AVERAGES)
    found = result(run)
    assert found["best_epoch"] == 1
    expected = perplexity_of_the_state(run)
    assert found["final_test_perplexity"] == pytest.approx(expected, rel=1e-10)


REGULARISED = (
    "--tie-weights",
    "--variational",
    *("--keep-prob", "0.7"),
    *("--embedding-keep-prob", "0.8"),
    *("--recurrent-keep-prob", "0.8"),
    *("--average-epochs", "0.5"),
    *("--precision", "fp32"),
)


DROPPED = ("--keep-prob", "0.7", "--precision", "fp32")
IN_BFLOAT16 = (*REGULARISED, "--precision", "bf16", "--model")


@pytest.mark.parametrize(
    ("more", "asked", "rows"),
    [
        # In training, in validation, in the second epoch, and in the test; then the run has ended.
        *((DROPPED, asked, 0) for asked in (0, 1, 7, 20, 21, 22, 26)),
        *((DROPPED, asked, 1) for asked in (27, 43, 48, 49, 53)),
        *((DROPPED, asked, 2) for asked in (54, 57)),
        # Before the first update of the averages, after it, between two, in an evaluation with them in place.
        *((REGULARISED, asked, 0) for asked in (9, 10, 20, 25)),
        *((REGULARISED, asked, 1) for asked in (43, 52)),
        # The last epoch's weights are tested first, then the best ones; four windows each.
        *((RUINED_AVERAGES, asked, 2) for asked in (64, 67, 68, 71)),
        *(((*IN_BFLOAT16, model), 16, 0) for model in ("basic", "block", "block_fused", "cudnn")),
        ((*IN_BFLOAT16, "cudnn", "--no-tie-weights"), 16, 0),
    ],
)
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    more: tuple[str, ...],
    asked: int,
    rows: int,
    never_stopped: Callable[..., Path],
    text_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the trainer has asked so often, and has ended so many epochs."""
    monkeypatch.setattr(trainer, "READ_SECONDS", math.inf)  # or a slow machine asks more often
    run, expected = tmp_path / "run", never_stopped(*more)
    with stopped_at_question(asked):
        assert main(arguments(text_folder, run, *more)) == 143
    assert not (run / "result.json").exists()
    assert rows == ((run / "metrics.jsonl").exists() and len(untimed_rows(run)))
    progress, steps = RunDirectory(run).read_state()[2], 22
    if asked < steps:  # of an epoch; the trainer asks once a step, and nothing that is trained is lost
        assert (progress.epoch, progress.step) == (0, asked + 1)
    assert progress.epoch * steps + progress.step >= min(asked + 1, steps)
    assert main(["--resume", str(run)]) == 0
    assert_equal_runs(run, expected)
    saved = RunDirectory(run).read_state()
    assert saved.averages.keys() == (saved.weights.keys() if "--average-epochs" in more else set())


def test_stopped_again_and_again_equals_never_stopped(
    never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path
) -> None:
    run, expected = tmp_path / "run", never_stopped("--keep-prob", "0.7")
    first, status, stops = arguments(text_folder, run, "--keep-prob", "0.7"), 143, 0
    while status == 143:
        with stopped_at_question(9):
            status = main(["--resume", str(run)] if stops else first)
        stops += 1
        assert stops < 100
    assert status == 0
    assert stops > 5
    assert_equal_runs(run, expected)


def test_a_resumed_run_adds_its_seconds_and_its_environment_to_the_earlier_ones(
    text_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with stopped_at_question(3):
        assert main(arguments(text_folder, run)) == 143
    directory = RunDirectory(run)
    state, config = directory.read_state(), directory.read_config()
    state.progress.run_seconds = 1000.0
    state.progress.environments[0]["started"] = "earlier"
    directory.write_state(state, corpus=corpus.load(text_folder), run=config)
    assert main(["--resume", str(run)]) == 0
    found = result(run)
    assert found["seconds"] > 1000
    assert [each["started"] for each in found["earlier_environments"]] == ["earlier"]
    assert found["environment"]["started"] != "earlier"


def test_a_killed_run_goes_on_from_its_newest_state(
    never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any time, the files of the last save are whole; here between two saves."""
    run, expected = tmp_path / "run", never_stopped()
    monkeypatch.setattr(checkpoint, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "READ_SECONDS", 0.0)

    allowed = iter(range(30))
    original = trainer.Trainer._save

    def save_or_die(self: trainer.Trainer) -> None:
        if next(allowed, None) is None:
            raise Killed
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_save", save_or_die)
        with pytest.raises(Killed):
            main(arguments(text_folder, run))
    assert main(["--resume", str(run)]) == 0
    assert_equal_runs(run, expected)


class Killed(BaseException):
    """As by kill -9: nothing catches it."""


def saves_at_the_end_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "CHEAP_SECONDS", 0.0)
    patch.setattr(checkpoint, "SHARE_OF_SAVES", 0.0)


def die_before_epoch(number: int, patch: pytest.MonkeyPatch) -> None:
    original = trainer.Trainer._train_epoch

    def train_or_die(self: trainer.Trainer, *passed: Any) -> None:
        if self.progress.epoch + 1 == number:
            raise Killed
        original(self, *passed)

    patch.setattr(trainer.Trainer, "_train_epoch", train_or_die)


def die_before_state_of_epoch(number: int, patch: pytest.MonkeyPatch) -> None:
    write = RunDirectory.write_state

    def write_or_die(self: RunDirectory, state: SavedState, **identity: Any) -> None:
        if state.progress.epoch == number:
            raise Killed
        write(self, state, **identity)

    patch.setattr(RunDirectory, "write_state", write_or_die)


def read_best(directory: RunDirectory) -> dict[str, Any] | None:
    return directory.read_best(directory.read_config(), directory.read_vocabulary())


def test_a_run_killed_after_epochs_that_saved_nothing_does_them_again(
    never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither state nor best weights are of these epochs; the metrics and TensorBoard's file are."""
    run, expected = tmp_path / "run", never_stopped("--epochs", "3")
    with monkeypatch.context() as patch:
        saves_at_the_end_only(patch)
        die_before_epoch(3, patch)
        with pytest.raises(Killed):
            main(arguments(text_folder, run, "--epochs", "3"))
    directory = RunDirectory(run)
    assert directory.read_state().progress.epoch == 0
    assert read_best(directory) is None
    assert len(directory.read_metrics()) == 2
    assert main(["--resume", str(run)]) == 0
    assert_equal_runs(run, expected)
    events = EventAccumulator(str(run))
    events.Reload()
    steps = [point.step for point in events.Scalars("perplexity/valid")]
    assert len(steps) == 3, "TensorBoard shows no epoch twice"


def test_best_weights_of_epochs_that_the_state_lacks_are_kept_through_two_kills(
    never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two files of a save, and again right after it went on."""
    run, expected = tmp_path / "run", never_stopped("--epochs", "3")
    with monkeypatch.context() as patch:
        saves_at_the_end_only(patch)
        die_before_state_of_epoch(3, patch)
        with pytest.raises(Killed):
            main(arguments(text_folder, run, "--epochs", "3"))
    directory = RunDirectory(run)
    assert directory.read_state().progress.epoch == 0
    best = read_best(directory)
    assert best is not None
    assert best["epoch"] == result(expected)["best_epoch"] > 1
    assert main(["--resume", str(run), "--epochs", "1"]) == 2
    with monkeypatch.context() as patch:
        die_before_epoch(1, patch)
        with pytest.raises(Killed):
            main(["--resume", str(run)])
    assert main(["--resume", str(run)]) == 0
    assert_equal_runs(run, expected)


def test_resume_with_more_epochs_equals_a_longer_run(
    never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path
) -> None:
    run, expected = tmp_path / "run", never_stopped("--epochs", "3")
    assert main(arguments(text_folder, run)) == 0
    assert main(["--resume", str(run), "--epochs", "3"]) == 0
    assert_equal_runs(run, expected)


@pytest.mark.parametrize("epochs", [1, 2])
def test_best_weights_written_before_a_crash_keep_their_numbers(
    epochs: int,
    text_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed between the best weights and the state, and resumed with a rate that makes the epoch worse."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        die_before_state_of_epoch(1, patch)
        with pytest.raises(Killed):
            main(arguments(text_folder, run, "--epochs", str(epochs)))
    assert main(["--resume", str(run), "--learning-rate", "0.001"]) == 0
    best = result(run)
    assert best["final_valid_perplexity"] > best["valid_perplexity"]
    assert best["final_test_perplexity"] > best["test_perplexity"], "of other weights"
    assert f"weights: test {best['final_test_perplexity']:.2f}, " in capsys.readouterr().out
    assert evaluate.main([str(run), "--split", "valid"]) == 0
    assert f"valid perplexity {best['valid_perplexity']:.4f}" in capsys.readouterr().out
    assert best["best_epoch"] == 1


def test_the_seed_decides(never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path) -> None:
    expected, again = untimed_rows(never_stopped("--keep-prob", "0.7")), tmp_path / "again"
    assert main(arguments(text_folder, again, "--keep-prob", "0.7", "--seed", "1")) == 0
    assert untimed_rows(again) == expected
    assert untimed_rows(never_stopped("--keep-prob", "0.7", "--seed", "2"))[0] != expected[0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_s_mode_without_gradients_changes_nothing(
    mode: type, never_stopped: Callable[..., Path], text_folder: Path, tmp_path: Path
) -> None:
    with mode():
        assert main(arguments(text_folder, tmp_path / "run")) == 0
    assert_equal_runs(tmp_path / "run", never_stopped())


FINE = StepMetrics(nll=1.0, gradient_norm=1.0)


class DeviceTokens:
    """Word ids that only the fake backend can read."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    @property
    def shape(self) -> tuple[int, ...]:
        return self.words.shape

    def __getitem__(self, part: Any) -> "DeviceTokens":
        return DeviceTokens(self.words[part])


class FakeBackend:
    """Costs known seconds on a fake clock, and returns what it is told to."""

    engine = "fake"

    ranks = SINGLE_PROCESS

    def __init__(self, clock: "FakeClock", loss: StepMetrics = FINE) -> None:
        self.clock, self.loss, self.weights = clock, loss, {"w": np.zeros(1)}

    def zero_state(self, batch_size: int) -> None:
        return None

    def to_device(self, rows: np.ndarray) -> DeviceTokens:
        return DeviceTokens(rows)

    def train_step(
        self, x: DeviceTokens, y: DeviceTokens, state: None, *, learning_rate: float
    ) -> tuple[Any, Any]:
        assert (x.words[:, 1:] == y.words[:, :-1]).all()
        self.clock.now += 1
        return None, self.loss

    def evaluate_step(self, x: DeviceTokens, y: DeviceTokens, state: None) -> tuple[Any, Any]:
        assert (x.words[:, 1:] == y.words[:, :-1]).all()
        self.clock.now += 100
        return None, StepMetrics(1.0, 0.0)

    def read(self, losses: list[StepMetrics]) -> list[StepMetrics]:
        return list(losses)

    def export_weights(self) -> dict[str, np.ndarray]:
        self.clock.now += 1000  # saving is slow
        return self.weights

    def export_training_state(self, state: None) -> dict[str, np.ndarray]:
        return {}

    def load_weights(self, weights: dict[str, np.ndarray]) -> None:
        pass

    def environment(self) -> dict[str, Any]:
        return {}


class FakeClock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def fake_trainer(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[trainer.Trainer, FakeClock]]:
    def make(**changes: Any) -> tuple[trainer.Trainer, FakeClock]:
        clock = FakeClock()
        for module in (trainer, checkpoint):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(trainer, "READ_SECONDS", 3.5)  # every four steps
        config = SMALL.replace(batch_size=3, num_steps=4, epochs=2)
        run = RunConfig(
            preset="small",
            recipe="default",
            data=str(text_folder),
            choice=Choice.create(),
            hyperparameters=config,
        )
        data, directory = corpus.load(text_folder), RunDirectory(tmp_path / "fake")
        directory.create(run, data.vocabulary)
        monkeypatch.setattr(RunDirectory, "read_weights", lambda *_: {"w": np.zeros(1)})
        backend: Any = FakeBackend(clock, **changes)
        return trainer.Trainer(
            run,
            data,
            backend,
            directory,
            stop=StopRequest(),
            command="test",
            environment={},
            command_start=-5.0,
        ), clock

    return make


def test_the_clock_has_the_steps_in_it_and_nothing_else(
    fake_trainer: Callable[..., tuple[trainer.Trainer, FakeClock]],
) -> None:
    """Each step is a second and 12 words; the first compiles; evaluation and saving take much longer."""
    built, clock = fake_trainer()
    outcome = built.train()
    first, second = built.progress.rows
    assert built.plan.usual_steps == 22
    assert (first["words_per_second"], first["seconds"]) == (12.0, 21.0)
    # Five seconds before the trainer, a save, and the step itself.
    assert outcome["environment"]["seconds_to_first_step"] == 5 + 1000 + 1
    assert (second["words_per_second"], second["seconds"]) == (12.0, 22.0)
    assert outcome["words_per_second"] == pytest.approx(12.0)
    assert outcome["seconds"] == clock.now


def test_saving_within_an_epoch_is_outside_the_clock(
    fake_trainer: Callable[..., tuple[trainer.Trainer, FakeClock]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SAVE_SECONDS", 5.0)
    built, _ = fake_trainer()
    saved_at, save = list[int](), built.checkpoints.save

    def noted(run: RunConfig, state: Any, progress: Progress, **named: float) -> None:
        saved_at.append(progress.epoch * built.plan.usual_steps + progress.step)
        save(run, state, progress, **named)

    monkeypatch.setattr(built.checkpoints, "save", noted)
    built.train()
    assert [row["seconds"] for row in built.progress.rows] == [21.0, 22.0]
    # Not more often than every five seconds, each a step; and at the end.
    assert min(after - before for before, after in itertools.pairwise(saved_at[:-1])) > 5, saved_at
    assert len(saved_at) > 3, saved_at
    assert saved_at[-1] == 2 * built.plan.usual_steps


@pytest.mark.parametrize(
    "loss",
    [
        StepMetrics(math.nan, 1.0),
        StepMetrics(math.inf, 1.0),
        StepMetrics(1.0, math.nan),
        StepMetrics(1.0, math.inf),
    ],
)
def test_a_loss_or_norm_that_is_not_finite_stops_the_run(
    loss: StepMetrics, fake_trainer: Callable[..., tuple[trainer.Trainer, FakeClock]]
) -> None:
    built, _ = fake_trainer(loss=loss)
    with pytest.raises(DivergenceError, match="in epoch 1, step 1 of 22"):
        built.train()


def test_weights_that_are_not_finite_are_never_written(
    fake_trainer: Callable[..., tuple[trainer.Trainer, FakeClock]],
) -> None:
    built, _ = fake_trainer()
    built.backend.weights["w"][0] = math.nan  # type: ignore[attr-defined]
    with pytest.raises(DivergenceError, match="diverged by epoch 1, step 0"):
        built.train()
    assert not built.directory.state_path.exists()


def test_a_disk_that_is_full_at_the_result_is_told_with_how_to_continue(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "result.json")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_result", fail)
        assert main(arguments(text_folder, tmp_path / "run")) == 1
    assert f"--resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert result(tmp_path / "run")["epochs"] == 2
