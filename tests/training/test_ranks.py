"""Several processes train one run: the same numbers as one, one run directory, stops, faults."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kill_ranks
import numpy as np
import pytest
import rank_program
import runs
import together
from runs import assert_equal_runs, final_state, untimed_rows
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from ptb_lm import train
from ptb_lm.common.errors import UserError
from ptb_lm.model import ranks as model_ranks
from ptb_lm.torch_backend import launcher
from ptb_lm.training import launch
from ptb_lm.training.interrupt import StopRequest
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

PLAIN = ("--precision", "fp64", "--average-epochs", "0.5")
DROPPED = ("--keep-prob", "0.7", "--embedding-keep-prob", "0.8", "--recurrent-keep-prob", "0.8")
# What scripts/kill_ranks.py trains, but for the last epochs.
SHORTER = [*kill_ranks.FLAGS, "--epochs", "6"]
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
        patch.setattr(launch, "StopRequest", lambda **_: rank_program.StopAfter(STOP))
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
        "other sums": {"arguments": arguments(folder, "no"), "sends": {"1": "bf16"}},
        "other commit": {"arguments": arguments(folder, "no"), "commit": {"1": "0123abc"}},
        "there already": {"arguments": arguments(folder, "one")},
        "in peace": {
            "arguments": [*("--data", str(folder / "text"), "--run-dir", str(folder / "in peace")), *SHORTER]
        },
        "per device": {
            "arguments": [
                *("--data", str(folder / "text"), "--run-dir", str(folder / "per device"), "--epochs", "1"),
                *("--hidden-size", "6", "--num-steps", "5", "--device", "cpu"),
                *("--batch-size-per-device", "2"),
            ]
        },
    }
    # As torchrun starts them: an agent does not count a restart that another machine caused.
    for name, run, count, job, *more in (
        ("begun", "restarted", 0, "this"),
        ("restarted on one", "restarted", 1, "this"),
        ("restarted by another", "restarted", 1, "other"),
        ("restarted, overwritten", "restarted", 1, "other", "--overwrite"),
    ):
        counts = {"TORCHELASTIC_MAX_RESTARTS": "1", "TORCHELASTIC_RUN_ID": job}
        cases[name] = {
            "arguments": arguments(folder, run, *more),
            "environment": [{**counts, "TORCHELASTIC_RESTART_COUNT": str(n)} for n in (0, count)],
        }
    cases["begun"]["stop"] = (0, 10)
    cases["restarted on one"]["stop"] = (0, 10)
    cases["restarted, overwritten"]["stop"] = (0, 10)
    cases["late"] = {"seconds": 0.4}  # the last: the group ends with it
    of_ranks = together.done_together(2, "torch", list(cases.values()))
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
    again = f"python -m ptb_lm.train --resume '{folder / 'two stopped'}'"
    assert f"SIGTERM: saved; continue with the same launcher: {again}\n" in found["two stopped"][0]["out"]
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
        ("indivisible", r"--batch-size 5 is not divisible by 2 processes \(5 = 2 x 2 \+ 1\); use 4 or 6"),
        ("other text", r"rank 1 of 2 \(on .*\) has another corpus .* than rank 0"),
        ("no text", r"rank 1 of 2 \(on .*\): .*missing"),
        ("other rate", r"rank 1 of 2 \(on .*\) has another learning_rate than rank 0 .*: 0.5, not 1.0"),
        ("other sums", r"rank 1 of 2 \(on .*\) has another reduce_precision than .*: bf16, not fp32"),
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


def test_who_is_started_again_goes_on_with_the_run_that_its_torchrun_began(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    """Though one of the two does not count the restart; and never with a run of an earlier torchrun."""
    assert statuses(found["begun"]) == statuses(found["restarted on one"]) == [143, 143]
    assert "continues in epoch 1, step 12" in found["restarted on one"][0]["out"]
    assert statuses(found["restarted by another"]) == [2, 2]
    assert re.search("the run directory .* exists", found["restarted by another"][0]["error"])
    assert statuses(found["restarted, overwritten"]) == [143, 143]
    assert "continues in" not in found["restarted, overwritten"][0]["out"]


def test_who_is_late_is_waited_for_except_in_a_step(found: dict[str, list[dict[str, Any]]]) -> None:
    first, _ = found["late"]
    assert first["folder"] == first["first step"] == ""
    assert first["second step"]  # what was noticed


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGTERM, ""), (signal.SIGINT, "\nSIGINT: finishing the step and saving\n")]
)
def test_a_signal_that_comes_twice_does_not_end_one_of_several(
    number: signal.Signals, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The launcher hands on what each has heard already; SIGTERM may mean that another process failed."""
    with StopRequest(together=True) as stop:
        for each in (number, number, signal.SIGTERM):
            signal.raise_signal(each)
        assert stop.signal_number == number
    assert capfd.readouterr().err == said


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--devices", "1000"), "--batch-size 20 is too small for 1000 processes; use at most 20 of them"),
        (
            ("--devices", "3"),
            "--batch-size 20 is not divisible by 3 processes (20 = 3 x 6 + 2); use 18 or 21",
        ),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused_before_anything_is_started(
    flags: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launcher, "start", lambda *_, **__: pytest.fail("something was started"))
    assert train.main(["--data", "synthetic", "--config", "small", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_the_launcher_leaves_signals_as_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    command = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    assert launcher.start(command, processes=1, device="cpu") == 3
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_rendezvous_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Any) -> Any:
        raise RendezvousConnectionError("no connection\nof any kind")

    monkeypatch.setattr(launcher, "get_rendezvous_handler", refused)
    with pytest.raises(UserError, match=r"^the 2 processes could not be started: no connection$"):
        launcher.start(["true"], processes=2, device="cpu")


@pytest.mark.parametrize(
    ("first", "more", "sent"),
    [
        ([], ["SIGTERM"], ["SIGTERM", "SIGTERM"]),  # a process failed; nobody has asked for anything before
        ([], ["SIGTERM", "SIGTERM"], ["SIGTERM", "SIGTERM", "SIGKILL"]),
        (["SIGTERM"], ["SIGTERM"], ["SIGTERM", "SIGKILL"]),
        (["SIGINT"], ["SIGTERM", "SIGINT"], ["SIGINT", "SIGINT", "SIGKILL"]),
    ],
)
def test_the_launcher_kills_only_at_a_repeated_signal(
    first: list[str], more: list[str], sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals come while it waits for the processes; this stands in for the wait."""
    coming, found = iter(more), []

    def waited_for(_: Any, number: signal.Signals, **__: Any) -> None:
        found.append(number.name)
        for name in coming:
            raise SignalException("again", sigval=signal.Signals[name])

    monkeypatch.setattr(LocalElasticAgent, "_shutdown", waited_for)
    agent = launcher._Agent.__new__(launcher._Agent)  # without processes
    agent._shutdown(*(signal.Signals[name] for name in first), timeout=30)
    assert found == sent


# With a launcher: three processes start for each of these.

DEVICES = (sys.executable, str(Path(sys.executable).with_name("ptb-lm")), "train", "--devices", "2")


def test_who_is_killed_ends_all_and_is_named(folder: Path, tmp_path: Path) -> None:
    text, run = folder / "text", tmp_path / "run"
    status, killed_after = kill_ranks.trained_and_killed(text, run, *DEVICES, rank=1, epoch=2.5)
    said = kill_ranks.log(run).read_text()
    assert status == 1, said
    assert killed_after % 1 == 0.5
    again = f"ptb-lm train --resume {run} --devices 2\n"
    assert f"rank 1 of 2 has ended or does not answer; continue with: {again}" in said
    assert "rank 1 of 2 was ended by SIGKILL" in said
    assert "Traceback" not in said
    saved = RunDirectory(run).read_state().progress
    assert saved.epoch >= 1  # what --resume goes on from


def test_the_launcher_names_who_was_killed_if_no_other_can(folder: Path, tmp_path: Path) -> None:
    """The survivor is stopped, as one that waits in gloo and does not notice; it would be killed later."""
    run = tmp_path / "run"
    process = kill_ranks.start(folder / "text", run, *DEVICES)
    kill_ranks.wait_for_epoch(process, run, 1)
    ranks = kill_ranks.ranks(process.pid)
    os.kill(ranks[0], signal.SIGSTOP)
    os.kill(ranks[1], signal.SIGKILL)
    while Path(f"/proc/{ranks[1]}").exists():  # until the launcher has noticed
        time.sleep(0.05)
    os.kill(ranks[0], signal.SIGKILL)
    assert process.wait() == 1
    said = kill_ranks.log(run).read_text()
    again = f"ptb-lm train --resume {run} --devices 2\n"
    assert f"rank 1 of 2 has ended or does not answer; continue with: {again}" in said
    assert said.count("continue with") == said.count("does not answer") == 1
    assert "Traceback" not in said


def test_who_is_silent_is_named_and_the_same_signal_twice_ends_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process does not react to SIGTERM, so the launcher still waits when the signals arrive."""
    text, run = tmp_path / "text", tmp_path / "run"
    shutil.copytree(folder / "text", text)
    train_text = (text / "train.txt").read_text()
    (text / "train.txt").write_text(100 * train_text)  # so that the stop is in the first epoch's steps
    monkeypatch.setenv(model_ranks.STEP_TIMEOUT, "3")
    process = kill_ranks.start(text, run, *DEVICES, "--log-interval", "0.1")
    wait_until_said("epoch 1/", run, process)
    ranks = kill_ranks.ranks(process.pid)
    os.kill(ranks[1], signal.SIGSTOP)
    wait_until_said("rank 1 of 2 did not answer for", run, process)
    for number in (signal.SIGINT, signal.SIGTERM):  # another signal changes nothing
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    process.send_signal(signal.SIGINT)
    # 1 if the launcher had noticed before the first signal that a process had failed.
    assert process.wait() in (128 + signal.SIGINT, 1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    said = kill_ranks.log(run).read_text()
    assert re.search(r"for \d+ seconds; continue with: ptb-lm train --resume", said)
    assert "Traceback" not in said
    assert_goes_on(run, monkeypatch)


def assert_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continue a run with one process, for a few steps."""
    monkeypatch.setattr(launch, "StopRequest", lambda **_: rank_program.StopAfter(3))
    assert train.main(["--resume", str(run)]) == 143


def wait_until_said(words: str, run: Path, process: "subprocess.Popen[bytes]") -> None:
    while words not in kill_ranks.log(run).read_text():
        assert process.poll() is None, kill_ranks.log(run).read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("variable", model_ranks.DEFAULT_TIMEOUTS)
@pytest.mark.parametrize("given", ["0", "-1", "soon", "inf"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(
    variable: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, given)
    with pytest.raises(UserError, match=rf"^{variable} must be a number above 0, not '{given}'$"):
        model_ranks.timeout(variable)


def test_torchrun_starts_the_killed_again_and_they_go_on(
    folder: Path,
    found: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On two nodes, an agent and a process each. On one, ten times: python scripts/kill_ranks.py."""
    monkeypatch.setattr(kill_ranks, "FLAGS", SHORTER)
    text, run = folder / "text", tmp_path / "run"
    agents = kill_ranks.start_nodes(text, run)
    kill_ranks.wait_for_epoch(agents[0], run, 2)
    here = kill_ranks.ranks(random.choice(agents).pid)
    os.kill(next(iter(here.values())), signal.SIGKILL)
    statuses_of_agents = [agent.wait() for agent in agents]
    said = kill_ranks.log(run).read_text()
    assert statuses_of_agents == [0, 0], said
    assert "continues in epoch" in said
    assert statuses(found["in peace"]) == [0, 0]
    assert_equal_runs(run, folder / "in peace")


def test_nohup_protects_all_from_sighup_and_another_signal_to_all_saves_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, run = folder / "text", tmp_path / "run"
    process = kill_ranks.start(text, run, "nohup", *DEVICES)
    kill_ranks.wait_for_epoch(process, run, 1)
    everyone = [*kill_ranks.ranks(process.pid).values(), process.pid]
    assert len(everyone) == 3
    for pid in everyone:
        os.kill(pid, signal.SIGHUP)
    kill_ranks.wait_for_epoch(process, run, kill_ranks.epochs(run) + 2)
    assert process.poll() is None, kill_ranks.log(run).read_text()
    for pid in everyone:  # as a scheduler does, which signals all of a job
        os.kill(pid, signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    said = kill_ranks.log(run).read_text()
    assert said.count("SIGTERM: saved; continue with:") == 1
    assert said.count("SIGTERM") == 1
    assert not (run / "result.json").exists()
    assert_goes_on(run, monkeypatch)
