"""What a run measures of a suite, and what is said of a name that the suite does not have."""

import dataclasses
import itertools
from typing import Any

import pytest

from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import variants
from ptb_lm.bench.selection import Options, select_workloads
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant
from ptb_lm.common.errors import UserError


@pytest.fixture(autouse=True)
def _mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant of the user's own, forgotten afterwards."""
    monkeypatch.setattr(variants, "ADDED", {})
    assert variants.add("mine=anywhere:build") == MINE


MINE = Variant("mine/custom", "mine")


def chosen(suite: str, **options: Any) -> dict[str, list[str]]:
    workloads = select_workloads(Options(suite=suite, **options), [MINE])  # type: ignore[arg-type]
    return {workload.name: [variant.name for variant in workload.variants] for workload in workloads}


def test_patterns_choose_workloads_and_variants_and_the_baseline_stays() -> None:
    assert chosen("ptb", workloads=("medium", "l*"), variants=("torch/c*", "mine/custom")) == {
        "medium": ["torch/basic", "torch/cudnn", "torch/cudnn#again", "mine/custom"],
        "large": ["torch/basic", "torch/cudnn", "torch/cudnn#again", "mine/custom"],
    }


def test_what_is_checked_alone_needs_no_baseline() -> None:
    options = Options(suite="ptb", workloads=("medium",), variants=("torch/cudnn",))
    (workload,) = select_workloads(options, with_baseline=False)
    assert [variant.name for variant in workload.variants] == ["torch/cudnn"]


def test_another_baseline_is_measured_and_the_declared_one_only_if_asked_for() -> None:
    options = {"workloads": ("small",), "variants": ("torch/block",), "baseline": "plain-torch/cudnn"}
    assert chosen("ptb", **options) == {"small": ["plain-torch/cudnn", "torch/block"]}
    (workload,) = select_workloads(Options(suite="quick", baseline="torch/basic"))
    assert workload.baseline == "torch/basic"


@pytest.mark.parametrize(
    ("suite", "patterns", "names"),
    [
        ("quick", ("torch/cudnn", "torch/cudnn@bf16"), ("torch/cudnn", "torch/cudnn@bf16")),
        (
            "quick",
            ("torch/c*@bf16", "mine/*@fp64"),
            ("torch/cudnn@bf16", "torch/cudnn#again@bf16", "mine/custom@fp64"),
        ),
        # What a wildcard matches is left out where the framework lacks the precision; what is named stays.
        ("quick", ("*/block_fused@fp64",), ("torch/block_fused@fp64",)),
        ("quick", ("tensorflow/block_fused@fp64",), ("tensorflow/block_fused@fp64",)),
        ("executions", ("torch/basic/[ec]*@fp64",), ("torch/basic/eager@fp64", "torch/basic/compile@fp64")),
        # Of variants that name a precision, the same at another; those that are there stand there once.
        ("peak", ("plain-torch/*@bf16",), ("plain-torch/cudnn@bf16",)),
        (
            "peak",
            ("torch/*/graph@fp16",),
            ("torch/cudnn/graph@fp16", "torch/persistent/graph@fp16", "torch/block_fused/graph@fp16"),
        ),
        ("acoustic", ("torch/cudnn@fp64", "torch/cudnn"), ("torch/cudnn", "torch/cudnn@fp64")),
        ("template", ("tensorflow/b*@fp64",), ("tensorflow/basic@fp64",)),
    ],
)
def test_a_pattern_with_a_precision_selects_at_that_precision(
    suite: str, patterns: tuple[str, ...], names: tuple[str, ...]
) -> None:
    workload, *_ = select_workloads(Options(suite=suite, variants=patterns), [MINE])
    assert tuple(variant.name for variant in workload.variants) == (workload.baseline, *names)


def test_the_label_stays_and_the_report_tells_the_precision() -> None:
    (workload,) = select_workloads(Options(suite="quick", variants=("torch/cudnn@bf16",)))
    assert workload.variants[1] == Variant("torch/cudnn@bf16", "PyTorch cudnn (nn.LSTM)")


