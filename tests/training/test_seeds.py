"""Runs of several seeds: each is as if it were alone; their mean; how they go on."""

import contextlib
import errno
import gc
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import runs

from ptb_lm import train
from ptb_lm.common import files, signals
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.common.signals import StopRequest
from ptb_lm.model.choice import MAX_SEED, Choice
from ptb_lm.model.ranks import Ranks
from ptb_lm.model.rules import MachineFacts
from ptb_lm.torch_backend import runtime
from ptb_lm.training import run_flags, run_folders, seed_runs, seeds, trainer
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.tensorboard import EventFile

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "ptb_lm.train"]


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A run of each seed, trained by itself."""
    folder = tmp_path_factory.mktemp("alone")
    return {seed: runs.train_run(data, folder / f"seed-{seed}", "--seed", str(seed)) for seed in (1, 2)}


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train_run(data, tmp_path_factory.mktemp("seeds") / "both", "--seeds", "1", "2")


@pytest.fixture
def both(trained: Path) -> Iterator[Path]:
    """Both seeds' runs, trained by one command; no test changes them."""
    before = runs.files(trained)
    yield trained
    assert runs.files(trained) == before


@pytest.fixture
def own(both: Path, tmp_path: Path) -> Path:
    """Both seeds' runs, to be changed."""
    return shutil.copytree(both, tmp_path / "both")


def mean_and_deviation(folder: Path, *seeds: int, split: str = "test") -> str:
    values = [runs.result(folder / f"seed-{seed}")[f"{split}_perplexity"] for seed in seeds]
    return f"{sum(values) / len(values):.2f} ± {statistics.stdev(values):.2f}"


def test_each_run_is_that_of_its_seed_alone(both: Path, alone: dict[int, Path]) -> None:
    assert {path.name for path in both.iterdir()} == {"seed-1", "seed-2"}
    for seed, run in alone.items():
        same = both / f"seed-{seed}"
        assert (same / "config.json").read_bytes() == (run / "config.json").read_bytes()
        assert runs.result(same)["test_perplexity"] == runs.result(run)["test_perplexity"]
        assert f"--seed {seed} --run-dir {same}" in runs.result(same)["command"]
        assert "--seeds" not in runs.result(same)["command"]
    assert runs.result(alone[1])["test_perplexity"] != runs.result(alone[2])["test_perplexity"]


