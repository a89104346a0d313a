"""The model and the precision that no flag names: which, what was measured, and the machine they are for."""

import csv
import dataclasses
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from implementations import override_implementation
from support import ROOT
from typing_extensions import override

from ptb_lm.bench import summary
from ptb_lm.bench.results import Result, ResultGroup, speed_ratio
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant, original
from ptb_lm.common.errors import UserError
from ptb_lm.common.program import command_name
from ptb_lm.model import fastest
from ptb_lm.model.cells import CELLS
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.fastest import AUTO_CHOICES
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import PRESETS, SMALL
from ptb_lm.model.ranks import Ranks
from ptb_lm.model.rules import BFLOAT16, FEATURES, HOPPER, KERNELS, MEASURED_CORES, RULES, MachineFacts, Rule

CPU = {KERNELS}
NATIVE = {KERNELS, BFLOAT16}
GPU = "another GPU"  # than a Hopper
_machines: dict[str, MachineFacts] = {}


def examine(device: str) -> MachineFacts:
    """Return the machine that a test has put here: what the table of frameworks names below."""
    return _machines["this"]


REGISTRY = {
    name: dataclasses.replace(row, examine=f"{__name__}:examine", build="builtins:dict")
    for name, row in FRAMEWORKS.items()
}


def choose(
    features: set[str],
    config: Config = SMALL,
    *,
    ranks: Ranks | None = None,
    cores: int = 2,
    **flag_values: Any,
) -> fastest.Decision:
    """Choose for a machine with these features, with HOPPER or GPU one that has a GPU."""
    device = "cuda" if features & {HOPPER, GPU} else "cpu"
    _machines["this"] = MachineFacts(
        device=device, name=f"a {device}", features=frozenset(features), cores=cores
    )
    choice = dataclasses.replace(fastest.choose_safe(flag_values, cell=config.cell), registry=REGISTRY)
    return fastest.choose(choice, config, fixed=flag_values, ranks=ranks or Ranks(1))


MEDIUM = PRESETS["medium"]
TIED = MEDIUM.replace(tie_weights=True)
NARROW_EMBEDDING = MEDIUM.replace(embedding_size=20)
NARROW = SMALL.replace(hidden_size=199)
LARGE = MEDIUM.replace(hidden_size=1500)
MOST_ROWS, TOO_MANY_ROWS = (MEDIUM.replace(batch_size=rows) for rows in (128, 129))
MOGRIFIER = MEDIUM.replace(cell="mogrifier_lstm")
GRU, LAYER_NORM = SMALL.replace(cell="gru"), SMALL.replace(cell="layer_norm_lstm")


