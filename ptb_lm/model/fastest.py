"""The model and the precision that a run takes if no flag names them: the fastest that was measured.

RULES is a table of measurements, the fastest first. Where no rule is about a machine, a cell or a size,
nothing faster has been shown, and the safe choice is taken: the framework's own layer, in float32.

A rule in half precision is here only if perplexities are those of float32 within the spread of seeds
(results/tables.md).
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ptb_lm.model import cells
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS, Framework
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks

# What a machine may have, as the function `examine` of a framework finds it.
BFLOAT16 = "bfloat16"  # instructions for products in bfloat16: AVX512_BF16 or AMX
KERNELS = "kernels"  # our own compiled kernels run a layer of float32
HOPPER = "hopper"  # a GPU of compute capability 9.0, such as an H100
FEATURES = (BFLOAT16, KERNELS, HOPPER)

OPEN = ("model", "precision")  # the choices that this module makes
SAFE_MODELS = ("cudnn", "block_fused", "block", "basic")  # the framework's own layer first
SAFE_PRECISION = "fp32"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The device of a model, as rules see it.

    Attributes:
        device: "cpu" or "cuda".
        name: Words for people, such as "a CPU with AVX512_BF16".
        features: Names in FEATURES.
    """

    device: str
    name: str
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A row of RULES: a model and a precision, and when they are the fastest that was measured.

    Attributes:
        framework: Name of the framework.
        device: "cpu" or "cuda".
        model: Model that is taken.
        precision: Precision that is taken.
        needs: Features that the machine must have.
        cell: Name of the cell.
        widths: Smallest and largest width of the widest layer.
        batch: Largest number of rows.
        executions: Executions that were measured, with those that mean the same.
        processes: Largest number of processes and devices.
        variant: Name of the benchmark's variant that was measured.
        evidence: (file in results/bench, workload) of each measurement; there no variant that the rule could
            have taken instead is faster, by its 95 % interval.
    """

    framework: str = "torch"
    device: str = "cpu"
    model: str
    precision: str = SAFE_PRECISION
    needs: frozenset[str] = frozenset()
    cell: str = cells.LSTM
    widths: tuple[int, int] = (200, 1 << 30)
    batch: int = 1 << 30
    executions: tuple[str, ...] = ("auto", "eager")
    processes: int = 1 << 30
    variant: str
    evidence: tuple[tuple[str, str], ...]

    def applies(
        self, choice: Choice, config: Config, machine: Machine, *, fixed: Collection[str], processes: int
    ) -> bool:
        """Return whether the rule is about this model on this machine.

        Args:
            choice: Choices, of which those in `fixed` are the user's.
            config: Hyper-parameters.
            machine: Device that computes.
            fixed: Names in OPEN that a flag has given.
            processes: Number of processes or devices.
        """
        smallest, largest = self.widths
        return (
            (self.framework, self.device, self.cell) == (choice.framework, machine.device, config.cell)
            and all(getattr(self, name) == getattr(choice, name) for name in fixed)
            and choice.execution in self.executions
            and choice.unroll == choice.framework_row.unrolls[0]
            and self.needs <= machine.features
            and smallest <= max(config.hidden_sizes) <= largest
            and config.batch_size <= self.batch
            and processes <= self.processes
        )


_IN_BFLOAT16 = tuple(
    (file, workload)
    for file in ("ptb-cpu", "precisions-cpu", "precisions-xeon-cpu")
    for workload in ("small", "medium")
)
_IN_FLOAT32 = (
    *((file, workload) for file in ("ptb-cpu", "ptb-xeon-cpu") for workload in ("small", "medium")),
    *((f"ptb-default-recipe{xeon}-cpu", "medium-default-recipe") for xeon in ("", "-xeon")),
    *((f"ptb-large{xeon}-cpu", "large") for xeon in ("", "-xeon")),
)
_CELLS = ("cells-cpu", "cells-xeon-cpu")

RULES: tuple[Rule, ...] = (
    # Wider layers than 650 units were not measured in bfloat16: there products are a larger part of a step.
    Rule(
        model="block_fused",
        precision="bf16",
        needs=frozenset({BFLOAT16, KERNELS}),
        variant="torch/block_fused@bf16",
        evidence=_IN_BFLOAT16,
    ),
    Rule(
        model="cudnn",
        precision="bf16",
        needs=frozenset({BFLOAT16, KERNELS}),
        variant="torch/cudnn@bf16",
        evidence=_IN_BFLOAT16,
    ),
    # cudnn is as fast within the intervals; the medians of most processors are block_fused's.
    Rule(
        model="block_fused",
        needs=frozenset({KERNELS}),
        variant="torch/block_fused",
        evidence=(*_IN_FLOAT32, *_IN_BFLOAT16),
    ),
    Rule(
        model="cudnn",
        cell="gru",
        needs=frozenset({KERNELS}),
        variant="torch/cudnn",
        evidence=tuple((file, "small-gru") for file in _CELLS),
    ),
    # cuDNN's persistent kernel takes no more units and rows.
    Rule(
        device="cuda",
        model="persistent",
        precision="fp16",
        needs=frozenset({HOPPER}),
        widths=(650, 1024),
        batch=128,
        executions=("auto", "graph"),
        processes=1,
        variant="torch/persistent/graph@fp16",
        evidence=(("peak-cuda", "medium"),),
    ),
    Rule(
        device="cuda",
        model="cudnn",
        precision="tf32",
        needs=frozenset({HOPPER}),
        widths=(650, 1024),
        executions=("auto", "graph"),
        processes=1,
        variant="torch/cudnn/graph@tf32",
        evidence=(("peak-cuda", "medium"),),
    ),
    Rule(
        framework="tensorflow",
        model="block_fused",
        executions=("graph",),
        variant="tensorflow/block_fused",
        evidence=(
            *((file, workload) for file in ("ptb-cpu", "ptb-xeon-cpu") for workload in ("small", "medium")),
            *((f"ptb-default-recipe{xeon}-cpu", "medium-default-recipe") for xeon in ("", "-xeon")),
            *((f"ptb-word-language-model{xeon}-cpu", "word_language_model") for xeon in ("", "-xeon")),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A model and a precision that were chosen, and why.

    Attributes:
        choice: All choices.
        reason: A sentence for people, without its full stop; "" if the user chose both.
    """

    choice: Choice
    reason: str = ""