def test_it_ends_with_mean_and_standard_deviation(
    own: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And runs that have ended are not trained again, nor is anything written."""
    before = runs.files(own)
    capsys.readouterr()
    assert train.main(runs.arguments(data, own, "--seeds", "1", "2")) == 0
    printed = capsys.readouterr().out
    assert f"seed 2 has ended, in {own / 'seed-2'}" in printed
    for split in ("test", "valid"):
        found = mean_and_deviation(own, 1, 2, split=split)
        assert f"{split} perplexity of 2 seeds: {found} (mean ± standard" in printed
    assert runs.files(own) == before


def test_a_stop_saves_the_one_at_work_and_the_same_command_goes_on(
    both: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, whole = tmp_path / "run", trainer.Trainer._finish_epoch
    asked = []

    def finish_and_ask(self: trainer.Trainer, event_file: EventFile) -> None:
        if self.run.choice.seed == 2 and not asked:
            asked.append(True)
            signal.raise_signal(signal.SIGINT)
        whole(self, event_file)

    monkeypatch.setattr(trainer.Trainer, "_finish_epoch", finish_and_ask)
    command = runs.arguments(data, folder, "--seeds", "1", "2", "3", "--epochs", "2")
    assert train.main(command) == 130
    told = capsys.readouterr().err
    assert f"ptb_lm.train --resume {folder / 'seed-2'}" in told
    (again,) = [line.partition("continue with: ")[2] for line in told.splitlines() if line.startswith("all")]
    assert " ptb_lm.train --" in again
    assert {path.name for path in folder.iterdir()} == {"seed-1", "seed-2"}
    assert not (folder / "seed-2" / "result.json").exists()

    assert train.main(shlex.split(again)[3:]) == 0
    assert f"test perplexity of 3 seeds: {mean_and_deviation(folder, 1, 2, 3)}" in capsys.readouterr().out
    for seed in (1, 2):
        mine, other = (runs.result(of / f"seed-{seed}")["test_perplexity"] for of in (folder, both))
        assert mine == other


def test_a_signal_stops_those_side_by_side_and_they_go_on(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ["--seeds", "1", "2", "--jobs", "2"]
    typed = [sys.executable, str(Path(sys.executable).with_name("ptb-lm")), "train"]
    command = [*typed, *runs.arguments(data, folder, *flags, "--epochs", "100000")]
    long = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    states = [folder / f"seed-{seed}" / "metrics.jsonl" for seed in (1, 2)]
    while not all(state.exists() and state.stat().st_size for state in states):
        assert long.poll() is None
        time.sleep(0.05)
    os.kill(long.pid, signal.SIGTERM)
    out, err = long.communicate()
    assert long.returncode == 128 + signal.SIGTERM
    assert "all seeds continue with: ptb-lm train --" in err
    for seed in (1, 2):
        assert f"seed {seed}: SIGTERM: saved; continue with: ptb-lm train --" in out
    epochs = 1 + max(len(runs.metrics(folder / f"seed-{seed}")) for seed in (1, 2))
    assert train.main(runs.arguments(data, folder, "--seeds", "1", "2", "--epochs", str(epochs))) == 0
    for seed in (1, 2):
        assert len(runs.metrics(folder / f"seed-{seed}")) == epochs
        assert len(runs.result(folder / f"seed-{seed}")["earlier_environments"]) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_every_seed_is_trained_though_nothing_can_be_said(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process; and side by side, by a program that says a line and writes a file."""
    flags = runs.arguments(data, tmp_path / "run", "--seeds", "1", "2", "--epochs", "1")
    program = tmp_path / "program.py"
    program.write_text("import sys; print(open(sys.argv[sys.argv.index('--seed') + 1], 'x'))")
    with Path("/dev/full").open("w") as full, contextlib.redirect_stdout(full):
        assert train.main(flags) == 0
    monkeypatch.setattr(seeds.cli, "TRAIN", f"python {program}")
    monkeypatch.chdir(tmp_path)
    with Path("/dev/full").open("w") as full, contextlib.redirect_stdout(full):
        assert train.main([*flags, "--epochs", "2", "--jobs", "2"]) == 0
    for seed in (1, 2):
        assert runs.result(tmp_path / "run" / f"seed-{seed}")["epochs"] == 1
        assert (tmp_path / f"{seed}").exists()


def test_two_commands_that_start_together_have_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second starts before the first one has trained anything. What stays empty is removed."""
    monkeypatch.setattr(run_folders, "default_path", lambda run, model: tmp_path / "runs")
    arguments, trained = train.parse_flags(["--seeds", "1"]), list[str]()

    def train_one(command: list[str]) -> int:
        trained.append(command[command.index("--run-dir") + 1])
        return seeds.train(arguments, train_one) if len(trained) == 1 else 0

    assert seeds.train(arguments, train_one) == 0
    assert trained == [str(tmp_path / name / "seed-1") for name in ("runs", "runs-2")]
    assert not list(tmp_path.iterdir())


def fail(monkeypatch: pytest.MonkeyPatch, seed: int, error: Callable[[trainer.Trainer], Exception]) -> None:
    """Let the run of a seed fail at the end of an epoch."""
    whole = trainer.Trainer._finish_epoch

    def finish_or_fail(self: trainer.Trainer, event_file: EventFile) -> None:
        if self.run.choice.seed == seed:
            raise error(self)
        whole(self, event_file)

    monkeypatch.setattr(trainer.Trainer, "_finish_epoch", finish_or_fail)


def test_a_seed_that_diverges_does_not_stop_the_others(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptb_lm.training.checkpoint import divergence_error

    fail(monkeypatch, 1, lambda each: divergence_error(each.directory, each.run, "in a test"))
    assert train.main(runs.arguments(data, tmp_path / "run", "--seeds", "1", "2")) == 1
    out, err = capsys.readouterr()
    assert err.startswith("seed 1: training diverged in a test")
    assert "seed 1 failed and is not included below" in out
    value = runs.result(tmp_path / "run" / "seed-2")["test_perplexity"]
    assert f"test perplexity of 1 seed: {value:.2f}\n" in out


def test_a_full_disk_is_told_with_how_to_continue(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, 2, lambda each: OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"))
    given = runs.arguments(data, tmp_path / "run", "--seeds", "1", "2", "3")
    assert train.main(given) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    (again,) = re.findall(r"^all seeds continue with: (.*)$", said, re.MULTILINE)
    monkeypatch.undo()
    assert train.main(shlex.split(again)[3:]) == 0
    assert f"of 3 seeds: {mean_and_deviation(tmp_path / 'run', 1, 2, 3)}" in capsys.readouterr().out


def test_a_seed_that_cannot_continue_does_not_stop_the_others(
    own: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it is the first: all may have the cause in common."""
    state = own / "seed-2" / "state" / "training.safetensors"
    state.write_bytes(state.read_bytes()[:2000])
    assert train.main(runs.arguments(data, own, "--seeds", "1", "2", "3", "--epochs", "3")) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"seed 2: {state} is truncated")
    assert "seed 2 failed and is not included below" in out
    assert f"test perplexity of 2 seeds: {mean_and_deviation(own, 1, 3)}" in out
    assert str(state) in refused(capsys, *runs.arguments(data, own, "--seeds", "2", "4", "--epochs", "3"))
    assert not (own / "seed-4").exists()


