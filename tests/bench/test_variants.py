"""Names of variants, and what the registries make of them."""

import subprocess
from typing import Any

import pytest
from support import ROOT, random_weights, random_windows

from ptb_lm.bench import variants
from ptb_lm.bench.language_workloads import _every_execution
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant, original
from ptb_lm.common.errors import UserError
from ptb_lm.model import reference
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("torch/cudnn", ("torch", "cudnn", None, None)),
        ("torch/basic/jit", ("torch", "basic", "jit", None)),
        ("tensorflow/basic/graph/loop", ("tensorflow", "basic", "graph", "loop")),
        ("torch/cudnn@bf16", ("torch", "cudnn", None, None)),
        ("torch/cudnn/graph@bf16", ("torch", "cudnn", "graph", None)),
        ("torch/cudnn#again", ("torch", "cudnn", None, None)),
        ("torch/cudnn/graph#again@bf16", ("torch", "cudnn", "graph", None)),
        ("torch", ("torch", None, None, None)),
        ("torch#again@bf16", ("torch", None, None, None)),
    ],
)
def test_a_name_has_up_to_four_parts_and_a_precision(name: str, parts: tuple) -> None:
    variant = Variant(name)
    assert tuple(variant.parts.values()) == parts
    assert variant.program == tuple(part or "" for part in parts[:2])
    assert variant.precision == ("bf16" if name.endswith("@bf16") else None)


def test_every_suite_names_only_what_a_registry_knows_and_measures_one_variant_twice() -> None:
    for workload in (each for suite in SUITES.values() for each in suite.workloads):
        for variant in workload.variants:
            parts = variant.parts
            row = workload.task.registry[str(parts["framework"])]
            assert str(parts["model"]) in row.models
            assert parts["execution"] in (None, *row.executions)
            assert parts["unroll"] in (None, *row.unrolls)
            assert variant.precision in (None, *row.precisions)
        names = [variant.name for variant in workload.variants]
        assert workload.baseline in names
        assert len(set(names)) == len(names)
        assert len({(variant.label, variant.precision) for variant in workload.variants}) == len(names)
        assert [original(name) for name in names if original(name) != name] == [workload.measured_twice]
        assert workload.rounds >= workload.processes >= 5


@pytest.mark.parametrize(
    ("name", "again"),
    [("torch/cudnn", "torch/cudnn#again"), ("torch/cudnn/graph@tf32", "torch/cudnn/graph#again@tf32")],
)
def test_what_is_measured_again_is_the_same_program(name: str, again: str) -> None:
    variant = Variant(name, "A label").again()
    assert variant == Variant(again, "A label, again")
    assert original(again) == name
    assert variant.parts == Variant(name).parts
    assert variant.precision == Variant(name).precision
    assert variant.at("fp64").name == f"{original(again).partition('@')[0]}#again@fp64"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_combination_is_named_once_and_none_that_is_refused(framework: str) -> None:
    row = FRAMEWORKS[framework]
    names = [variant.name for variant in _every_execution(framework)]
    assert len(set(names)) == len(names)
    seen = set()
    for name in names:
        parts = Variant(name).parts
        model = str(parts["model"])
        execution, unroll = parts["execution"] or row.executions[0], parts["unroll"] or row.unrolls[0]
        assert not {(model, execution), (model, unroll)} & row.refusals.keys()
        seen.add((model, execution, unroll))
    wanted = {
        (model, execution, unroll)
        for model in row.models
        for execution in row.executions
        for unroll in row.unrolls
        if execution != "auto"
        and not {(model, execution), (model, unroll)} & row.refusals.keys()
        and (execution != "eager" or unroll == row.unrolls[0])
    }
    assert seen == wanted


NAMELESS = [
    "mine",
    "=a:b",
    "mine=a",
    "mine=a:",
    "mine=:b",
    "mine=a:b:c",
    "a/b=c:d",
    "a@bf16=c:d",
    "a#again=c:d",
]


@pytest.mark.parametrize(
    ("given", "noun"),
    [*((given, "NAME=MODULE:FUNCTION") for given in NAMELESS), ("torch=numpy:array", "'torch' is taken")],
)
def test_adding_wants_a_free_name_and_a_function(given: str, noun: str) -> None:
    with pytest.raises(UserError, match=noun):
        variants.add(given)


def test_an_added_module_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nowhere_to_be_found:build"):
        built_by("mine=nowhere_to_be_found:build", Config(), {}, monkeypatch)


