"""The choices of a run: complete, checked where they are made, and resolved in one place."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
from sequence_classifier import CLASSIFIERS

from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import CHOICE_NAMES, MAX_SEED, Choice
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.rules import MachineFacts


@pytest.mark.parametrize(("framework", "execution"), [("torch", "auto"), ("tensorflow", "graph")])
def test_the_defaults_are_the_framework_s_own(framework: str, execution: str) -> None:
    assert Choice.create(framework=framework) == Choice(
        framework=framework,
        model="cudnn",
        execution=execution,
        unroll="static",
        device="auto",
        precision="fp32",
        seed=1,
    )


def examine(device: str) -> MachineFacts:
    """Return a machine that has a GPU, as it is seen by a run on this device."""
    return MachineFacts(device="cpu" if device == "cpu" else "cuda", name=device)


@pytest.mark.parametrize(("device", "has_it"), [("cpu", False), ("cuda", True), ("auto", True)])
def test_a_gpu_s_precision_is_not_had_on_the_cpu_beside_it(device: str, has_it: bool) -> None:
    registry = {"torch": dataclasses.replace(FRAMEWORKS["torch"], examine=f"{__name__}:examine")}
    assert Choice.create(registry, device=device).can_have("tf32") == has_it


def test_a_module_of_our_own_that_is_missing_is_no_framework_to_install() -> None:
    choice = Choice.create()
    with pytest.raises(UserError, match="torch is not installed"):
        choice.import_function("no_such_framework:build")
    with pytest.raises(ModuleNotFoundError, match=r"ptb_lm\.no_such_module"):
        choice.import_function("ptb_lm.no_such_module:build")


@pytest.mark.parametrize(
    ("framework", "precision", "has_it"),
    [
        ("torch", "bf16", True),
        ("torch", "tf32", False),
        ("tensorflow", "fp64", True),
        ("tensorflow", "tf32", False),
    ],
)
def test_the_precisions_of_a_cpu(framework: str, precision: str, has_it: bool) -> None:
    assert Choice.create(framework=framework, device="cpu").can_have(precision) == has_it


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"framework": "theano"}, "framework 'theano'.* torch, tensorflow"),
        (
            {"framework": "tensorflow", "model": "persistent"},
            "model 'persistent'.* basic, block, block_fused, cudnn",
        ),
        ({"unroll": "loop"}, "unroll 'loop' .* static"),
        ({"device": "tpu"}, "device 'tpu' .* auto, cpu, cuda"),
        ({"framework": "tensorflow", "precision": "bf16"}, "precision 'bf16' .* fp32, fp64"),
        ({"model": "gru"}, "model 'gru' .* basic, block, block_fused, cudnn, persistent"),
        ({"model": "basic", "execution": "xla"}, "execution 'xla' .* auto, eager, graph, compile, jit"),
        ({"execution": "jit"}, "cudnn .*--execution jit: TorchScript .* auto, eager, graph"),
        ({"seed": -1}, f"--seed .* {MAX_SEED}"),
    ],
)
def test_an_unknown_choice_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=f"{problem}(, not -1)?$"):
        Choice.create(**given)


def test_a_changed_choice_is_checked_against_its_own_registry() -> None:
    choice = Choice.create(CLASSIFIERS, framework="torch", model="basic")
    assert dataclasses.replace(choice, precision="fp64").framework_row is CLASSIFIERS["torch"]
    with pytest.raises(UserError, match="unknown precision 'bf16' for torch"):
        dataclasses.replace(choice, precision="bf16")  # which its language model has


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_combination_of_the_registry_can_be_chosen(framework: str) -> None:
    row = FRAMEWORKS[framework]
    for model in row.models:
        for kind, names in row.options(model).items():
            for name in names:
                assert getattr(Choice.create(framework=framework, model=model, **{kind: name}), kind) == name


def test_a_choice_is_written_by_its_names() -> None:
    choice = Choice.create(model="block", seed=9)
    assert list(choice.to_json()) == list(CHOICE_NAMES)
    assert Choice(**choice.to_json()) == choice


@pytest.mark.slow
def test_choosing_imports_no_framework() -> None:
    code = (
        "import sys; from ptb_lm.model.choice import Choice; Choice.create(); "
        "Choice.create(framework='tensorflow'); "
        "assert not {'torch', 'tensorflow', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
