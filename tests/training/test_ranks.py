"""Several processes train one run: the same numbers as one, one run directory, stops, faults."""

import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

import kill_ranks
import numpy as np
import pytest
import runs
import together
from runs import assert_equal_runs, final_state, untimed_rows

from ptb_lm import train
from ptb_lm.training import launch
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

PLAIN = ("--precision", "fp64", "--average-epochs", "0.5")
DROPPED = ("--keep-prob", "0.7", "--embedding-keep-prob", "0.8", "--recurrent-keep-prob", "0.8")
STEPS, EVALUATED = 35, 20  # of an epoch: training steps, and windows that are scored afterwards
STOP = 70  # times that the trainer asks whether to stop, once a step and once a window: in the second epoch


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process, and then, in one group of two processes, those of two."""
    folder = tmp_path_factory.mktemp("ranks")
    runs.write_corpus(folder / "text")
    (folder / "other").mkdir()
    for split in ("train", "valid", "test"):
        text = (folder / "text" / f"{split}.txt").read_text()
        (folder / "other" / f"{split}.txt").write_text(text.replace("w1 w1", "w1 w2"))
    return folder


def arguments(folder: Path, run: str, *more: str, text: str = "text") -> list[str]:
    return runs.arguments(folder / text, folder / run, *PLAIN, *more)


def resumed(folder: Path, run: str) -> list[str]:
    return ["--resume", str(folder / run)]


@pytest.fixture(scope="session")
def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each of two processes found in each case; the runs of one process that they need are trained."""
    assert train.main(arguments(folder, "one")) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "StopRequest", lambda: together.StopAfter(STOP))
        assert train.main(arguments(folder, "one stopped")) == 143
    cases: dict[str, dict[str, Any]] = {
        "two": {"arguments": arguments(folder, "two")},
        "one stopped": {"arguments": resumed(folder, "one stopped")},
        "two stopped": {"arguments": arguments(folder, "two stopped"), "stop": (1, STOP)},
        "dropped": {"arguments": arguments(folder, "dropped", *DROPPED)},
        "dropped, stopped": {"arguments": arguments(folder, "again", *DROPPED), "stop": (1, STOP)},
        "dropped, resumed": {"arguments": resumed(folder, "again")},
        "in validation": {"arguments": arguments(folder, "valid", *DROPPED), "stop": (0, 36)},
        "in validation, resumed": {"arguments": resumed(folder, "valid")},
        "to one": {"arguments": arguments(folder, "to one", *DROPPED), "stop": (0, STOP)},
        "indivisible": {"arguments": arguments(folder, "no", "--batch-size", "5")},
        "other text": {"arguments": [arguments(folder, "no", text=text) for text in ("text", "other")]},
        "no text": {"arguments": [arguments(folder, "no", text=text) for text in ("text", "missing")]},
        "other rate": {
            "arguments": [arguments(folder, "no", "--learning-rate", rate) for rate in ("1.0", "0.5")]
        },
        "other commit": {"arguments": arguments(folder, "no"), "commit": {"1": "0123abc"}},
        "there already": {"arguments": arguments(folder, "one")},
        # What scripts/kill_ranks.py trains.
        "in peace": {
            "arguments": [
                *("--data", str(folder / "text"), "--run-dir", str(folder / "in peace")),
                *kill_ranks.FLAGS,
            ]
        },
        "per device": {
            "arguments": [
                *("--data", str(folder / "text"), "--run-dir", str(folder / "per device"), "--epochs", "1"),
                *("--hidden-size", "6", "--num-steps", "5", "--device", "cpu"),
                *("--batch-size-per-device", "2"),
            ]
        },
    }
    of_ranks = together.done_together(2, "trained", list(cases.values()))
    return {name: list(of_case) for name, of_case in zip(cases, zip(*of_ranks, strict=True), strict=True)}


def statuses(of_case: list[dict[str, Any]]) -> list[int]:
    return [each["status"] for each in of_case]


def assert_same_numbers(run: Path, expected: Path) -> None:
    """Rows, result and weights: as of one process, but for the order of sums."""
    for row, expected_row in zip(untimed_rows(run), untimed_rows(expected), strict=True):
        assert row == pytest.approx(expected_row, rel=1e-10)
    for key in ("test_perplexity", "valid_perplexity", "final_test_perplexity", "best_epoch"):
        assert runs.result(run)[key] == pytest.approx(runs.result(expected)[key], rel=1e-10)
    state, expected_state = final_state(run), final_state(expected)
    for name in (name for name in expected_state if name.startswith(("weights.", "averages.", "training.h"))):
        np.testing.assert_allclose(state[name], expected_state[name], atol=1e-10, err_msg=name)


