"""The plan of scripts/reproduce: what it would type is understood by the commands."""

import itertools
import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import runs
from support import ROOT

from ptb_lm import evaluate, generate, neighbours, predict, score, train
from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import registries, selection, variants
from ptb_lm.bench.studies import __main__ as studies
from ptb_lm.bench.variants import original
from ptb_lm.results import __main__ as results
from ptb_lm.results import ablation, plan, reproduce, steps
from ptb_lm.training import run_flags

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
        run = run_flags.new_config({flag: value for flag, value in given.items() if value is not None})
        assert run.config in name + step.name
        assert str(given["run_dir"]) == f"checkpoints/reproduce-{named(step.name, device)}"


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
        for before, after in itertools.pairwise(trained):
            assert after.flags.startswith(f"{before.flags} ")


def test_a_command_that_uses_a_run_waits_for_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def fails(work: reproduce._Work, command: str, **_: Any) -> int:
        started.append(command)
        return 1

    monkeypatch.setattr(reproduce._Work, "_listen", lambda _: None)  # the tests keep their signals
    monkeypatch.setattr(reproduce._Work, "_python", fails)
    using = plan.RESULTS["using"].steps[0]
    assert reproduce._Work(tmp_path, "cpu")._do(using) == 1
    assert [command.split()[:2] for command in started] == [["-m", "ptb_lm.train"]]


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
    (kept / "result.json").unlink()
    assert made_for("small-tutorial") == ["small-tutorial"]
