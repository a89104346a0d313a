"""Several processes train one run: the same numbers as one, one run directory, stops, faults."""

import contextlib
import functools
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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
from ptb_lm.common import control_groups, host, signals
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.common.program import CONTINUATION
from ptb_lm.common.signals import StopRequest
from ptb_lm.model import ranks as model_ranks
from ptb_lm.torch_backend import launcher
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

PLAIN = ("--precision", "fp64", "--average-epochs", "0.5")
DROPPED = ("--keep-prob", "0.7", "--embedding-keep-prob", "0.8", "--recurrent-keep-prob", "0.8")
PREPARED = ("--lowercase", "--min-count", "1")  # changes no word of the text
# What scripts/kill_ranks.py trains, but for the last epochs.
SHORTER = [*kill_ranks.FLAGS, "--epochs", "4"]
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


def resume_arguments(folder: Path, run: str) -> list[str]:
    return ["--resume", str(folder / run)]


@pytest.fixture(scope="session")
def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of each case in two processes; the runs of one process that they need are trained."""
    assert train.main(arguments(folder, "one")) == 0
    with rank_program.stopped_at_question(STOP):
        assert train.main(arguments(folder, "one stopped")) == 143
    cases: dict[str, dict[str, Any]] = {
        "two": {"arguments": arguments(folder, "two")},
        "one stopped": {"arguments": resume_arguments(folder, "one stopped")},
        "two stopped": {"arguments": arguments(folder, "two stopped"), "stop": (1, STOP)},
        "dropped": {"arguments": arguments(folder, "dropped", *DROPPED)},
        "dropped, stopped": {"arguments": arguments(folder, "again", *DROPPED), "stop": (1, STOP)},
        "dropped, resumed": {"arguments": resume_arguments(folder, "again")},
        "in validation": {"arguments": arguments(folder, "valid", *DROPPED), "stop": (0, 36)},
        "in validation, resumed": {"arguments": resume_arguments(folder, "valid")},
        "to one": {"arguments": arguments(folder, "to one", *DROPPED), "stop": (0, STOP)},
        "indivisible": {"arguments": arguments(folder, "no", "--batch-size", "5")},
        "other text": {"arguments": [arguments(folder, "no", text=text) for text in ("text", "other")]},
        "no text": {"arguments": [arguments(folder, "no", text=text) for text in ("text", "missing")]},
        "other rate": {
            "arguments": [arguments(folder, "no", "--learning-rate", rate) for rate in ("1.0", "0.5")]
        },
        "prepared": {
            "arguments": [arguments(folder, "no", *PREPARED), arguments(folder, "no")],
        },
        "not prepared": {
            "arguments": [arguments(folder, "no"), arguments(folder, "no", *PREPARED)],
        },
        "other folders": {"arguments": [arguments(folder, "no"), resume_arguments(folder, "one")]},
        "no folder": {
            "arguments": [arguments(folder, "no"), ["--data", str(folder / "text"), *runs.FLAGS, *PLAIN]]
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
            ],
            "commit": {"1": None},  # as where there is no git
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
    results = together.done_together(2, "torch", list(cases.values()))
    return {name: list(pair) for name, pair in zip(cases, zip(*results, strict=True), strict=True)}


def statuses(results: list[dict[str, Any]]) -> list[int]:
    return [each["status"] for each in results]


def assert_same_numbers(run: Path, expected: Path) -> None:
    """Rows, result and weights equal those of one process, but for the order of sums."""
    for row, expected_row in zip(untimed_rows(run), untimed_rows(expected), strict=True):
        assert row == pytest.approx(expected_row, rel=1e-10)
    for key in ("test_perplexity", "valid_perplexity", "final_test_perplexity", "best_epoch"):
        assert runs.result(run)[key] == pytest.approx(runs.result(expected)[key], rel=1e-10)
    state, expected_state = final_state(run), final_state(expected)
    for name in (name for name in expected_state if name.startswith(("weights.", "averages.", "training.h"))):
        np.testing.assert_allclose(state[name], expected_state[name], atol=1e-10, err_msg=name)


def test_two_processes_train_what_one_trains(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    assert statuses(found["two"]) == [0, 0]
    assert_same_numbers(folder / "two", folder / "one")
    assert runs.result(folder / "two")["environment"]["processes"] == 2
    assert len(RunDirectory(folder / "two").event_files()) == 1  # only the first one writes


def test_two_processes_resume_a_run_of_one(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    assert statuses(found["one stopped"]) == [0, 0]
    assert "processes changed" in found["one stopped"][0]["out"]
    assert_same_numbers(folder / "one stopped", folder / "one")


def test_one_process_resumes_a_run_of_two(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """A signal to the second process alone stops both at the same step; the state is that of both."""
    assert statuses(found["two stopped"]) == [143, 143]
    command = f"python -m ptb_lm.train --resume '{folder / 'two stopped'}' --device cpu"
    assert re.search(f"SIGTERM: .* launcher: {re.escape(command)}\n", found["two stopped"][0]["out"])
    saved = RunDirectory(folder / "two stopped").read_state()
    assert saved.training["h"].shape[1] == 4
    assert saved.progress.epoch * STEPS + saved.progress.step == STOP + 1 - EVALUATED
    assert train.main(resume_arguments(folder, "two stopped")) == 0
    assert_same_numbers(folder / "two stopped", folder / "one")


def test_the_same_number_of_processes_resumes_to_the_bit(
    folder: Path, found: dict[str, list[dict[str, Any]]]
) -> None:
    """Dropout is in all its places; the stop is in training and in validation."""
    for stopped in ("dropped, stopped", "in validation"):
        assert statuses(found[stopped]) == [143, 143]
    for whole in ("dropped", "dropped, resumed", "in validation, resumed"):
        assert statuses(found[whole]) == [0, 0]
    for run in ("again", "valid"):
        assert_equal_runs(folder / run, folder / "dropped")


def test_each_rank_has_its_own_stream_of_masks(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    first, second = final_state(folder / "dropped")["training.torch.generator"]
    assert (first != second).any()
    assert train.main(resume_arguments(folder, "to one")) == 0
    assert final_state(folder / "to one")["training.torch.generator"].ndim == 1


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("indivisible", ["--batch-size 5", "2 processes", "use 1 or 5", "4 or 6 rows"]),
        ("other text", ["rank 1 of 2", "corpus", "rank 0"]),
        ("no text", ["rank 1 of 2", "missing"]),
        ("other rate", ["rank 1 of 2", "learning_rate", "rank 0", ": 0.5, not 1.0"]),
        ("prepared", ["rank 1 of 2", "preparation", ": none, not {"]),
        ("not prepared", ["rank 1 of 2", "preparation", "}, not none"]),
        ("other folders", ["rank 1 of 2", "--init-from", ": --resume, not --run-dir"]),
        ("no folder", ["rank 1 of 2", "--init-from", ": none, not --run-dir"]),
        ("other sums", ["rank 1 of 2", "reduce_precision", ": bf16, not fp32"]),
        ("other commit", ["rank 1 of 2", "commit", ": 0123abc, not the same"]),
        ("there already", ["run directory"]),
    ],
)
def test_a_contradiction_between_ranks_is_refused_on_all(
    case: str, parts: list[str], folder: Path, found: dict[str, list[dict[str, Any]]]
) -> None:
    first, second = found[case]
    assert statuses([first, second]) == [2, 2]
    assert [part for part in parts if part not in first["error"]] == []
    if case != "no text":
        assert second["error"] == first["error"]
    assert not (folder / "no").exists()


def test_a_batch_size_per_device_is_multiplied(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    first, _ = found["per device"]
    assert statuses(found["per device"]) == [0, 0], "an unknown commit is no other one"
    assert "--batch-size-per-device 2" in first["out"]
    assert "--batch-size 4" in first["out"]
    assert "--learning-rate" in first["out"]
    assert "2 processes, 2 rows of the batch each\n" in first["out"]
    assert RunDirectory(folder / "per device").read_config().hyperparameters.batch_size == 4


def test_a_restart_resumes_the_run_of_the_same_torchrun(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    """Even if one of the two does not count the restart; a run of an earlier torchrun is never resumed."""
    assert statuses(found["begun"]) == statuses(found["restarted on one"]) == [143, 143]
    assert "epoch 1, step 12" in found["restarted on one"][0]["out"]
    assert statuses(found["restarted by another"]) == [2, 2]
    assert "run directory" in found["restarted by another"][0]["error"]
    assert statuses(found["restarted, overwritten"]) == [143, 143]
    assert "continues" not in found["restarted, overwritten"][0]["out"]


def test_ranks_wait_for_a_late_one_except_in_a_step(found: dict[str, list[dict[str, Any]]]) -> None:
    first, _ = found["late"]
    assert first["folder"] == first["first step"] == ""
    assert first["second step"]  # an error


@pytest.mark.parametrize(("number", "message"), [(signal.SIGTERM, ""), (signal.SIGINT, "SIGINT: ")])
def test_a_repeated_signal_does_not_end_one_of_several_processes(
    number: signal.Signals, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The launcher hands on signals that each process has had; SIGTERM may mean that another one failed."""
    with StopRequest(is_one_of_several=True) as stop:
        for each in (number, number, signal.SIGTERM):
            signal.raise_signal(each)
        assert stop.signal_number == number
    err = capfd.readouterr().err
    assert err.strip().startswith(message)
    assert len(err.splitlines()) == (2 if message else 0)  # an empty line, and once the message