@pytest.mark.parametrize(
    ("features", "config", "flag_values", "expected"),
    [
        (NATIVE, SMALL, {}, "block_fused bf16"),
        (NATIVE, LARGE, {}, "block_fused bf16"),
        (NATIVE, TIED, {}, "block_fused bf16"),
        (NATIVE, NARROW_EMBEDDING, {}, "block_fused bf16"),
        (NATIVE, NARROW, {}, "cudnn fp32"),
        (CPU, SMALL, {}, "block_fused fp32"),
        ({BFLOAT16}, SMALL, {}, "cudnn fp32"),
        (set[str](), SMALL, {}, "cudnn fp32"),
        (NATIVE, SMALL, {"model": "cudnn"}, "cudnn bf16"),
        (CPU, SMALL, {"model": "cudnn"}, "cudnn fp32"),
        (NATIVE, SMALL, {"model": "basic"}, "basic fp32"),
        (NATIVE, SMALL, {"precision": "fp32"}, "block_fused fp32"),
        (NATIVE, SMALL, {"precision": "fp64"}, "cudnn fp64"),
        (CPU, SMALL, {"precision": "bf16"}, "cudnn bf16"),
        (NATIVE, SMALL, {"model": "cudnn", "precision": "fp32"}, "cudnn fp32"),
        (NATIVE, SMALL, {"execution": "eager"}, "block_fused bf16"),
        (NATIVE, SMALL, {"execution": "compile"}, "block_fused fp32"),
        (NATIVE, SMALL, {"execution": "jit"}, "block fp32"),
        (NATIVE, GRU, {}, "cudnn fp32"),
        (NATIVE, GRU, {"execution": "compile"}, "basic fp32"),
        (NATIVE, LAYER_NORM, {}, "basic fp32"),
        (NATIVE, SMALL, {"framework": "tensorflow"}, "block_fused fp32"),
        (NATIVE, SMALL, {"framework": "tensorflow", "model": "cudnn"}, "cudnn fp32"),
        (NATIVE, SMALL, {"framework": "tensorflow", "execution": "xla"}, "cudnn fp32"),
        ({GPU}, SMALL, {"framework": "tensorflow", "execution": "xla"}, "basic fp32"),
        ({GPU}, SMALL, {"framework": "tensorflow", "execution": "xla", "model": "cudnn"}, "cudnn fp32"),
        (NATIVE, SMALL, {"framework": "tensorflow", "unroll": "loop"}, "block fp32"),
        (NATIVE, SMALL, {"framework": "tensorflow", "precision": "fp64"}, "cudnn fp64"),
        (NATIVE, LAYER_NORM, {"framework": "tensorflow"}, "basic fp32"),
        ({HOPPER}, MEDIUM, {}, "persistent fp16"),
        ({HOPPER}, MEDIUM, {"execution": "eager"}, "cudnn fp32"),
        ({HOPPER}, MEDIUM, {"model": "cudnn"}, "cudnn fp32"),
        ({HOPPER}, MEDIUM, {"precision": "fp32"}, "cudnn fp32"),
        ({HOPPER}, MOST_ROWS, {}, "persistent fp16"),
        ({HOPPER}, TOO_MANY_ROWS, {}, "cudnn fp32"),
        (NATIVE, MOGRIFIER, {}, "block_fused fp32"),
        (set[str](), MOGRIFIER, {}, "block_fused fp32"),
        ({HOPPER}, SMALL, {}, "cudnn fp32"),
        ({HOPPER}, SMALL, {"model": "persistent"}, "persistent fp16"),
        ({HOPPER}, LARGE, {"model": "persistent", "execution": "eager"}, "persistent fp16"),
        ({GPU}, MEDIUM, {"model": "persistent"}, "persistent fp16"),
        ({GPU}, MEDIUM, {"model": "persistent", "precision": "fp32"}, "persistent fp32"),
        ({GPU}, MEDIUM, {}, "cudnn fp32"),
        (NATIVE, MEDIUM, {"model": "persistent"}, "persistent fp32"),
        ({HOPPER}, LARGE, {}, "cudnn fp32"),
        ({HOPPER}, GRU, {}, "cudnn fp32"),
        ({HOPPER}, MEDIUM, {"framework": "tensorflow"}, "cudnn fp32"),
    ],
)
def test_the_choice_for_a_machine(
    features: set[str], config: Config, flag_values: dict[str, str], expected: str
) -> None:
    decision = choose(features, config, **flag_values)
    assert f"{decision.choice.model} {decision.choice.precision}" == expected
    assert {name: getattr(decision.choice, name) for name in flag_values} == flag_values, (
        "what a user names stays"
    )
    assert bool(decision.reason) == (not flag_values.keys() >= set(AUTO_CHOICES)), (
        "a reason for each choice of ours"
    )
    measured = any(f"{rule.model} {rule.precision}" == expected and rule.evidence for rule in RULES)
    because = "no measurement" in decision.reason or "the one precision" in decision.reason
    assert measured or because or not decision.reason


def test_several_gpus_are_unmeasured() -> None:
    assert choose({HOPPER}, MEDIUM, ranks=Ranks(2)).choice.model == "cudnn"


