"""What a run measures of a suite, and what is said of a name that the suite does not have."""

from typing import Any

import pytest

from ptb_lm.bench.selection import Options, selected
from ptb_lm.bench.variants import Variant
from ptb_lm.errors import UserError


def chosen(suite: str, **options: Any) -> dict[str, list[str]]:
    workloads = selected(Options(suite=suite, **options), [Variant("mine/custom", "mine")])  # type: ignore[arg-type]
    return {workload.name: [variant.name for variant in workload.variants] for workload in workloads}


def test_patterns_choose_workloads_and_variants_and_the_baseline_stays() -> None:
    assert chosen("ptb", workloads=("medium", "l*"), variants=("torch/c*", "mine/custom")) == {
        "medium": ["torch/basic", "torch/cudnn", "mine/custom"],
        "large": ["torch/basic", "torch/cudnn", "mine/custom"],
    }


def test_another_baseline_is_measured_and_the_declared_one_only_if_asked_for() -> None:
    options = {"workloads": ("small",), "variants": ("torch/block",), "baseline": "plain-torch/cudnn"}
    assert chosen("ptb", **options) == {"small": ["plain-torch/cudnn", "torch/block"]}
    (workload,) = selected(Options(suite="quick", baseline="torch/basic"))
    assert workload.baseline == "torch/basic"


def refusal(suite: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        chosen(suite, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "beginning", "end"),
    [
        (
            {"workloads": ("huge",)},
            "--workloads huge: matches nothing of the suite quick; ",
            "there is small",
        ),
        (
            {"variants": ("jax/*",)},
            "--variants jax/*: matches nothing of small; there is plain-torch/cudnn, ",
            " and 4 more",
        ),
        (
            {"variants": ("torch/cudn",)},
            "--variants torch/cudn: matches nothing of small; the nearest of 7: torch/cudnn, ",
            "",
        ),
        (
            {"variants": ("torch/cudnn@bf61",)},
            "--variants torch/cudnn@bf61: matches nothing of small; the nearest of 7: torch/cudnn, ",
            "; precisions are fp32, tf32, bf16, fp16, fp64",
        ),
        (
            {"variants": ("torch/cudnn@bf16",)},
            "--variants torch/cudnn@bf16: matches nothing of small; the nearest of 7: torch/cudnn, ",
            "; --precision bf16 is for all that name none",
        ),
        (
            {"baseline": "mine/costum"},
            "--baseline mine/costum: no such variant of small; ",
            "the nearest of 7: mine/custom",
        ),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest(
    options: dict[str, Any], beginning: str, end: str
) -> None:
    sentence = refusal("quick", **options)
    assert sentence.startswith(beginning)
    assert sentence.endswith(end)
    assert len(sentence) < 200


def test_a_long_list_is_not_recited() -> None:
    sentence = refusal("executions", variants=("tensorflow/basik/graph",))
    assert sentence.startswith("--variants tensorflow/basik/graph: matches nothing of small, medium; the ")
    assert "tensorflow/basic/xla" in sentence or "tensorflow/basic" in sentence
    assert len(sentence) < 200


def test_a_baseline_must_be_one_of_every_workload() -> None:
    sentence = refusal("ptb", baseline="plain-tensorflow/keras")
    assert sentence.startswith("--baseline plain-tensorflow/keras: no such variant of large; the nearest of ")
    assert chosen("ptb", baseline="plain-tensorflow/keras", workloads=("small", "medium"))