@pytest.mark.parametrize(
    ("devices", "parts"),
    [("1000", ["--batch-size 20", "1000 processes"]), ("3", ["--batch-size 20", "3 processes", "18 or 21"])],
)
def test_an_indivisible_batch_is_refused_before_processes_start(
    devices: str,
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launcher, "start", lambda *_, **__: pytest.fail("a process was started"))
    assert train.main(["--data", "synthetic", "--config", "small", "--devices", devices]) == 2
    err = capsys.readouterr().err
    assert [part for part in parts if part not in err] == []


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_launcher_restores_what_it_sets_and_leaves_no_file(
    in_thread: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a thread other than the first it sets no signal handlers: Python refuses that."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(logging.root.manager, "disable", logging.DEBUG)

    def settings() -> list[Any]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return [*handlers, dict(os.environ), logging.root.manager.disable]

    before = settings()
    command = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    start = functools.partial(launcher.start, command, processes=1, device="cpu")
    with ThreadPoolExecutor(1) as threads:
        assert (threads.submit(start).result() if in_thread else start()) == 3
    assert settings() == before
    assert not list(tmp_path.iterdir())


def test_the_launcher_shares_out_a_container_s_quota(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host, "cores", lambda: set(range(64)))
    monkeypatch.setattr(control_groups, "cpu_quota", lambda: 7.5)
    command = [sys.executable, "-S", "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    assert launcher.start(command, processes=2, device="cpu") == 0
    assert capfd.readouterr().out.split() == ["3", "3"]


def test_the_launcher_tells_of_a_signal_that_has_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher._report_failures({1: -40}, [1], 2, advice="") == 1
    assert capsys.readouterr().err == "rank 1 of 2 was ended by signal 40\n"


@pytest.mark.parametrize(
    ("codes", "ended", "status"),
    [
        ({0: 143, 1: -9}, [1], 1),  # the first one was still importing as the launcher ended it
        ({0: -15, 1: -9}, [1], 1),
        ({0: 143, 1: 2}, [1], 2),
        ({0: 2, 1: 2}, [0, 1], 2),
    ],
)
def test_the_launcher_s_own_signal_is_not_reported(
    codes: dict[int, int], ended: list[int], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher._report_failures(codes, ended, 2, advice="") == status
    assert ("rank 1" in capsys.readouterr().err) == (codes[1] < 0)


# Ranks whose launcher is killed: each writes that SIGTERM came.
ORPHANED = """
import os, signal, sys
from pathlib import Path
from ptb_lm.training import processes
from ptb_lm.torch_backend import launcher

if "RANK" not in os.environ:
    launcher.start([sys.executable, *sys.orig_argv[1:]], processes=2, device="cpu")
file = Path(sys.argv[1], os.environ["RANK"])
signal.alarm(180)
signal.signal(signal.SIGTERM, lambda *_: file.write_text("ended") and os._exit(1))
processes._end_with_launcher()
file.write_text("ready")
while True:
    signal.pause()
"""


def test_ranks_end_with_a_killed_launcher(tmp_path: Path) -> None:
    files = [tmp_path / "0", tmp_path / "1"]

    def wait_for(words: str) -> None:
        end = time.monotonic() + 120
        while not all(file.exists() and file.read_text() == words for file in files):
            assert time.monotonic() < end
            time.sleep(0.05)

    with subprocess.Popen([sys.executable, "-c", ORPHANED, str(tmp_path)]) as process:
        wait_for("ready")
        process.kill()
    wait_for("ended")


def test_a_failed_rendezvous_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> Any:
        raise RendezvousConnectionError("no connection\nof any kind")

    monkeypatch.setattr(launcher, "get_rendezvous_handler", refuse)
    with pytest.raises(UserError, match=r"processes.*: no connection$"):
        launcher.start(["true"], processes=2, device="cpu")


@pytest.mark.parametrize(
    ("first", "more", "sent", "seconds"),
    [
        ([], ["SIGTERM"], ["SIGTERM", "SIGTERM"], 0),  # a process failed; no signal came before
        ([], ["SIGTERM", "SIGTERM"], ["SIGTERM", "SIGTERM", "SIGKILL"], 0),
        (["SIGTERM"], ["SIGTERM"], ["SIGTERM", "SIGKILL"], 0),
        (["SIGTERM"], ["SIGTERM"], ["SIGTERM", "SIGTERM"], 60),
        (["SIGHUP"], ["SIGHUP"], ["SIGHUP", "SIGHUP"], 0),
        (["SIGINT"], ["SIGTERM", "SIGINT"], ["SIGINT", "SIGINT", "SIGKILL"], 0),
    ],
)
def test_the_launcher_kills_only_at_a_repeated_signal(
    first: list[str], more: list[str], sent: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals come while it waits for the processes; `wait` stands in for that."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", seconds)
    coming, found = iter(more), []

    def wait(_: Any, number: signal.Signals, **__: Any) -> None:
        found.append(number.name)
        for name in coming:
            raise SignalException("again", sigval=signal.Signals[name])

    monkeypatch.setattr(LocalElasticAgent, "_shutdown", wait)
    agent = launcher._Agent.__new__(launcher._Agent)  # without processes
    agent._shutdown(*(signal.Signals[name] for name in first), timeout=30)
    assert found == sent


# A rank that dies, and another one that ends when it is told to.
KILLED = """
import os, signal, sys
from pathlib import Path
continuation = Path(os.environ[sys.argv[1]])
if os.environ["RANK"] == "1":
    while not continuation.read_text():
        pass
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda *_: EXIT)
continuation.write_text("continue so")
signal.pause()
"""


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ("os._exit(1)", ""),  # it says itself why
        # As now and then one in gloo that does not notice: it is killed later.
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 2 has ended or does not answer; continue so"),
    ],
)
def test_the_launcher_names_a_killed_rank_and_how_to_continue_if_no_other_can(
    end: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-S", "-c", KILLED.replace("EXIT", end), CONTINUATION]
    with pytest.raises(LostRankError, match=f"^{problem}$") if problem else contextlib.nullcontext():
        assert launcher.start(command, processes=2, device="cpu") == 1
    assert "rank 1 of 2 was ended by SIGKILL\n" in capsys.readouterr().err


# With a launcher: three processes start for each of these.

DEVICES = (sys.executable, str(Path(sys.executable).with_name("ptb-lm")), "train", "--devices", "2")


def test_a_silent_rank_is_named_and_a_repeated_signal_ends_all(
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
    wait_until_said("rank 1 of 2 did not answer", run, process)
    for number in (signal.SIGINT, signal.SIGTERM):  # another signal changes nothing
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
    process.send_signal(signal.SIGINT)
    # 1 if the launcher had noticed before the first signal that a process had failed. It waits for 30 s.
    assert process.wait(15) in (128 + signal.SIGINT, 1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    said = kill_ranks.log(run).read_text()
    assert re.search(r"\d+ seconds; .*: ptb-lm train --resume", said)
    assert "Traceback" not in said
    assert_resumes(run)


def assert_resumes(run: Path) -> None:
    """Continue a run with one process, for a few steps."""
    with rank_program.stopped_at_question(3):
        assert train.main(["--resume", str(run)]) == 143


def wait_until_said(words: str, run: Path, process: "subprocess.Popen[bytes]") -> None:
    while words not in kill_ranks.log(run).read_text():
        assert process.poll() is None, kill_ranks.log(run).read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("variable", model_ranks.DEFAULT_TIMEOUTS)
@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=rf"^{variable} .*number.* '{value}'$"):
        model_ranks.timeout(variable)


def test_torchrun_restarts_killed_processes_and_they_resume(
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
    assert "continues" in said
    assert statuses(found["in peace"]) == [0, 0]
    assert_equal_runs(run, folder / "in peace")


def test_nohup_protects_all_from_sighup_and_sigterm_to_all_saves_once(folder: Path, tmp_path: Path) -> None:
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
    assert said.count("SIGTERM: saved") == 1
    assert said.count("SIGTERM") == 1
    assert not (run / "result.json").exists()
    assert_resumes(run)