def choose_safe(
    given: Mapping[str, Any], *, cell: str, registry: Mapping[str, Framework] = FRAMEWORKS
) -> Choice:
    """Return the choices of the user, with a safe model and precision where there are none of his.

    Nothing is imported, so nothing is known of the machine.

    Args:
        given: Choices by name.
        cell: Cell that the model must compute, if the framework can.
        registry: Frameworks to choose from.

    Raises:
        UserError: As for `Choice`.
    """
    given = {"framework": "torch", "precision": SAFE_PRECISION, **given}
    name = given["framework"]
    row = registry.get(name)
    if row is not None and "model" not in given:
        wanted = [value for kind in ("execution", "unroll", "precision") if (value := given.get(kind))]
        possible = [
            model
            for model in SAFE_MODELS
            if model in row.models
            and model in cells.CELLS[cell].layers.get(name, ())
            and not any((model, value) in row.refusals for value in wanted)
        ]
        given["model"] = possible[0] if possible else SAFE_MODELS[0]  # whose refusal says what is possible
    return Choice.create(registry, **given)


def choose(choice: Choice, config: Config, *, fixed: Collection[str], ranks: Ranks = SINGLE_PROCESS) -> Taken:
    """Choose the model and the precision that the user left open; this imports the framework.

    All processes choose alike: what one of their machines lacks, none uses.

    Args:
        choice: Choices by `choose_safe`.
        config: Hyper-parameters.
        fixed: Names in OPEN that the user has chosen.
        ranks: Processes that compute the model together.

    Raises:
        UserError: The framework is not installed.
    """
    fixed = [name for name in OPEN if name in fixed]
    # A rank whose user chose both takes part: the ranks meet here, and are compared later.
    is_open = len(fixed) < len(OPEN)
    machine = _examine(choice, ranks) if is_open or ranks.size > 1 else None
    if not is_open:
        return Taken(choice=choice)
    processes = ranks.size * ranks.devices
    about = [
        rule
        for rule in RULES
        if machine and rule.applies(choice, config, machine, fixed=fixed, processes=processes)
    ]
    rule = about[0] if about else None
    if rule:
        choice = dataclasses.replace(choice, model=rule.model, precision=rule.precision)
    return Taken(choice=choice, reason=_explain(choice, config, machine, rule, fixed))


def _examine(choice: Choice, ranks: Ranks) -> Machine | None:
    """Return the machine, with the features that those of all processes have; None if nobody can tell."""
    if not choice.framework_row.examine:
        return None
    machine: Machine = choice.import_function(choice.framework_row.examine)(choice.device)
    lacking = ranks.max_over_ranks([int(feature not in machine.features) for feature in FEATURES])
    common = {feature for feature, lacks in zip(FEATURES, lacking, strict=True) if not lacks}
    return dataclasses.replace(machine, features=frozenset(common))


def _explain(
    choice: Choice, config: Config, machine: Machine | None, rule: Rule | None, fixed: Collection[str]
) -> str:
    where = machine.name if machine else choice.framework
    if "model" in fixed:
        what, kind = f"{choice.model}, as --model says, in {choice.precision}", "precision"
    elif "precision" in fixed:
        what, kind = f"{choice.model} in {choice.precision}, as --precision says", "model"
    else:
        what, kind = f"{choice.model} in {choice.precision}", "choice"
    if rule is None:
        is_usual = choice.execution == choice.framework_row.executions[0]
        execution = "" if is_usual else f", --execution {choice.execution}"
        units = f"{max(config.hidden_sizes):,} units{execution}"
        how = f"{choice.framework} {config.cell} of {units}, on {where}"
        return f"{what}: the safe {kind}, because nothing faster was measured ({how})"
    files = [*dict.fromkeys(file for file, _ in rule.evidence)]
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    workloads = " and ".join(dict.fromkeys(workload for _, workload in rule.evidence))
    where = f"on {where} (results/bench: {', '.join(files[:2])}{more})"
    measured = f"no other {kind} was faster for {workloads}, measured {where}"
    if choice.precision == SAFE_PRECISION:
        return f"{what}: {measured}"
    flags = "--precision fp32" if "model" in fixed else "--model cudnn --precision fp32"
    classic = "computes in float32" if "model" in fixed else "is torch.nn.LSTM in float32"
    return f"{what}: {measured}; {flags} {classic}"
