"""The plan of scripts/reproduce: what it would type is understood by the commands."""

import dataclasses
import itertools
import json
import re
import runpy
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
from support import ROOT

from ptb_lm import evaluate, generate, host, neighbours, predict, score, train
from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import registries, selection, variants
from ptb_lm.bench.studies import __main__ as studies
from ptb_lm.bench.variants import original
from ptb_lm.errors import UserError
from ptb_lm.results import __main__ as results
from ptb_lm.results import ablation, command, plan, records, reproduce, steps
from ptb_lm.training import run_flags
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory

PARSERS = {
    "ptb_lm.train": train._parser,
    "ptb_lm.bench": bench._parser,
    "ptb_lm.evaluate": evaluate._parser,
    "ptb_lm.generate": generate._parser,
    "ptb_lm.neighbours": neighbours._parser,
    "ptb_lm.predict": predict._parser,
    "ptb_lm.score": score._parser,
    "ptb_lm.bench.studies": studies._parser,
    "ptb_lm.results": results._parser,
}
OF_DEVICES = [
    (name, device, step)
    for device in plan.ALL
    for name, result in plan.RESULTS.items()
    for step in result.steps
    if step.on in ("", device) and not isinstance(step, steps.UnlessKept)
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> reproduce._Work:
    """In an empty checkout, on a CPU."""
    monkeypatch.setattr(reproduce._Work, "_listen", lambda _: None)  # the tests keep their signals
    return reproduce._Work(tmp_path, "cpu")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were to be started; all fail."""
    found: list[str] = []

    def fails(work: reproduce._Work, given: str, **_: Any) -> int:
        found.append(given)
        return 1

    monkeypatch.setattr(reproduce._Work, "_python", fails)
    return found


def config_of(step: steps.Train) -> RunConfig:
    """What ptb_lm.train makes of a step's flags."""
    given = vars(train._parser().parse_args(shlex.split(step.flags)))
    return run_flags.new_config({flag: value for flag, value in given.items() if value is not None})


def named(text: str, device: str) -> str:
    return text.replace("DEVICE", device).replace("COMMIT", "0123456")


@pytest.mark.parametrize(("name", "device", "step"), OF_DEVICES)
def test_a_step_s_command_is_understood(
    name: str, device: str, step: steps.Train | steps.Adapt | steps.Suite | steps.Python
) -> None:
    words = shlex.split(named(steps.arguments(step), device))
    if words[0].startswith("examples/"):
        parsed = runpy.run_path(str(ROOT / words[0]))["parse"](words[1:])
        assert getattr(parsed, "device", device) == device
        return
    assert words[0] == "-m"
    if words[1] == "pytest":
        return
    given = vars(PARSERS[words[1]]().parse_args(words[2:]))
    if isinstance(step, steps.Train):
        run = config_of(step)
        assert run.config in name + step.name
        assert str(given["run_dir"]) == f"checkpoints/reproduce-{named(step.name, device)}"
        assert command.differences_today(run, step.flags) == []


@pytest.mark.parametrize(
    "step", [step for *_, step in OF_DEVICES if isinstance(step, steps.Suite)], ids=lambda step: step.name
)
def test_a_suite_measures_a_program_twice_by_enough_processes(
    step: steps.Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The A/A test; and below three processes an interval would lack what differs between them."""
    words = shlex.split(step.arguments)
    given = bench._parser().parse_args(["run", *words])
    options = selection.Options(
        suite=given.suite,
        workloads=tuple(given.workloads),
        variants=tuple(given.variants),
        baseline=given.baseline,
        rounds=given.rounds,
        processes=given.processes,
    )
    for table in ("LANGUAGE_MODELS", "CLASSIFIERS"):
        monkeypatch.setattr(registries, table, dict(getattr(registries, table)))
    added = [variants.add(each) for each in given.add]
    for workload in selection.selected(options, added):
        names = {variant.name for variant in workload.variants}
        again = {name for name in names if original(name) != name}
        assert len(again) == 1, workload.name
        assert {original(name) for name in again} <= names
        assert workload.processes >= (3 if workload.name.startswith("4x320") else 5)


def test_no_two_results_are_kept_in_one_folder() -> None:
    for device in plan.ALL:
        folders = [
            named(step.name, device)
            for _, of, step in OF_DEVICES
            if of == device and isinstance(step, steps.Train | steps.Adapt | steps.Suite)
        ]
        assert len({*folders}) == len(folders)


def test_names_that_are_referred_to_are_there() -> None:
    referred = {name for names in plan.ALL.values() for name in names}
    for result in plan.RESULTS.values():
        referred |= {step.result for step in result.steps if isinstance(step, steps.UnlessKept)}
    assert referred <= plan.RESULTS.keys()
    assert plan.results_of(["small", "all", "small"], "cpu") == [
        "small",
        *(n for n in plan.ALL["cpu"] if n != "small"),
    ]


@pytest.mark.parametrize("config", ablation.STEPS)
def test_a_step_of_an_ablation_has_the_flags_of_those_before_it(config: str) -> None:
    name = "ablation-small" if config == "small" else "ablation"
    for device in ("cpu", "cuda"):
        trained = [step for step in plan.steps_of(name, device) if isinstance(step, steps.Train)]
        assert len(trained) >= 3
        for step in trained:
            folder = re.compile(
                rf"ablation-{config}-\d-.*-(cudnn|block_fused|persistent-fp16)-({device}|DEVICE)"
            )
            assert folder.fullmatch(step.name)
        flags = [re.findall(r"(--[a-z-]+)(?: ([^- ]\S*))?", step.flags) for step in trained]
        for before, after in itertools.pairwise(flags):
            assert len(dict(after)) == len(after), "a flag is given twice"
            changed = {flag for flag, value in before if dict(after).get(flag) != value}
            # The last step of small decays more slowly than the one before it.
            assert changed <= ({"--lr-decay"} if config == "small" and after is flags[-1] else set())
        assert len({step.flags for step in trained}) == len(trained)


def test_a_suite_that_is_wrong_does_not_stop_the_check_of_the_others(
    work: reproduce._Work, started: list[str]
) -> None:
    assert work._make("gate") == 1
    assert [given.split()[3] for given in started] == [
        *("ptb", "ptb", "stacked-lm", "semantics", "template", "cells", "acoustic", "ptb")
    ]


def test_a_command_that_uses_a_run_waits_for_its_training(work: reproduce._Work, started: list[str]) -> None:
    assert work._do(plan.RESULTS["using"].steps[0]) == 1
    assert [command.split()[:2] for command in started] == [["-m", "ptb_lm.train"]]


SMALL = plan.RESULTS["small-tutorial"].steps[0]
assert isinstance(SMALL, steps.Train)


def finished(work: reproduce._Work, step: steps.Train = SMALL, **changes: Any) -> RunDirectory:
    """A run of a step that has ended, with changed hyper-parameters; its figures are those of a kept run."""
    run = RunDirectory(work.root / "checkpoints" / f"reproduce-{named(step.name, 'cpu')}")
    shutil.copytree(ROOT / "results" / "small-tutorial-cudnn-cpu", run.path)
    config = config_of(step)
    changed = config.hyperparameters.replace(**changes)
    run.write_config(dataclasses.replace(config, hyperparameters=changed))
    return run


def train_on(run: Path) -> None:
    """Let a finished run have done an epoch more, which was not better, and then have been stopped."""
    last = runs.metrics(run)[-1]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**last, "epoch": last["epoch"] + 1}) + "\n")


@pytest.mark.slow  # draws a curve
def test_a_run_of_another_default_is_not_handed_out(work: reproduce._Work, started: list[str]) -> None:
    run = finished(work, lr_decay=0.6)
    with pytest.raises(UserError) as caught:
        work._do(SMALL)
    assert str(caught.value) == (
        "checkpoints/reproduce-small-tutorial-cudnn-cpu is a run of other settings than today's "
        "(lr_decay 0.6 there, 0.5 here); remove that folder to train it again"
    )
    assert not (work.root / "results").exists()
    shutil.rmtree(run.path)
    finished(work)
    assert work._do(SMALL) == 0
    assert (work.root / "results" / "small-tutorial-cudnn-cpu" / "result.json").exists()
    assert started == []


def test_a_finished_run_that_has_gone_on_is_continued(work: reproduce._Work, started: list[str]) -> None:
    run = finished(work)
    train_on(run.path)
    run.state.parent.mkdir()
    run.state.touch()
    assert work._do(SMALL) == 1
    assert started == [f"-m ptb_lm.train --resume checkpoints/{run.path.name}"]


@pytest.mark.slow  # draws a curve
@pytest.mark.parametrize("name", ["race", "race-tied"])
def test_a_race_is_recorded_as_what_it_is(
    name: str, work: reproduce._Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(host, "_git_commit", lambda: "0123456789abcdef")
    monkeypatch.setattr(records, "record", lambda run, what: recorded.append(what))
    monkeypatch.delenv("WHAT", raising=False)
    (race,) = plan.steps_of(name, "cpu")
    assert isinstance(race, steps.Race)
    finished(work, race)
    assert work._do(race) == 0
    assert recorded == [{"race": "the preset race", "race-tied": "tied weights, in 14 epochs"}[name]]


@pytest.mark.parametrize(
    ("names", "device", "commit", "cores", "problem"),
    [
        (["all"], "cuda", None, 2, "race: a record needs a clean commit, but this is not a checkout"),
        (
            ["small", "race"],
            "cpu",
            "0123456",
            16,
            "race: this process has 16 cores, but the list of a CPU is",
        ),
    ],
)
def test_a_race_that_cannot_count_is_refused_before_anything_is_made(
    names: list[str],
    device: str,
    commit: str | None,
    cores: int,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "_git_commit", lambda: commit)
    monkeypatch.setattr(host, "cores", lambda: {*range(cores)})
    monkeypatch.setattr(reproduce, "find_device", lambda: device)
    monkeypatch.setattr(reproduce._Work, "_listen", lambda _: None)  # the tests keep their signals
    monkeypatch.setattr(reproduce._Work, "make", lambda _, name: pytest.fail(f"{name} is made"))
    with pytest.raises(UserError) as caught:
        reproduce.reproduce(names, tmp_path)
    assert str(caught.value).startswith(problem)


@pytest.mark.slow  # starts a process
def test_what_needs_a_module_that_is_not_there_is_left_out_by_name(
    work: reproduce._Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = steps.Python("-c pass on DEVICE", needs="no_such_module")
    monkeypatch.setitem(plan.RESULTS, "some", plan.Result("", (lacking, steps.Python("-c pass"))))
    assert work._make("some") == 0
    assert capsys.readouterr().err == (
        "scripts/reproduce: some: no_such_module is not installed, so this is left out: "
        "python -c pass on cpu\n"
    )
    monkeypatch.setitem(plan.RESULTS, "none", plan.Result("", (lacking,)))
    with pytest.raises(UserError, match=r"^none: a Python without no_such_module cannot make this result$"):
        work._make("none")
    with pytest.raises(UserError, match=r"^medium-precisions: a machine with the device cpu cannot make"):
        work._make("medium-precisions")


def test_the_script_installs_what_every_step_needs() -> None:
    script, project = ((ROOT / name).read_text() for name in ("scripts/reproduce", "pyproject.toml"))
    found = re.search(r"^ *setup (\S+)$", script, re.M)
    assert found is not None
    extras = (re.search(rf"^{extra} = (.*)$", project, re.M) for extra in found[1].split(","))
    packages = {name for extra in extras if extra for name in re.findall(r'"([\w-]+)', extra[1])}
    needed = {step.needs for result in plan.RESULTS.values() for step in result.steps} - {""}
    assert {{"sklearn": "scikit-learn"}.get(module, module) for module in needed} <= packages


def test_the_seeds_of_medium_are_one_row() -> None:
    """Trained by the same, whatever made the result medium."""
    for device in ("cpu", "cuda"):
        found = [step for step in plan.steps_of("medium-seeds", device) if isinstance(step, steps.Train)]
        flags = [re.sub(r" --seed \d", "", step.flags) for step in found]
        assert len({*flags}) == 1
        assert [re.findall(r"--seed (\d)", step.flags) for step in found] == [[], ["2"], ["3"]]


def test_the_page_names_the_benchmarks_that_are_not_made_again() -> None:
    again = "cpu-speed cpu-speed-float32 optimisations bench bench-again bench-coverage scaling"
    text = " ".join((ROOT / "results" / "README.md").read_text().split())
    assert f"`scripts/reproduce {again} scoring`" in text
    made = {
        named(step.name, "cpu")
        for name in again.split()
        for step in plan.RESULTS[name].steps
        if isinstance(step, steps.Suite) and step.on in ("", "cpu")
    }
    # Of another machine, before: the same commands.
    names = {path.parent.name for path in (ROOT / "results").glob("bench-*/rows.jsonl")}
    kept = {name.replace("-xeon-cpu", "-cpu") for name in names}
    left_out = text.partition("It leaves out five: ")[2].partition(". ")[0]
    assert kept - made == {*re.findall(r"`([\w-]+)`", left_out)}


def full(write: Callable[[], object]) -> None:
    with runs.disk_with_room_for(100), pytest.raises(OSError, match="File too large"):
        write()


@pytest.mark.slow  # starts a process
def test_a_full_disk_leaves_what_a_command_had_said_before(work: reproduce._Work) -> None:
    kept = work.root / "results" / "log.txt"
    assert work._python("-c 'print(1)'", stdout="results/log.txt") == 0
    full(lambda: work._python("-c 'print(1000 * str(2))'", stdout="results/log.txt"))
    assert kept.read_text() == "1\n"
    assert [*kept.parent.iterdir()] == [kept]


def test_a_full_disk_leaves_the_benchmark_that_was_kept(
    work: reproduce._Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce._Work, "_python", lambda *_, **__: 0)
    suite = steps.Suite("bench-quick-DEVICE", "quick")
    measured = work.root / "bench" / "reproduce-bench-quick-cpu"
    measured.mkdir(parents=True)
    kept = work.root / "results" / "bench-quick-cpu"
    for name in ("rows.jsonl", "report.md"):
        (measured / name).write_text("before")
    assert work._measure(suite) == 0
    (measured / "rows.jsonl").write_text("after" * 100)
    full(lambda: work._measure(suite))
    assert runs.files(kept) == {"rows.jsonl": b"before", "report.md": b"before"}


@pytest.mark.slow  # starts a process
def test_what_a_failed_command_said_is_not_lost(
    work: reproduce._Work, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work._python("-c 'print(\"it is wrong\"); raise SystemExit(3)'", stdout="results/log.txt") == 3
    assert capsys.readouterr().err == "it is wrong\n"
    assert not (work.root / "results").exists()


@pytest.mark.slow  # starts a process
def test_a_torch_that_cannot_be_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match=r"cannot import torch: ImportError: libcudart.so.13: no such file$"):
        steps.find_device()


def test_a_result_that_is_kept_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever computed it, if the run has ended, and its recipe is still the same."""
    made = []

    def makes(work: reproduce._Work, name: str) -> int:
        made.append(name)
        return 0

    def made_for(result: str) -> list[str]:
        made.clear()
        assert reproduce._Work(tmp_path, "cuda")._do(steps.UnlessKept(result)) == 0
        return [*made]

    monkeypatch.setattr(reproduce._Work, "_listen", lambda _: None)  # the tests keep their signals
    monkeypatch.setattr(reproduce._Work, "_make", makes)
    kept = tmp_path / "results" / "small-tutorial-block_fused-bf16-cpu"
    shutil.copytree(ROOT / "results" / "small-tutorial-cudnn-cpu", kept)
    assert made_for("small-tutorial") == []
    assert made_for("small") == ["small"]
    runs.change(kept / "config.json", lambda config: config["hyperparameters"].update(lr_decay=0.6))
    assert made_for("small-tutorial") == ["small-tutorial"]
    runs.change(kept / "config.json", lambda config: config["hyperparameters"].update(lr_decay=0.5))
    assert made_for("small-tutorial") == []
    train_on(kept)
    assert made_for("small-tutorial") == ["small-tutorial"]
    (kept / "result.json").unlink()
    assert made_for("small-tutorial") == ["small-tutorial"]
