"""Processes that torchrun and TF_CONFIG start: which of both counts, and what an error names."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
import together
from support import installed

from ptb_lm import train
from ptb_lm.common.errors import UserError
from ptb_lm.common.program import CONTINUATION, TYPED_COMMAND
from ptb_lm.model import backend
from ptb_lm.model.choice import Choice
from ptb_lm.model.presets import SMALL
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend import launcher
from ptb_lm.torch_backend import ranks as torch_ranks
from ptb_lm.training import processes
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config


def launch(monkeypatch: pytest.MonkeyPatch, *, torchrun: int = 0, tf_config: int = 0) -> None:
    """Set the variables of so many processes; 0: none of them."""
    for name in (*processes.TORCHRUN_VARIABLES, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    if torchrun:
        (port,) = together.free_ports(1)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in {"RANK": "0", "WORLD_SIZE": str(torchrun), **address}.items():
            monkeypatch.setenv(name, value)
    if tf_config:
        monkeypatch.setenv("TF_CONFIG", together.tf_config(range(tf_config), 0))


WHOLE_PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("torchrun", "tf_config", "expected"),
    [
        (0, 0, (1, "torchrun")),
        (0, 1, (1, "torchrun")),
        (0, 2, (2, "TF_CONFIG")),
        (1, 2, (2, "TF_CONFIG")),
        (2, 0, (2, "torchrun")),
        (2, 1, (2, "torchrun")),
        (2, 2, (2, "torchrun")),
    ],
)
def test_the_launcher_with_more_processes_counts(
    torchrun: int, tf_config: int, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(monkeypatch, torchrun=torchrun, tf_config=tf_config)
    assert processes.find_launcher()[::-1] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("RANK", value) for value in ("2", "-1", "first", "0.5")),
        *(("WORLD_SIZE", value) for value in ("0", "-2", "two")),
        *(("LOCAL_RANK", value) for value in ("2", "-1", "first")),
        *(("LOCAL_WORLD_SIZE", value) for value in ("0", "3")),
        *(("MASTER_PORT", value) for value in ("0", "65536", "http")),
    ],
)
def test_a_place_that_cannot_be_is_refused_at_once(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(monkeypatch, torchrun=2)
    monkeypatch.setenv(name, value)
    assert runs.refusal(capsys, train, "--data", "synthetic").startswith(f"{name} must be ")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"WORLD_SIZE": "2"}, None),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        *(
            ({name: value for name, value in WHOLE_PLACE.items() if name != missing}, missing)
            for missing in WHOLE_PLACE
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
    ],
)
def test_a_forgotten_variable_does_not_make_each_process_train_alone(
    given: dict[str, str], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(monkeypatch)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{problem} is not set") if problem else contextlib.nullcontext():
        assert processes.find_launcher()[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "number", "framework"),
    [
        (0, signal.SIGINT, "torch"),
        (1, signal.SIGTERM, "torch"),
        pytest.param(1, signal.SIGINT, "tensorflow", marks=installed("tensorflow")),
    ],
)
def test_a_process_that_waits_for_others_hears_signals(
    rank: int, number: signal.Signals, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(monkeypatch, torchrun=2 * (framework == "torch"))
    if framework == "torch":
        monkeypatch.setenv("RANK", str(rank))
    else:
        monkeypatch.setenv("TF_CONFIG", together.tf_config(together.free_ports(2), rank))
    command = [sys.executable, "-m", "ptb_lm.train", "--data", "synthetic", "--framework", framework]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr
        for line in waiting.stderr:
            if " waits for " in line:
                break
        waiting.send_signal(number)
        try:
            _, said = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
    if framework == "torch":
        assert waiting.returncode == 128 + number
        assert ("interrupted" if number == signal.SIGINT else "ended by SIGTERM") in said
    else:  # it lets no code of Python run; the line before has said so
        assert waiting.returncode == -number


@pytest.mark.parametrize(("torchrun", "tf_config", "by"), [(2, 0, "torchrun"), (0, 2, "TF_CONFIG")])
@pytest.mark.parametrize(
    ("flags", "problem"),
    [(("--seeds", "1", "2"), "--seeds .* {};"), (("--devices", "3"), "--devices 3 .* 2 processes .* {}")],
)
def test_the_error_names_the_launcher(
    torchrun: int,
    tf_config: int,
    by: str,
    flags: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launch(monkeypatch, torchrun=torchrun, tf_config=tf_config)
    assert re.match(problem.format(by), runs.refusal(capsys, train, "--data", "synthetic", *flags))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, []),
        (UserError("a"), ["a"]),
        (OSError("b"), ["b"]),
        (MemoryError(), ["there is not enough memory"]),
        (RuntimeError("c"), []),
    ],
)
def test_a_rank_that_fails_tells_why_and_does_not_wait_for_what_others_never_finish(
    error: Exception | None, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, problems = list[bool](), list[str]()

    class OneOfTwo(Two):
        def report_failure(self, problem: str) -> bool:
            problems.append(problem)
            return True

        def leave(self, *, failed: bool = False) -> None:
            left.append(failed)

    launch(monkeypatch, torchrun=2)
    monkeypatch.setattr(torch_ranks, "join", lambda **_: OneOfTwo())
    monkeypatch.setattr(processes.signals, "answered_signal", None)
    with (
        contextlib.nullcontext() if error is None else pytest.raises(type(error)),
        processes.join({"device": "cpu"}),
    ):
        if error is not None:
            raise error
    assert left == [error is not None]
    assert problems == told


def test_a_flag_that_needs_another_is_refused_by_one_of_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def join(_: object) -> Iterator[Ranks]:
        with pytest.raises(UserError, match=needs):
            yield Two()
        raise UserError("told once")

    needs = "--overwrite needs --run-dir"
    monkeypatch.setattr(processes, "join", join)
    for started, told in ((0, needs), (2, "told once")):
        launch(monkeypatch, torchrun=started)
        assert runs.refusal(capsys, train, "--data", "synthetic", "--overwrite") == told


@pytest.mark.parametrize(
    ("torchrun", "more", "sentence"),
    [
        (0, {}, "--framework tensorflow"),
        (0, {"RANK": "0", "LOCAL_RANK": "x"}, "--framework tensorflow"),  # some of torchrun's variables
        (1, {}, "TF_CONFIG names 2 processes"),
    ],
)
def test_torch_does_not_train_alone_in_each_worker_of_tf_config(
    torchrun: int,
    more: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    launch(monkeypatch, torchrun=torchrun, tf_config=2)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    flags = ("--data", "synthetic", "--device", "cpu", "--run-dir", tmp_path / "run")
    assert sentence in runs.refusal(capsys, train, *flags)
    assert not (tmp_path / "run").exists()


def test_several_processes_continue_a_run_on_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a machine with a GPU they would count those that a run on the CPU does not need."""

    def refuse(*_: object, device: str, **__: object) -> None:
        raise UserError(device)

    monkeypatch.setattr(launcher, "start", refuse)
    monkeypatch.setattr(torch_ranks, "join", refuse)
    launch(monkeypatch, torchrun=2)
    RunDirectory(tmp_path).write_config(new_config({"device": "cpu"}))
    for flags, device in (({}, "cpu"), ({"device": "auto"}, "auto")):
        flag_values = {"resume": tmp_path, "devices": 2, **flags}
        with pytest.raises(UserError, match=f"^{device}$"):
            processes.start(flag_values, [])
        assert TYPED_COMMAND not in os.environ
        with pytest.raises(UserError, match=f"^{device}$"), processes.join(flag_values):
            pass