def test_a_baseline_may_name_a_precision() -> None:
    (workload,) = select_workloads(
        Options(suite="quick", variants=("torch/*@bf16",), baseline="plain-torch/cudnn@bf16")
    )
    assert workload.baseline == "plain-torch/cudnn@bf16"
    every = [
        "plain-torch/cudnn",
        *(f"torch/{model}" for model in ("basic", "block", "block_fused", "cudnn#again", "cudnn")),
    ]
    assert sorted(variant.name for variant in workload.variants) == [f"{name}@bf16" for name in every]
    (declared,) = select_workloads(Options(suite="quick"))
    assert workload.variants[0].label == declared.variants[0].label, "the same program"


def refusal(suite: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        chosen(suite, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "beginning", "end"),
    [
        (
            {"workloads": ("huge",)},
            "--workloads huge: ",
            "small",
        ),
        (
            {"variants": ("jax/*",)},
            "--variants jax/*: ",
            " and 5 more",
        ),
        (
            {"variants": ("torch/cudn",)},
            "--variants torch/cudn: ",
            "",
        ),
        (
            {"variants": ("torch/cudnn@bf61",)},
            "--variants torch/cudnn@bf61: ",
            "; precisions are fp32, tf32, bf16, fp16, fp64",
        ),
        (
            {"variants": ("tensorflow/*@fp64",)},
            "--variants tensorflow/*@fp64: ",
            "none of tensorflow/* computes in fp64",
        ),
        (
            {"variants": ("torch/cudn@bf16",)},
            "--variants torch/cudn@bf16: ",
            "; precisions are fp32, tf32, bf16, fp16, fp64",
        ),
        (
            {"baseline": "torch/cudn@bf16"},
            "--baseline torch/cudn@bf16: ",
            "; precisions are fp32, tf32, bf16, fp16, fp64",
        ),
        (
            {"baseline": "mine/costum"},
            "--baseline mine/costum: ",
            "mine/custom",
        ),
        ({"rounds": 2, "processes": 3}, "--processes 3 is more than the 2 rounds", ""),
        ({"minutes": 30.0, "rounds": 4}, "--minutes ", ""),
        ({"minutes": 30.0, "processes": 2}, "--minutes ", ""),
    ],
)
def test_a_name_is_answered_with_the_nearest_and_numbers_that_do_not_fit_are_refused(
    options: dict[str, Any], beginning: str, end: str
) -> None:
    sentence = refusal("quick", **options)
    assert sentence.startswith(beginning)
    assert sentence.endswith(end)
    assert len(sentence) < 200


def test_a_baseline_must_be_one_of_every_workload() -> None:
    sentence = refusal("ptb", baseline="plain-tensorflow/keras")
    assert sentence.startswith("--baseline plain-tensorflow/keras: ")
    assert chosen("ptb", baseline="plain-tensorflow/keras", workloads=("small", "medium"))


@pytest.mark.parametrize(
    ("options", "rounds", "processes"),
    [
        ({}, 10, 5),
        ({"rounds": 2}, 2, 2),
        ({"rounds": 12}, 12, 5),
        ({"processes": 7}, 14, 7),
        ({"rounds": 4, "processes": 2}, 4, 2),
    ],
)
def test_processes_share_the_rounds(options: dict[str, int], rounds: int, processes: int) -> None:
    (workload,) = select_workloads(Options(suite="quick", **options))  # type: ignore[arg-type]
    assert (workload.rounds, workload.processes) == (rounds, processes)
    assert (workload.minutes is not None) == (not options), "what is given is not planned"
    assert [*itertools.chain(*workload.rounds_by_process)] == [*range(rounds)]
    lengths = [len(each) for each in workload.rounds_by_process]
    assert len(lengths) == processes
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_listed_with_its_variants_and_its_plan(
    suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["list", suite]) == 0
    listed = capsys.readouterr().out
    for workload in SUITES[suite].workloads:
        assert f"\n  {workload.name}: " in listed
        assert f"{workload.processes} processes" in listed
        assert ("minutes" in listed) == (workload.minutes is not None)
        assert all(variant.name in listed for variant in workload.variants)


def test_each_option_has_a_flag() -> None:
    """By its name: an option without one would silently have its default."""
    given = vars(bench._parser().parse_args(["run", "quick"]))
    assert {each.name for each in dataclasses.fields(Options)} <= given.keys()