@pytest.mark.parametrize(
    ("features", "config", "more", "beyond"),
    [
        (NATIVE, MEDIUM, {}, ""),
        (NATIVE, LARGE, {}, "1,500 units"),
        (NATIVE, LARGE, {"cores": 16}, "1,500 units or 16 cores"),
        (NATIVE, SMALL, {"ranks": Ranks(2)}, "2 processes"),
        (CPU, LARGE, {}, ""),
        (CPU, LARGE.replace(hidden_size=2000), {}, "2,000 units"),
        ({HOPPER}, MEDIUM.replace(hidden_size=1000), {"cores": 16}, "1,000 units"),
    ],
)
def test_what_was_not_measured_is_said(
    features: set[str],
    config: Config,
    more: dict[str, Any],
    beyond: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_measured() -> str:
        found = re.search("not with ([^;]*)", choose(features, config, **more).reason)
        return found[1] if found else ""

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert not_measured() == beyond
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert ("aarch64" in not_measured()) == (HOPPER not in features)


@pytest.mark.parametrize("features", [NATIVE, CPU])
@pytest.mark.parametrize("flag_values", [{}, {"model": "block_fused"}, {"precision": "fp32"}])
def test_a_faster_precision_that_is_not_taken_is_told(
    features: set[str], flag_values: dict[str, str]
) -> None:
    """Where it is faster, unless the user has chosen one. The Mogrifier's benchmark has a faster one."""
    reason = choose(features, MOGRIFIER, **flag_values).reason
    assert ("bf16 is faster" in reason) == ("precision" not in flag_values and BFLOAT16 in features)
    assert ("no other model in fp32 was" in reason) == ("precision" not in flag_values)
    assert "bf16 is faster" not in choose(features, MEDIUM, **flag_values).reason


def test_a_rule_in_float32_says_nothing_of_other_precisions() -> None:
    """Its benchmarks have faster ones, on other processors."""
    for flag_values in ({}, {"model": "block_fused"}):
        assert "no other model in fp32 was" in choose(CPU, **flag_values).reason
    assert "no other choice was" in choose(NATIVE).reason


@pytest.mark.parametrize(
    ("features", "flag_values", "is_advised"),
    [
        ({GPU}, {}, True),
        ({GPU}, {"model": "cudnn"}, True),
        ({GPU}, {"precision": "fp32"}, False),
        ({GPU}, {"framework": "tensorflow"}, False),
        ({HOPPER}, {}, True),
        (set[str](), {}, False),
    ],
)
def test_on_a_gpu_that_was_not_measured_the_user_is_told_what_to_try(
    features: set[str], flag_values: dict[str, str], is_advised: bool
) -> None:
    """And how to measure it: by a command that there is."""
    reason = choose(features, SMALL, **flag_values).reason
    assert ("tf32" in reason) == is_advised
    if is_advised:
        command = reason.partition(f"{command_name('bench')} ")[2].split()[:2]
        assert command == ["run", "peak"]
        assert "peak" in SUITES
        programs = {variant.name for workload in SUITES["peak"].workloads for variant in workload.variants}
        assert {"torch/cudnn/graph@tf32", "torch/persistent/graph@fp16"} <= programs


@pytest.mark.parametrize(
    ("features", "precision", "is_slow"),
    [
        (NATIVE, "bf16", False),
        (CPU, "bf16", True),
        (NATIVE, "fp16", True),
        (CPU, "fp64", False),
        ({HOPPER}, "fp16", False),
        ({GPU}, "bf16", True),
        ({GPU, BFLOAT16}, "bf16", False),
    ],
)
def test_half_precision_is_slow_without_instructions_for_it(
    features: set[str], precision: str, is_slow: bool
) -> None:
    choice = choose(features, model="cudnn", precision=precision).choice
    assert fastest.is_slow(precision, choice) == is_slow


def test_what_one_machine_lacks_none_uses() -> None:
    class OtherLacksBfloat16(Ranks):
        @override
        def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> Sequence[int]:
            return [int(feature == BFLOAT16 or feature not in NATIVE) for feature in FEATURES]

    decision = choose(NATIVE, ranks=OtherLacksBfloat16(1))
    assert (decision.choice.model, decision.choice.precision) == ("block_fused", "fp32")
    alone, together = choose(NATIVE).reason, decision.reason
    assert "for a cpu:" in alone
    assert "devices, one of them a cpu:" in together


def test_a_rank_whose_user_chose_all_meets_the_others() -> None:
    met = []

    class OneOfTwo(Ranks):
        size = 2

        @override
        def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> Sequence[int]:
            met.append(numbers)
            return numbers

    decision = choose(NATIVE, ranks=OneOfTwo(), model="basic", precision="fp32")
    assert (decision.choice.model, decision.reason, len(met)) == ("basic", "", 1)


@pytest.mark.parametrize(
    ("flag_values", "problem"),
    [
        ({"framework": "theano"}, "framework 'theano'"),
        ({"execution": "xla"}, "execution 'xla' .* auto, eager, graph, compile, jit$"),
        ({"framework": "tensorflow", "unroll": "loop", "execution": "jit"}, "'jit' .* graph, eager, xla$"),
        ({"model": "cudnn", "execution": "jit"}, "TorchScript"),
        ({"framework": "tensorflow", "precision": "bf16"}, "precision 'bf16'"),
        ({"framework": "tensorflow", "unroll": "loop", "execution": "xla"}, None),
    ],
)
def test_choices_that_no_model_has_are_refused(flag_values: dict[str, str], problem: str | None) -> None:
    if problem is None:
        assert choose(CPU, **flag_values).choice.model == "basic"
        return
    with pytest.raises(UserError, match=problem):
        choose(CPU, **flag_values)


def test_a_framework_without_a_cell_names_all_that_it_has() -> None:
    with pytest.raises(UserError, match=r"--cell lstm or layer_norm_lstm or mogrifier_lstm$"):
        fastest.choose_safe({"framework": "tensorflow"}, cell="gru").check_cell("gru")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_safe_choice_is_made_of_a_possible_model(framework: str) -> None:
    """For every cell, execution, unroll and precision that some model of the framework has."""
    row = FRAMEWORKS[framework]
    for model in row.models:
        for kind, names in row.options(model).items():
            for name in names:
                choice = fastest.choose_safe({"framework": framework, kind: name}, cell="lstm")
                assert getattr(choice, kind) == name


# The evidence.

QUESTIONS: tuple[dict[str, str], ...] = (
    {},
    *({"model": model} for model in ("basic", "block", "block_fused", "cudnn", "persistent")),
    *({"precision": precision} for precision in ("fp32", "bf16", "fp16", "tf32")),
)
EVIDENCE = sorted({(each, rule.framework) for rule in RULES for each in rule.evidence})


def features_of(file: str, group: ResultGroup) -> set[str]:
    """Return what the machine had on which a benchmark was measured, and what its variants used of it."""
    if file.endswith("cuda"):
        return {HOPPER}
    if "without-amx" in file:  # products in bfloat16, but slow ones
        return CPU
    return NATIVE if any(result.variant.endswith("@bf16") for result in group.candidates) else CPU


@pytest.mark.parametrize(("where", "framework"), EVIDENCE)
def test_a_rule_takes_the_fastest_that_was_measured(where: tuple[str, str], framework: str) -> None:
    """No variant that would also answer the question is faster, by the 95 % interval of the ratio."""
    file, workload = where
    group = _read(file, workload)
    config = Config(**{**dataclasses.asdict(SMALL), **_sizes(workload)})
    asked = 0
    for question in QUESTIONS:
        if question.get("model", "cudnn") not in FRAMEWORKS[framework].models:
            continue
        if question.get("precision", "fp32") not in FRAMEWORKS[framework].precisions:
            continue
        decision = choose(features_of(file, group), config, framework=framework, **question).choice
        rules = [
            rule
            for rule in RULES
            if where in rule.evidence
            and rule.framework == framework
            and (rule.model, rule.precision) == (decision.model, decision.precision)
        ]
        if not rules:
            continue  # no rule is about this question, and the safe choice needs no measurement
        (rule,) = rules
        asked += 1
        mine = _result(group, rule.variant)
        for other in _answers(group, framework, question):
            if other.variant == mine.variant or other.blocks[0].work.precision == rule.faster_precision:
                continue
            ratio = speed_ratio(other, mine)
            assert ratio is not None
            assert ratio.interval is not None
            assert ratio.interval[0] <= 1, f"{other.variant} is faster than {rule.variant}: {ratio.interval}"
    assert asked, "a rule names evidence that it does not answer by"


def _answers(group: ResultGroup, framework: str, question: dict[str, str]) -> Iterator[Result]:
    """Yield the framework's measured models that would answer a question of ours."""
    for result in group.measured_results:
        kind, _, rest = original(result.variant).partition("/")
        model = re.split("[/@]", rest)[0]
        precision = result.blocks[0].work.precision
        answer = {"model": model, "precision": precision}
        if kind == framework and answer == answer | question:
            yield result


def _result(group: ResultGroup, variant: str) -> Result:
    (found,) = [result for result in group.measured_results if result.variant == variant]
    return found


def _read(file: str, workload: str) -> ResultGroup:
    found = summary.summarise(ROOT / "results" / "bench" / f"{file}.jsonl.gz")
    (group,) = [each for each in found.groups if (each.workload, each.pass_name) == (workload, "train")]
    return group


def _sizes(workload: str) -> dict[str, Any]:
    """Return the sizes of a workload by its name, and its cell."""
    name, _, cell = workload.removesuffix("-rank-84").partition("-")
    units = {"small": 200, "medium": 650, "large": 1500, "word_language_model": 1500}
    units |= {"awd": 1150, "awd-2x650": 650}
    return {"hidden_size": units.get(workload) or units[name], "cell": cell if cell in CELLS else "lstm"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.variant)
def test_a_rule_says_how_wide_the_widest_layer_was_and_on_how_many_cores(rule: Rule) -> None:
    assert max(_sizes(workload)["hidden_size"] for _, workload in rule.evidence) == rule.widest_measured
    blocks = [row for where in rule.evidence for row in _result(_read(*where), rule.variant).blocks]
    assert rule.device == "cuda" or {row.environment["cores"] for row in blocks} == {MEASURED_CORES}
    assert {row.environment.get("processes", 1) for row in blocks} == {1}


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.faster_precision], ids=lambda rule: rule.variant
)
def test_a_precision_that_is_said_to_be_faster_was_measured_so(rule: Rule) -> None:
    for where in rule.evidence:
        group = _read(*where)
        faster = _result(group, f"{rule.framework}/{rule.model}@{rule.faster_precision}")
        ratio = speed_ratio(faster, _result(group, rule.variant))
        assert ratio is not None
        assert ratio.interval is not None
        assert ratio.interval[0] > 1
    with (ROOT / "results" / "runs.csv").open() as file:
        kept = [run for run in csv.DictReader(file) if f'"cell": "{rule.cell}"' in run["hyperparameters"]]
    exact, rounded = (
        {run["hyperparameters"] for run in kept if run["precision"] == precision and run["test"]}
        for precision in (rule.precision, rule.faster_precision)
    )
    assert not exact & rounded, "the precisions can be compared now"


