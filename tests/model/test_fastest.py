"""The model and the precision that no flag names: which, what was measured, and the machine they are for."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from typing_extensions import override

from ptb_lm.bench import summary
from ptb_lm.bench.summary import Group, Result, speed_ratio
from ptb_lm.bench.variants import declared_precision, original
from ptb_lm.common.errors import UserError
from ptb_lm.model import fastest
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import PRESETS, SMALL, Config
from ptb_lm.model.fastest import BFLOAT16, HOPPER, KERNELS, OPEN, RULES, Machine, Rule
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.ranks import Ranks

CPU = {KERNELS}
NATIVE = {KERNELS, BFLOAT16}
_machines: dict[str, Machine] = {}


def examine(device: str) -> Machine:
    """Return the machine that a test has put here: what the table of frameworks names below."""
    return _machines["this"]


REGISTRY = {
    name: dataclasses.replace(row, examine=f"{__name__}:examine", build="builtins:dict")
    for name, row in FRAMEWORKS.items()
}


def choose(
    features: set[str], config: Config = SMALL, *, ranks: Ranks | None = None, **given: Any
) -> fastest.Taken:
    """Choose for a machine with these features, with HOPPER a GPU."""
    device = "cuda" if HOPPER in features else "cpu"
    _machines["this"] = Machine(device=device, name=f"a {device}", features=frozenset(features))
    choice = fastest.choose_safe(given, cell=config.cell, registry=REGISTRY)
    return fastest.choose(choice, config, fixed=given.keys() & set(OPEN), ranks=ranks or Ranks(1))


MEDIUM = PRESETS["medium"]
TIED = MEDIUM.replace(tie_weights=True)
NARROW_EMBEDDING = MEDIUM.replace(embedding_size=20)
NARROW = SMALL.replace(hidden_size=199)
LARGE = MEDIUM.replace(hidden_size=1500)
MANY_ROWS = MEDIUM.replace(batch_size=129)
GRU, LAYER_NORM = SMALL.replace(cell="gru"), SMALL.replace(cell="layer_norm_lstm")


@pytest.mark.parametrize(
    ("features", "config", "given", "expected"),
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
        (NATIVE, SMALL, {"framework": "tensorflow", "unroll": "loop"}, "block fp32"),
        (NATIVE, SMALL, {"framework": "tensorflow", "precision": "fp64"}, "cudnn fp64"),
        (NATIVE, LAYER_NORM, {"framework": "tensorflow"}, "basic fp32"),
        ({HOPPER}, MEDIUM, {}, "persistent fp16"),
        ({HOPPER}, MEDIUM, {"execution": "eager"}, "cudnn fp32"),
        ({HOPPER}, MEDIUM, {"model": "cudnn"}, "cudnn tf32"),
        ({HOPPER}, MEDIUM, {"precision": "fp32"}, "cudnn fp32"),
        ({HOPPER}, MANY_ROWS, {}, "cudnn tf32"),
        ({HOPPER}, SMALL, {}, "cudnn fp32"),
        ({HOPPER}, LARGE, {}, "cudnn fp32"),
        ({HOPPER}, GRU, {}, "cudnn fp32"),
        ({HOPPER}, MEDIUM, {"framework": "tensorflow"}, "cudnn fp32"),
    ],
)
def test_the_choice_for_a_machine(
    features: set[str], config: Config, given: dict[str, str], expected: str
) -> None:
    taken = choose(features, config, **given)
    assert f"{taken.choice.model} {taken.choice.precision}" == expected
    assert {name: getattr(taken.choice, name) for name in given} == given, "what a user names stays"
    assert bool(taken.reason) == (not given.keys() >= set(OPEN)), "a reason for each choice of ours"
    measured = any(f"{rule.model} {rule.precision}" == expected and rule.evidence for rule in RULES)
    assert measured or "nothing faster was measured" in taken.reason or not taken.reason


def test_several_gpus_are_unmeasured() -> None:
    assert choose({HOPPER}, MEDIUM, ranks=Ranks(2)).choice.model == "cudnn"


def test_what_one_machine_lacks_none_uses() -> None:
    class OtherLacksBfloat16(Ranks):
        @override
        def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> Sequence[int]:
            return [int(feature == BFLOAT16 or feature not in NATIVE) for feature in fastest.FEATURES]

    choice = choose(NATIVE, ranks=OtherLacksBfloat16(1)).choice
    assert (choice.model, choice.precision) == ("block_fused", "fp32")


def test_a_rank_whose_user_chose_all_meets_the_others() -> None:
    met = []

    class OneOfTwo(Ranks):
        size = 2

        @override
        def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> Sequence[int]:
            met.append(numbers)
            return numbers

    taken = choose(NATIVE, ranks=OneOfTwo(), model="basic", precision="fp32")
    assert (taken.choice.model, taken.reason, len(met)) == ("basic", "", 1)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"framework": "theano"}, "framework 'theano'"),
        ({"execution": "xla"}, "execution 'xla'"),
        ({"model": "cudnn", "execution": "jit"}, "TorchScript"),
        ({"framework": "tensorflow", "precision": "bf16"}, "precision 'bf16'"),
        ({"framework": "tensorflow", "unroll": "loop", "execution": "xla"}, None),
    ],
)
def test_choices_that_no_model_has_are_refused(given: dict[str, str], problem: str | None) -> None:
    if problem is None:
        assert choose(CPU, **given).choice.model == "basic"
        return
    with pytest.raises(UserError, match=problem):
        choose(CPU, **given)


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


def features_of(file: str, group: Group) -> set[str]:
    """Return what the machine had on which a benchmark was measured, and what its variants used of it."""
    if file.endswith("cuda"):
        return {HOPPER}
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
        taken = choose(features_of(file, group), config, framework=framework, **question).choice
        rules = [
            rule
            for rule in RULES
            if where in rule.evidence
            and rule.framework == framework
            and (rule.model, rule.precision) == (taken.model, taken.precision)
        ]
        if not rules:
            continue  # no rule is about this question, and the safe choice needs no measurement
        (rule,) = rules
        asked += 1
        mine = _result(group, rule.variant)
        for other in _answers(group, framework, question):
            if other.variant == mine.variant:
                continue
            ratio = speed_ratio(other, mine)
            assert ratio is not None
            assert ratio.interval is not None
            assert ratio.interval[0] <= 1, f"{other.variant} is faster than {rule.variant}: {ratio.interval}"
    assert asked, "a rule names evidence that it does not answer by"


def _answers(group: Group, framework: str, question: dict[str, str]) -> Iterator[Result]:
    """Yield the framework's measured models that would answer a question of ours."""
    for result in group.measured_results:
        kind, _, rest = original(result.variant).partition("/")
        model = re.split("[/@]", rest)[0]
        precision = result.blocks[0].work.precision
        answer = {"model": model, "precision": precision}
        if kind == framework and answer == answer | question:
            yield result