class Two(Ranks):
    """The place of the first of two processes."""

    size = 2


ROUNDED = Two()
ROUNDED.reduce_precision = "bf16"
TORCH, TENSORFLOW = (Choice.create(framework=name) for name in ("torch", "tensorflow"))


@pytest.mark.parametrize(
    ("by", "ranks", "devices", "choice", "start", "flags"),
    [
        ({}, SINGLE_PROCESS, None, TORCH, "", ""),
        ({}, SINGLE_PROCESS, 1, TENSORFLOW, "", ""),
        ({}, Ranks(2), 2, TENSORFLOW, "", " --devices 2"),
        ({"torchrun": 2}, Two(), 2, TORCH, "", " --devices 2"),  # as our own launcher starts them
        ({"torchrun": 2}, ROUNDED, 2, TORCH, "", " --devices 2 --reduce-precision bf16"),
        ({"torchrun": 2}, Two(), None, TORCH, " the same launcher", ""),
        ({"torchrun": 2}, Two(), None, Choice.create(device="cpu"), " the same launcher", " --device cpu"),
        ({"torchrun": 2}, ROUNDED, None, TORCH, " the same launcher", " --reduce-precision bf16"),
        ({"tf_config": 2}, Two(), None, TENSORFLOW, " the same TF_CONFIG", " --framework tensorflow"),
    ],
)
def test_a_stopped_run_is_continued_by_as_many(
    by: dict[str, int],
    ranks: Ranks,
    devices: int | None,
    choice: Choice,
    start: str,
    flags: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch(monkeypatch, **by)
    flag_values: dict[str, Any] = {} if devices is None else {"devices": devices}
    said = processes.how_to_continue(Path("a run"), flag_values, ranks, choice)
    assert said.startswith(f"continue with{start}: ")
    assert said.endswith(f" ptb_lm.train --resume 'a run'{flags}")


@pytest.mark.parametrize("more", [(), ("--devices", "1"), ("--framework", "tensorflow")])
def test_one_device_sends_no_gradients_that_could_be_rounded(
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    launch(monkeypatch)
    flags = ("--data", tmp_path / "missing", "--run-dir", tmp_path / "run", "--reduce-precision", "bf16")
    refused = runs.refusal(capsys, train, *flags, *more)
    assert refused.startswith("--reduce-precision bf16")


@pytest.mark.parametrize("flag", ["resume", "init_from"])
@pytest.mark.parametrize(("trained_by", "framework"), [("torch", "tensorflow"), ("tensorflow", "torch")])
def test_a_flag_changes_the_framework_of_init_from_alone(
    flag: str, trained_by: str, framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only processes of torch are to be started for several devices."""
    launch(monkeypatch)
    run = runs.write_run(tmp_path / "run", ["<eos>", "a"], framework=trained_by)
    flag_values = {flag: run, "devices": 2}
    assert processes.should_start(flag_values) == (trained_by == "torch")
    computes = framework if flag == "init_from" else trained_by
    assert processes.should_start({**flag_values, "framework": framework}) == (computes == "torch")


def test_no_device_is_left_out_in_silence() -> None:
    with pytest.raises(UserError, match="torch trains on one device"):
        backend.build(SMALL, {}, Choice.create(), Ranks(2))


def test_the_launcher_is_told_of_a_path_that_is_no_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CONTINUATION, str(tmp_path / "file"))
    processes.store_continuation(os.fsdecode(b"continue with: r\xff"), Two())
    assert (tmp_path / "file").read_bytes() == b"continue with: r\xff"


def test_a_malformed_tf_config_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(monkeypatch, torchrun=2)
    monkeypatch.setenv("TF_CONFIG", "no JSON")
    assert runs.refusal(capsys, train, "--data", "synthetic").startswith("TF_CONFIG ")