@pytest.mark.parametrize(
    ("name", "precision"), [("torch/cudnn", "torch.float32"), ("torch/cudnn@bf16", "torch.bfloat16")]
)
def test_the_name_s_precision_comes_before_the_run_s(name: str, precision: str, tiny_config: Config) -> None:
    build = Variant(name).builder(variants.REGISTRY, device="cpu", precision="fp32", seed=1)
    assert str(build(tiny_config, random_weights(tiny_config, 11, 1)).dtype) == precision


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (Variant("torch/cudnn", "An LSTM"), Variant("torch/cudnn@bf16", "An LSTM")),
        (Variant("torch/cudnn/graph@fp32", "An LSTM"), Variant("torch/cudnn/graph@bf16", "An LSTM")),
        # A label that is the name stays the name.
        (Variant("torch/cudnn", "torch/cudnn"), Variant("torch/cudnn@bf16", "torch/cudnn@bf16")),
    ],
)
def test_a_variant_at_another_precision(variant: Variant, expected: Variant) -> None:
    assert variant.at("bf16") == expected


@pytest.mark.parametrize(
    ("name", "precision", "offered"),
    [
        ("torch/cudnn", "bf16", True),
        ("plain-torch/cudnn/compile", "bf16", True),
        ("tensorflow/basic", "fp64", True),
        ("tensorflow/block_fused", "fp64", False),  # refused of this model alone
        ("plain-torch/cudnn", "fp16", False),
    ],
)
def test_a_framework_offers_its_precisions_less_a_model_s_refusals(
    name: str, precision: str, offered: bool
) -> None:
    assert Variant(name).has_precision(precision, variants.REGISTRY) is offered


@pytest.mark.parametrize(
    ("name", "precision", "noun"),
    [("plain-torch/cudnn", "fp64", "'fp64'"), ("plain-torch/cudnn@fp16", "fp32", "'fp16' for plain-torch")],
)
def test_a_precision_that_a_program_lacks_is_refused(name: str, precision: str, noun: str) -> None:
    with pytest.raises(UserError, match=f"unknown precision {noun}"):
        Variant(name).builder(variants.REGISTRY, device="cpu", precision=precision, seed=1)


def built_by(added: str, config: Config, weights: dict, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a function that --add names builds."""
    monkeypatch.setattr(variants, "ADDED", {})
    variant = variants.add(added)
    assert variant.name == f"{added.partition('=')[0]}/custom"
    return variant.builder(variants.ADDED, device="cpu", precision="fp64", seed=5)(config, weights)


@pytest.mark.parametrize(
    "typed", ["--add mine=a:b", "--add other=c:d mine=a:b", "--add=mine=a:b", "'--add=mine=a:b'"]
)
def test_what_was_added_is_described_however_it_was_typed(typed: str) -> None:
    assert (
        variants.description("mine/custom", f"python -m ptb_lm.bench run quick {typed} --rounds 4") == "a:b"
    )


def test_an_added_function_is_called_with_keywords(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = random_weights(tiny_config, 11, 1)
    config, given, chosen = built_by("mine=wrong_variant:as_given", tiny_config, weights, monkeypatch)
    assert (config, given) == (tiny_config, weights)
    assert chosen == {
        "model": "custom",
        "execution": "eager",
        "unroll": "static",
        "device": "cpu",
        "precision": "fp64",
        "seed": 5,
    }


@pytest.mark.slow
def test_an_added_function_of_an_earlier_commit_still_builds(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package of that commit takes keywords, and knows nothing of a choice."""
    before = pytest.importorskip("benchmarks.rivals.before")
    known = subprocess.run(["git", "-C", ROOT, "cat-file", "-e", before.COMMIT], capture_output=True)
    if known.returncode:
        pytest.skip(f"needs the commit {before.COMMIT}, which this checkout lacks")
    weights = random_weights(tiny_config, 11, 1)
    model = built_by("then=benchmarks.rivals.before:cudnn", tiny_config, weights, monkeypatch)
    assert type(model._model).__module__.startswith("ptb_lm_before.")
    ((x_BT, y_BT),) = random_windows(tiny_config, 11, 1, seed=2)
    x_device, y_device = model.to_device(x_BT), model.to_device(y_BT)  # as the benchmark asks it
    _, loss = model.evaluate_step(x_device, y_device, model.zero_state(3))
    expected, _, _ = reference.loss_and_gradients(weights, x_BT, y_BT, reference.zero_state(weights, 3))
    assert model.read([loss])[0].nll / 3 == pytest.approx(expected, rel=1e-12)
