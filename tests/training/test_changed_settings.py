"""A run that was resumed with other settings remembers them, and is no run of its newest ones."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import runs
from rank_program import stopped_after

from ptb_lm import compare, train
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import SCHEDULES
from ptb_lm.model.presets import SMALL
from ptb_lm.training import tensors
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.window_plan import WindowPlan

RUN = RunConfig(
    preset="small", recipe="tutorial", data="synthetic", choice=Choice.create(), hyperparameters=SMALL
)


def go_on(before: RunConfig, epoch: int, step: int = 0, **changes: Any) -> RunConfig:
    now = dataclasses.replace(before, hyperparameters=before.hyperparameters.replace(**changes))
    after = now.going_on(before, epoch=epoch, step=step)
    assert RunConfig.from_json(after.to_json(), Path("config.json")) == after
    return after


def test_each_value_is_told_with_its_end() -> None:
    run = go_on(go_on(RUN, 2, learning_rate=0.5), 4, step=7, learning_rate=0.1, keep_prob=0.9)
    assert sorted(run.changes) == [
        "keep_prob 1 until step 7 of epoch 5, then 0.9",
        "learning_rate 1 until epoch 2, then 0.5 until step 7 of epoch 5, then 0.1",
    ]
    assert go_on(RUN, 2, variational=True).changes == ["variational no until epoch 2, then yes"]
    assert go_on(run, 6).changes == run.changes


@pytest.mark.parametrize("epoch", [0, 2])
def test_settings_that_trained_nothing_are_forgotten(epoch: int) -> None:
    wrong = go_on(RUN, epoch, learning_rate=9.0)
    assert go_on(wrong, epoch, learning_rate=SMALL.learning_rate).changes == []
    right = go_on(wrong, epoch, learning_rate=0.5)
    assert right.changes == (["learning_rate 1 until epoch 2, then 0.5"] if epoch else [])
    # A state of before, as after a crash.
    assert go_on(go_on(right, 3, learning_rate=0.1), epoch, learning_rate=0.5).changes == right.changes


@pytest.mark.parametrize(
    ("schedule", "told"), [("exponential", []), ("one-cycle", ["epochs 13 until epoch 13, then 20"])]
)
def test_more_epochs_are_a_change_where_they_change_the_learning_rate(schedule: str, told: list[str]) -> None:
    run = dataclasses.replace(RUN, hyperparameters=SMALL.replace(schedule=schedule, decay_after=0))
    longer = go_on(run, SMALL.epochs, epochs=20, learning_rate=0.5)
    assert [each for each in longer.changes if each.startswith("epochs")] == told
    result = {"epochs": SMALL.epochs, "hyperparameters": run.hyperparameters.to_json()}
    assert longer.as_trained(result, SMALL.epochs).changes == told, "the end is planned as it is now"


def test_a_resume_is_not_refused_for_settings_that_were_never_together() -> None:
    run = dataclasses.replace(RUN, hyperparameters=SMALL.replace(lr_decay=10.0, learning_rate=1e-8))
    after = go_on(run, 5, lr_decay=0.5, epochs=1000)
    assert go_on(after, 5).changes == after.changes == ["lr_decay 10 until epoch 5, then 0.5"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_of_a_step_is_the_one_that_trained_it(schedule: str) -> None:
    steps = 7
    first = SMALL.replace(schedule=schedule, lr_decay=10.0, learning_rate=1e-8)
    second = first.replace(learning_rate=2e-8)
    run = go_on(dataclasses.replace(RUN, hyperparameters=first), 2, learning_rate=2e-8)
    # By the newest decay and epochs, the first settings' rate would overflow.
    run = go_on(run, 5, step=3, learning_rate=4e-8, lr_decay=0.5, epochs=1000)
    for epoch, step, trained_by in (
        *((1, steps - 1, first), (2, 0, second), (5, 2, second)),
        *((5, 3, run.hyperparameters), (9, 0, run.hyperparameters)),
    ):
        rate = trained_by.learning_rate_at(epoch, step, steps)
        assert run.learning_rate_at(epoch, step, steps) == rate, (epoch, step)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"nonsense": 1}, "nonsense"), ({"hidden_size": 5}, "hidden_size"), ({"learning_rate": "x"}, "earlier")],
)
def test_what_no_resume_changes_is_refused(settings: dict[str, Any], told: str) -> None:
    written = {**RUN.to_json(), "earlier": [{"epoch": 1, "step": 0, "settings": settings}]}
    with pytest.raises(UserError, match=told):
        RunConfig.from_json(written, Path("config.json"))


@pytest.mark.slow
def test_the_step_is_told_at_which_a_run_was_stopped(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with stopped_after(1):
        assert runs.run_command(train, *runs.arguments(data, run, "--learning-rate", "0.2")) == 143  # SIGTERM
    assert runs.run_command(train, "--resume", run, "--learning-rate", "0.5") == 0
    told = ["learning_rate 0.2 until step 1 of epoch 1, then 0.5"]
    assert RunDirectory(run).read_config().changes == told


@pytest.mark.slow
def test_an_epoch_has_the_rate_that_trained_it(data: Path, tmp_path: Path) -> None:
    """Its validation may come after a resume with another."""
    run, flags = tmp_path / "run", ["--learning-rate", "0.2", "--decay-after", "9"]
    with stopped_after(1):
        assert runs.run_command(train, *runs.arguments(data, run, *flags)) == 143
    steps = WindowPlan(corpus.load(data), RunDirectory(run).read_config().hyperparameters, seed=1).steps(0)
    with stopped_after(steps - 1):
        assert runs.run_command(train, "--resume", run) == 143
    assert runs.run_command(train, "--resume", run, "--learning-rate", "0.5") == 0
    assert [row["learning_rate"] for row in runs.metrics(run)] == [0.2, 0.5]


@pytest.mark.slow
def test_settings_are_not_changed_when_only_a_validation_is_left(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, flags = tmp_path / "run", ["--learning-rate", "0.2", "--epochs", "1"]
    with stopped_after(1):
        assert runs.run_command(train, *runs.arguments(data, run, *flags)) == 143
    config = RunDirectory(run).read_config().hyperparameters
    with stopped_after(WindowPlan(corpus.load(data), config, seed=1).steps(0) - 1):
        assert runs.run_command(train, "--resume", run) == 143
    capsys.readouterr()
    assert "more --epochs" in runs.refusal(capsys, train, "--resume", run, "--learning-rate", "0.5")
    assert runs.run_command(train, "--resume", run) == 0
    assert "continues with the validation of epoch 1" in capsys.readouterr().out


@pytest.mark.slow
def test_such_a_run_has_no_part_in_a_mean(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "both"
    first = runs.train_run(data, folder / "seed-1", "--learning-rate", "0.2", "--epochs", "1")
    runs.run_command(train, "--resume", first, "--learning-rate", "0.5", "--epochs", "2")
    told = "learning_rate 0.2 until epoch 1, then 0.5"
    directory = RunDirectory(first)
    _, metadata = tensors.load(directory.weights_path)
    written = RunConfig.from_json(metadata["config"], directory.weights_path)
    assert directory.read_config().changes == written.changes == [told]
    flags = runs.arguments(data, folder, "--learning-rate", "0.5", "--epochs", "2", "--seeds", "1", "2")
    assert f"{told} there" in runs.refusal(capsys, train, *flags)
    second = runs.train_run(data, folder / "seed-2", *flags[4:-3], "--seed", "2")
    assert runs.run_command(compare, first, second) == 0
    assert f"| {told} |" in capsys.readouterr().out
    # It goes on with others, which have not trained an epoch.
    before = RunDirectory(first).read_config()
    RunDirectory(first).write_config(go_on(before, 2, learning_rate=9.0, epochs=3))
    assert runs.run_command(compare, first, second) == 0
    assert f"| {told} |" in capsys.readouterr().out