# Of one configuration, as rounding alone parts them at a learning rate of 1; a seed parts them by as much.
CHANCE = 0.005


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.variant)
def test_a_rule_that_rounds_names_runs_that_it_cost_no_perplexity(rule: Rule) -> None:
    """By the mean of the runs of a configuration, against that of its runs in float32."""
    with (ROOT / "results" / "runs.csv").open() as file:
        kept = {run["id"]: run for run in csv.DictReader(file)}
    assert bool(rule.runs) == (rule.precision != "fp32")
    configurations = {kept[name]["hyperparameters"] for name in rule.runs}
    for configuration in configurations:
        alike = [run for run in kept.values() if run["hyperparameters"] == configuration]
        rounded = [float(run["test"]) for run in alike if run["id"] in rule.runs]
        exact = [float(run["test"]) for run in alike if run["precision"] == "fp32" and run["test"]]
        assert {kept[name]["precision"] for name in rule.runs} == {rule.precision}
        assert fmean(rounded) < (1 + CHANCE) * fmean(exact)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.variant)
def test_a_rule_names_what_it_takes(rule: Rule) -> None:
    """The variant that was measured is of its framework, model and precision, and could be chosen."""
    assert rule.variant.startswith(f"{rule.framework}/{rule.model}")
    assert (Variant(rule.variant).precision or "fp32") == rule.precision
    assert rule.required_features <= set(FEATURES)
    for execution in rule.executions:
        Choice.create(
            framework=rule.framework, model=rule.model, execution=execution, precision=rule.precision
        )


# The machine at hand.


@pytest.mark.slow
def test_torch_finds_what_this_machine_has() -> None:
    from ptb_lm.torch_backend import runtime

    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    machine = runtime.examine("cpu")
    assert machine.device == "cpu"
    needs_amx = "GenuineIntel" in flags and "avx512_fp16" in flags
    assert (BFLOAT16 in machine.features) == (("amx_bf16" if needs_amx else "avx512_bf16") in flags)
    assert HOPPER not in machine.features
    with override_implementation(kernels="torch"):
        assert KERNELS not in runtime.examine("cpu").features
        assert "without compiled kernels" in runtime.examine("cpu").name


@pytest.mark.gpu
def test_torch_finds_a_gpu() -> None:
    import torch

    from ptb_lm.torch_backend import runtime

    machine = runtime.examine("auto")
    assert machine.device == "cuda"
    assert (HOPPER in machine.features) == (torch.cuda.get_device_capability() == (9, 0))