def test_by_a_schedule_that_ends_with_the_last_epoch_more_epochs_are_other_settings(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was trained further would have had other rates than a new one."""
    folder, flags = tmp_path / "run", ("--schedule", "cosine", "--seeds")
    runs.train_run(data, folder, *flags, "1", "--epochs", "2")
    for epochs in ("1", "3"):
        given = runs.arguments(data, folder, *flags, "1", "2", "--epochs", epochs)
        assert f"(epochs 2 there, {epochs} here)" in refused(capsys, *given)
    assert not (folder / "seed-2").exists()


def test_a_seed_whose_processes_are_killed_does_not_stop_the_others_and_is_continued(
    own: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, trained = runs.arguments(data, own, "--seeds", "1", "2", "--epochs", "3"), list[Path]()

    def train_one(command: list[str]) -> int:
        trained.append(Path(command[-1]))
        if len(trained) == 1:
            raise LostRankError("rank 0 of 2 has ended", speaker=True)
        return 0

    assert seeds.train(train.parse_flags(flags), train_one) == 1
    assert trained == [own / "seed-1", own / "seed-2"]
    problem, _, told = capsys.readouterr().err.partition("all seeds continue with: ")
    assert problem == "seed 1: rank 0 of 2 has ended\n"
    again = train.parse_flags(shlex.split(told)[3:])
    assert again == train.parse_flags(flags) | {"model": "cudnn", "precision": "fp32"}


def test_a_model_is_gone_when_the_next_is_built() -> None:
    """Though it is a part of itself, as training steps are."""

    class Model:
        def __init__(self) -> None:
            self.itself = self

    models: list[weakref.ref[Model]] = []

    def train_one(_: list[str]) -> int:
        assert not any(earlier() for earlier in models)
        models.append(weakref.ref(Model()))
        return 0

    gc.disable()  # so that it does not happen by itself
    try:
        seeds._train_in_turn({1: [], 2: []}, train_one)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--jobs", "2"], "--seeds"),
        (["--seeds", "1", "2", "1"], "names 1 twice"),
        (["--seeds", "0", "0"], "names 0 twice"),
        (["--seeds", "1", "--seed", "2"], "--seed: not allowed"),
        (["--seeds", "1", "--resume", "run"], "--resume"),
        (["--seeds", "1", "--run-dir", __file__], f"{__file__} is a file"),
        (["--seeds", "1", "-1"], "--seeds: must be a whole number"),
        (["--seeds", "9" * 20], f"at most {MAX_SEED}"),
        (["--seeds", "one"], "not 'one'"),
        (["--seeds"], "--seeds: expected"),
        (["--seeds", "1", "--jobs", "0"], "--jobs: must be a whole number"),
        (["--seeds", "1", "--overwrite"], "--run-dir"),
        (["--data", "synthetic", "--overwrite"], "--run-dir"),
        (["--seeds", "1", "--data", "/missing"], "--data /missing"),
    ],
)
def test_impossible_flags_are_refused(flags: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert key in refused(capsys, *flags)


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    capsys.readouterr()
    assert runs.run_command(train, *flags) == 2
    return runs.sentence(capsys.readouterr().err, train)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--hidden-size", "7"), "hidden_size 6 there, 7 here"),
        (("--learning-rate", "0.5"), "learning_rate 1.0 there, 0.5 here"),  # which --resume may change
        (("--recipe", "default", "--average-epochs", "0"), "recipe 'tutorial' there, 'default' here"),
        (("--epochs", "1"), "epochs 2 there, 1 here"),
        (("--num-steps", "20"), "num_steps 5 there, 20 here"),
        (("--lowercase",), "lowercase False there, True here; min_count 1 there, 2 here"),
        (
            ("--data", "synthetic", "--config", "small"),
            "data {data} (SHA-256 {sha256}…) there, synthetic here",
        ),
    ],
)
def test_runs_of_other_settings_are_refused(
    flags: tuple[str, ...], problem: str, both: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = runs.arguments(data, both, "--seeds", "1", "2", "3", *flags)
    if "--num-steps" in flags:  # the default, of a flag that is left out
        given = [flag for flag in given if flag not in ("--num-steps", "5", "20")]
    said = refused(capsys, *given)
    source = RunDirectory(both / "seed-1").read_config().source
    assert source is not None
    problem = problem.format(data=data, sha256=source.sha256[:12])
    assert said.startswith(f"{both / 'seed-1'} is a run")
    assert f"({problem}); " in said


def test_a_run_of_another_seed_is_refused(
    both: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(both / "seed-1", tmp_path / "seed-2")
    assert "(seed 1 there, 2 here)" in refused(capsys, *runs.arguments(data, tmp_path, "--seeds", "2"))


def test_the_batch_of_all_devices_and_the_text_count_not_flag_and_place(
    both: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copytree(data, tmp_path / "moved")
    flags = [flag.replace("--batch-size", "--batch-size-per-device") for flag in runs.arguments(moved, both)]
    assert train.main([*flags, "--seeds", "1", "2"]) == 0
    assert "test perplexity of 2 seeds" in capsys.readouterr().out
    with (moved / "test.txt").open("a") as file:
        file.write("w1 <unk>\n")
    assert f"(data {data} (SHA-256 " in refused(capsys, *flags, "--seeds", "1", "2")


def test_seeds_that_change_nothing_are_refused(
    alone: dict[int, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of one run and its copies would look like evidence."""
    flags = ["--data", str(data), "--init-from", str(alone[1]), "--seeds", "1", "2"]
    problem = refused(capsys, *flags, "--run-dir", str(tmp_path / "tuned"))
    assert "same run" in problem
    problem = refused(capsys, *flags, "--extend-vocabulary", "--run-dir", str(tmp_path / "tuned"))
    assert "dropout or new words" in problem, "the text has none"
    assert not (tmp_path / "tuned").exists()
    flag_values = train.parse_flags([*flags, "--num-steps", "10", "--vary-num-steps"])
    commands: list[list[str]] = []
    assert (
        seeds.train({**flag_values, "run_dir": tmp_path}, lambda command: bool(commands.append(command))) == 0
    )
    assert len(commands) == 2, "each seed has its own windows"


def test_weights_to_start_from_count(
    alone: dict[int, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tuned"

    def arguments(*flags: str) -> list[str]:
        given = ["--data", str(data), "--run-dir", str(folder), "--device", "cpu", "--epochs", "1", *flags]
        return [*given, "--keep-prob", "0.8"]

    assert train.main(arguments("--init-from", str(alone[1]), "--seeds", "1")) == 0
    before = runs.files(folder)
    for start, here in ((("--init-from", str(alone[2])), str(alone[2])), ((), "none")):
        problem = refused(capsys, *arguments(*start, *(() if start else runs.SIZES), "--seeds", "1", "2"))
        assert f"init_from {alone[1]} (SHA-256 " in problem
        assert f" there, {here}" in problem
    assert runs.files(folder) == before
    assert train.main(arguments("--init-from", str(alone[1]), "--seeds", "1", "2")) == 0
    assert "test perplexity of 2 seeds" in capsys.readouterr().out


def test_a_run_is_overwritten_when_its_successor_begins(
    both: Path, own: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stop leaves the others as they are; a command replaces these, another continues what has begun."""
    flags = runs.arguments(data, own, "--seeds", "1", "2", "--learning-rate", "0.5", "--overwrite")

    def stopped(_: list[str]) -> int:
        raise signals.StopSignal(signal.SIGTERM)

    def stopped_in_training(command: list[str]) -> int:
        begin(command)
        return stopped(command)

    def begin(command: list[str]) -> None:
        run = RunDirectory(own / f"seed-{command[command.index('--seed') + 1]}")
        config, words = run.read_config(), run.read_vocabulary()
        run.create(run_flags.resumed_config(config, {"learning_rate": 0.5}), words)
        run.state_path.touch()

    def told(train_one: Callable[[list[str]], int]) -> list[list[str]]:
        assert seeds.train(train.parse_flags(flags), train_one) == 128 + signal.SIGTERM
        (line,) = capsys.readouterr().err.splitlines()
        return [shlex.split(each)[3:] for each in line.partition("continue with: ")[2].split(" && ")]

    with RunDirectory(own / "seed-2").lock():
        assert "is using" in refused(capsys, *flags)
    (typed,) = told(stopped)
    assert train.parse_flags(typed) == train.parse_flags(flags)
    assert runs.files(own) == runs.files(both)

    others, every = told(stopped_in_training)
    first = train.parse_flags(flags) | {"model": "cudnn", "precision": "fp32"}
    assert train.parse_flags(others) == first | {"seeds": [2]}
    assert train.parse_flags(every) == train.parse_flags(flags[:-1])
    assert runs.files(own / "seed-2") == runs.files(both / "seed-2")

    begin(["--seed", "2"])
    trained: list[list[str]] = []
    assert seeds.train(train.parse_flags(every), lambda command: bool(trained.append(command))) == 0
    assert [command[-2:] for command in trained] == [
        ["--resume", str(own / f"seed-{seed}")] for seed in (1, 2)
    ]


def test_runs_that_start_from_the_package_s_own_run_are_overwritten(own: Path) -> None:
    """Its name is no folder."""
    trained: list[list[str]] = []

    def train_one(given: list[str]) -> int:
        trained.append(given)
        return 0

    command = ["--init-from", "demo", "--run-dir", str(own), "--seeds", "1", "--overwrite"]
    assert seeds.train(train.parse_flags(command), train_one) == 0
    assert [given[-4:] for given in trained] == [["--seed", "1", "--run-dir", str(own / "seed-1")]]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--data", "/missing"), "--data /missing"),
        (("--num-steps", "10000"), "the train split"),
        (("--cell", "layer_norm_lstm", "--model", "cudnn"), "torch cudnn"),
        (("--devices", "3"), "--batch-size 4 "),
        (("--execution", "graph"), "--execution graph"),
        (("--precision", "tf32"), "--precision tf32"),
        (("--reduce-precision", "bf16"), "--reduce-precision bf16"),
        (("--extend-vocabulary",), "--extend-vocabulary needs --init-from"),
    ],
)
def test_nothing_is_lost_for_runs_that_cannot_begin(
    flags: tuple[str, ...], problem: str, both: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = runs.arguments(data, both, "--seeds", "1", "2", "--overwrite", *flags)
    assert refused(capsys, *given).startswith(problem)


def test_nothing_is_lost_where_other_processes_cannot_begin(
    both: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--overwrite", "--execution", "graph", "--jobs", "2")
    assert train.main(runs.arguments(data, both, "--seeds", "2", *flags)) == 2
    assert ": --execution graph" in capsys.readouterr().out


def test_another_process_is_told_of_before_the_first_run_is_replaced(
    both: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files.lock(both / "seed-2"):
        problem = refused(capsys, *runs.arguments(data, both, "--seeds", "1", "2", "--overwrite"))
    assert str(both / "seed-2") in problem


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_exit_status_is_of_the_signal(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when it comes between two runs, or while one reads its text."""

    def train_one(_: list[str]) -> int:
        signal.raise_signal(number)
        return 0

    arguments = train.parse_flags(["--seeds", "1", "--run-dir", str(tmp_path / "run")])
    with signals.handle_signals("train"):
        assert seeds.train(arguments, train_one) == 128 + number
    assert capsys.readouterr().err.startswith("all seeds")


def test_a_signal_at_the_end_of_a_run_is_for_those_that_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ends all the same: it has nothing left to save. After the last one there is nothing to stop."""
    trained = []

    def train_one(command: list[str]) -> int:
        trained.append(command[command.index("--seed") + 1])
        with StopRequest():
            if trained[-1] == "2":
                signal.raise_signal(signal.SIGTERM)
        return 0

    def run(*seed_numbers: str) -> int:
        trained.clear()
        given = ["--seeds", *seed_numbers, "--run-dir", str(tmp_path / "run")]
        with signals.handle_signals("train"):
            return seeds.train(train.parse_flags(given), train_one)

    assert run("1", "2", "3") == 143
    assert trained == ["1", "2"]
    assert "all seeds" in capsys.readouterr().err
    assert run("1", "2") == 0
    assert trained == ["1", "2"]


def test_the_folder_of_a_run_is_not_one_of_seeds(
    alone: dict[int, Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = runs.files(alone[1])
    assert "--run-dir" in refused(capsys, *runs.arguments(data, alone[1], "--seeds", "1"))
    assert runs.files(alone[1]) == before


def test_a_finished_run_needs_no_state(own: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(own / "seed-1" / "state")
    assert train.main(runs.arguments(data, own, "--seeds", "1", "2")) == 0
    assert f"test perplexity of 2 seeds: {mean_and_deviation(own, 1, 2)}" in capsys.readouterr().out
    problem = refused(capsys, *runs.arguments(data, own, "--seeds", "1", "2", "--epochs", "3"))
    state = own / "seed-1" / "state" / "training.safetensors"
    assert problem.startswith(f"{state} is missing")
    assert "epoch 3" in problem


@pytest.mark.parametrize(
    ("flag_values", "line"),
    [
        ({"tie_weights": True, "overwrite": True}, ["--tie-weights", "--overwrite"]),
        ({"tie_weights": False, "overwrite": False}, ["--no-tie-weights"]),
        ({"seeds": [3, 4], "keep_prob": 0.5}, ["--seeds", "3", "4", "--keep-prob", "0.5"]),
        ({"run_dir": Path("-x")}, ["--run-dir=-x"]),
    ],
)
def test_values_become_the_flags_that_give_them(flag_values: dict[str, object], line: list[str]) -> None:
    assert seed_runs.command_line(flag_values) == line
    parsed = train.parse_flags(line)
    assert {name: parsed[name] for name in flag_values} == flag_values


def test_side_by_side_is_the_same_though_one_was_killed(
    both: Path,
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the system does when memory runs out. The command that is told goes on with the killed one."""
    program, folder = tmp_path / "one.py", tmp_path / "run"
    killed = "import os, signal, sys\n"
    killed += "if sys.argv[sys.argv.index('--seed') + 1] == '2': os.kill(os.getpid(), signal.SIGKILL)\n"
    program.write_text(f"{killed}from ptb_lm import train\nsys.exit(train.main(sys.argv[1:]))\n")
    with monkeypatch.context() as patch:
        patch.setattr(seeds.cli, "TRAIN", f"python {program}")
        assert train.main(runs.arguments(data, folder, "--seeds", "1", "2", "--jobs", "2")) == 1
    out, err = capsys.readouterr()
    killed, again = err.splitlines()
    assert killed == "seed 2: ended by SIGKILL"
    assert "seed 2 failed and is not included below\n" in out
    value = runs.result(both / "seed-1")["test_perplexity"]
    assert runs.result(folder / "seed-1")["test_perplexity"] == value
    assert f"seed 1: test perplexity {value:.2f}" in out
    assert f"test perplexity of 1 seed: {value:.2f}\n" in out
    called = shlex.split(again.partition("with: ")[2])
    assert train.main(called[3:]) == 0
    assert f"test perplexity of 2 seeds: {mean_and_deviation(both, 1, 2)}" in capsys.readouterr().out


def test_a_carriage_return_ends_a_line_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the progress bars of a library, which has no terminal here."""
    program = tmp_path / "program.py"
    program.write_text("print('1 of 2', end='\\r'); print('2 of 2', end='\\r\\n'); print('the end', end='')")
    monkeypatch.setattr(seeds.cli, "TRAIN", f"python {program}")
    flags = runs.arguments(data, tmp_path / "run", "--seeds", "7", "--jobs", "2")
    assert train.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["seed 7: 1 of 2", "seed 7: 2 of 2"]


@pytest.mark.parametrize("flags", [("--jobs", "2"), ("--devices", "2")])
def test_where_others_train_this_process_looks_at_no_device(
    flags: tuple[str, ...], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold memory of a GPU to its end, and does not know what several processes choose."""

    def examine(device: str) -> MachineFacts:
        raise AssertionError(device)

    started: list[str] = []
    monkeypatch.setattr(runtime, "examine", examine)
    monkeypatch.setattr(run_folders, "working_folder", lambda: tmp_path)
    monkeypatch.setattr(seeds, "_train_in_parallel", lambda commands, jobs: dict.fromkeys(commands, 0))
    given = ["--data", str(data), *runs.FLAGS, "--seeds", "1", "2", *flags]
    seeds.train(train.parse_flags(given), lambda command: bool(started.append(command[-1])))
    assert [Path(run).name for run in started] == ["seed-1", "seed-2"] * ("--devices" in flags)


def test_devices_of_one_process_are_chosen_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def choose(config: RunConfig, flag_values: object, ranks: Ranks) -> tuple[RunConfig, str]:
        counts.append(ranks.devices)
        return config, ""

    monkeypatch.setattr(seeds, "with_fastest", choose)
    monkeypatch.setattr(Choice, "builder", lambda choice: None)
    given = runs.arguments(data, tmp_path / "run", "--seeds", "1", "--framework", "tensorflow")
    seeds.train(train.parse_flags([*given, "--devices", "2"]), lambda command: 0)
    assert counts == [2]


def test_seeds_that_were_begun_keep_what_was_taken(data: Path, tmp_path: Path) -> None:
    """Where they continue, something else may be the fastest."""
    begun = tmp_path / "seed-1"
    runs.train_run(data, begun, "--seed", "1", "--model", "basic", "--precision", "bf16", "--epochs", "1")
    commands: list[list[str]] = []
    flags = runs.arguments(data, tmp_path, "--seeds", "1", "2")
    flag_values = train.parse_flags(flags)
    seeds.train(flag_values, lambda command: bool(commands.append(command)))
    assert [command[command.index("--model") + 1] for command in commands] == ["basic", "basic"]
    assert [command[command.index("--precision") + 1] for command in commands] == ["bf16", "bf16"]
    assert "--resume" in commands[0]
    overwrite = train.parse_flags([*flags, "--overwrite"])
    commands.clear()
    seeds.train(overwrite, lambda command: bool(commands.append(command)))
    assert not any("--model" in command for command in commands), "new runs choose anew"


def test_nothing_is_made_before_the_framework_is_imported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal that comes meanwhile leaves no folder behind."""
    monkeypatch.setattr(run_folders, "working_folder", lambda: tmp_path)

    def missing(choice: Choice) -> None:
        assert not (tmp_path / "checkpoints").exists()
        raise UserError("torch is not installed")

    monkeypatch.setattr(Choice, "builder", missing)
    flags = ("--data", data, "--config", "test", "--seeds", "1", "2")
    assert runs.refusal(capsys, train, *flags) == "torch is not installed"
    assert not (tmp_path / "checkpoints").exists()


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert signals.describe_signal(signal.SIGKILL) == "ended by SIGKILL"
    assert signals.describe_signal(127) == "ended by signal 127"