def _result(group: Group, variant: str) -> Result:
    (found,) = [result for result in group.measured_results if result.variant == variant]
    return found


def _read(file: str, workload: str) -> Group:
    found = summary.summarise(ROOT / "results" / "bench" / f"{file}.jsonl.gz")
    (group,) = [each for each in found.groups if (each.workload, each.pass_name) == (workload, "train")]
    return group


def _sizes(workload: str) -> dict[str, Any]:
    """Return the sizes of a workload by its name, and its cell."""
    name, _, cell = workload.partition("-")
    units = {"small": 200, "medium": 650, "large": 1500, "word_language_model": 1500}[name]
    return {"hidden_size": units, "cell": cell if cell in ("gru", "layer_norm_lstm") else "lstm"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.variant)
def test_a_rule_names_what_it_takes(rule: Rule) -> None:
    """The variant that was measured is of its framework, model and precision, and could be chosen."""
    assert rule.variant.startswith(f"{rule.framework}/{rule.model}")
    assert (declared_precision(rule.variant) or "fp32") == rule.precision
    assert rule.needs <= set(fastest.FEATURES)
    for execution in rule.executions:
        Choice.create(
            framework=rule.framework, model=rule.model, execution=execution, precision=rule.precision
        )


# The machine at hand.


@pytest.mark.slow
def test_torch_finds_what_this_machine_has() -> None:
    from ptb_lm.torch_backend import cpu, runtime

    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    machine = runtime.examine("cpu")
    assert machine.device == "cpu"
    assert (BFLOAT16 in machine.features) == bool({"avx512_bf16", "amx_bf16"} & {*flags})
    assert HOPPER not in machine.features
    with cpu.override_implementation(kernels="torch"):
        assert KERNELS not in runtime.examine("cpu").features
        assert "without compiled kernels" in runtime.examine("cpu").name


@pytest.mark.gpu
def test_torch_finds_a_gpu() -> None:
    import torch

    from ptb_lm.torch_backend import runtime

    machine = runtime.examine("auto")
    assert machine.device == "cuda"
    assert (HOPPER in machine.features) == (torch.cuda.get_device_capability() == (9, 0))