def test_two_train_what_one_trains(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    assert statuses(found["two"]) == [0, 0]
    assert_same_numbers(folder / "two", folder / "one")
    assert runs.result(folder / "two")["environment"]["processes"] == 2
    assert len(RunDirectory(folder / "two").event_files()) == 1  # only the first one writes


def test_a_run_of_one_goes_on_with_two(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    assert statuses(found["one stopped"]) == [0, 0]
    assert "the number of processes changed from" in found["one stopped"][0]["out"]
    assert_same_numbers(folder / "one stopped", folder / "one")


def test_a_run_of_two_goes_on_with_one(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """A signal that the second one alone hears stops both at the same step; the state is of both."""
    assert statuses(found["two stopped"]) == [143, 143]
    saved = RunDirectory(folder / "two stopped").read_state()
    assert saved.training["h"].shape[1] == 4
    assert saved.progress.epoch * STEPS + saved.progress.step == STOP + 1 - EVALUATED
    assert train.main(resumed(folder, "two stopped")) == 0
    assert_same_numbers(folder / "two stopped", folder / "one")


def test_the_same_number_goes_on_exactly(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """With dropout in all its places: to the bit, in training and in validation."""
    for stopped in ("dropped, stopped", "in validation"):
        assert statuses(found[stopped]) == [143, 143]
    for whole in ("dropped", "dropped, resumed", "in validation, resumed"):
        assert statuses(found[whole]) == [0, 0]
    for run in ("again", "valid"):
        assert_equal_runs(folder / run, folder / "dropped")


def test_each_draws_masks_of_its_own(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    first, second = final_state(folder / "dropped")["training.torch.generator"]
    assert (first != second).any()
    assert train.main(resumed(folder, "to one")) == 0
    assert final_state(folder / "to one")["training.torch.generator"].ndim == 1


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("indivisible", r"--batch-size 5 cannot be dealt out to 2 processes.*5 = 2 x 2 \+ 1; choose 4 or 6"),
        ("other text", r"rank 1 of 2 \(on .*\) has another corpus .* than rank 0"),
        ("no text", r"rank 1 of 2 \(on .*\): .*missing"),
        ("other rate", r"rank 1 of 2 \(on .*\) has another learning_rate than rank 0 .*: 0.5, not 1.0"),
        ("other commit", r"rank 1 of 2 \(on .*\) has another commit than .*: 0123abc, not the same"),
        ("there already", r"the run directory .* exists"),
    ],
)
def test_what_cannot_be_trained_together_is_refused_on_all(
    case: str, sentence: str, folder: Path, found: dict[str, list[dict[str, Any]]]
) -> None:
    first, second = found[case]
    assert statuses([first, second]) == [2, 2]
    assert re.search(sentence, first["error"])
    if case != "no text":
        assert second["error"] == first["error"]
    assert not (folder / "no").exists()


def test_a_batch_for_each_device(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    first, _ = found["per device"]
    assert "--batch-size-per-device 2 on 2 devices is --batch-size 4" in first["out"]
    assert "--learning-rate stays as it is" in first["out"]
    assert RunDirectory(folder / "per device").read_config().hyperparameters.batch_size == 4


# With a launcher: three processes start for each of these.

DEVICES = (sys.executable, "-m", "ptb_lm.train", "--devices", "2")


def test_who_is_killed_ends_all_and_is_named(folder: Path, tmp_path: Path) -> None:
    text, run = folder / "text", tmp_path / "run"
    status, _ = kill_ranks.trained_and_killed(text, run, *DEVICES, rank=1, epoch=2)
    said = kill_ranks.log(run).read_text()
    assert status == 1, said
    assert "rank 1 of 2 has ended or does not answer; continue with: python -m ptb_lm.train --resume" in said
    assert "rank 1 of 2 was ended by SIGKILL" in said
    assert "Traceback" not in said
    saved = RunDirectory(run).read_state().progress
    assert saved.epoch >= 1  # what --resume goes on from


def test_torchrun_starts_the_killed_again_and_they_go_on(
    folder: Path, found: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Ten times: python scripts/kill_ranks.py."""
    text, run = folder / "text", tmp_path / "run"
    status, _ = kill_ranks.trained_and_killed(text, run, rank=random.randrange(2), epoch=2)
    said = kill_ranks.log(run).read_text()
    assert status == 0, said
    assert "continues in epoch" in said
    assert statuses(found["in peace"]) == [0, 0]
    assert_equal_runs(run, folder / "in peace")


def test_a_signal_to_the_launcher_saves_once(folder: Path, tmp_path: Path) -> None:
    text, run = folder / "text", tmp_path / "run"
    process = kill_ranks.start(text, run, *DEVICES)
    kill_ranks.wait_for_epoch(process, run, 1)
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    said = kill_ranks.log(run).read_text()
    assert said.count("SIGTERM: saved; continue with:") == 1
    assert said.count("SIGTERM") == 1
    assert not (run / "result.json").exists()
    assert train.main(["--resume", str(run), "--epochs", str(kill_ranks.EPOCHS)]) == 0
