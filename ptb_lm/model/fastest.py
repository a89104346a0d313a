"""The model and the precision that a run takes if no flag names them: the fastest that was measured.

The rules are in rules.py. Where none applies, the safe choice is made: the framework's own layer, in float32.
"""

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ptb_lm.common.program import command_name
from ptb_lm.model import cells
from ptb_lm.model.choice import CHOICE_NAMES, Choice
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.model.rules import BFLOAT16, FEATURES, MEASURED_CORES, RULES, SAFE_PRECISION, MachineFacts, Rule

AUTO_CHOICES = ("model", "precision")  # the choices that this module makes
SAFE_MODELS = ("cudnn", "block_fused", "block", "basic")  # the framework's own layer first
# What a user can try where no rule applies, by framework and device.
ADVICE = {
    ("torch", "cuda"): "--precision tf32 or fp16, and --model persistent up to 1,024 units, may be faster: "
    "{bench} run peak measures them"
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A model and a precision that were chosen, and why.

    Attributes:
        choice: All choices.
        reason: A sentence for people, without its full stop; "" if the user chose both.
    """

    choice: Choice
    reason: str = ""


def choose_safe(flag_values: Mapping[str, Any], *, cell: str) -> Choice:
    """Return the choices of the user, with a safe model and a safe precision where no flag names one.

    Nothing is imported, so nothing is known of the machine.

    Args:
        flag_values: The flags that were given, by name.
        cell: Cell that the model must compute, if the framework can.

    Raises:
        UserError: As for `Choice`.
    """
    values = {
        "framework": "torch",
        "precision": SAFE_PRECISION,
        **{name: flag_values[name] for name in CHOICE_NAMES if name in flag_values},
    }
    name = values["framework"]
    row = FRAMEWORKS.get(name)
    if row is not None and "model" not in values:
        wanted = [(kind, values[kind]) for kind in ("execution", "unroll", "precision") if values.get(kind)]
        models = [model for model in SAFE_MODELS if model in row.models] or [*row.models]
        possible = [
            model
            for model in models
            if cell in cells.names_for(name, model)
            and all(value in row.options(model)[kind] for kind, value in wanted)
        ]
        # The last of them takes the most: its refusal says all that is possible.
        values["model"] = (possible or models[-1:])[0]
    return Choice.create(**values)


def choose(
    choice: Choice, config: Config, *, fixed: Collection[str], ranks: Ranks = SINGLE_PROCESS
) -> Decision:
    """Choose the model and the precision that the user left open; this imports the framework.

    All processes choose alike: what one of their machines lacks, none uses.

    Args:
        choice: Choices by `choose_safe`.
        config: Hyper-parameters.
        fixed: Names of flags that the user has given, those in AUTO_CHOICES among them.
        ranks: Processes that compute the model together.

    Raises:
        UserError: The framework is not installed.
    """
    fixed = [name for name in AUTO_CHOICES if name in fixed]
    is_open, processes = len(fixed) < len(AUTO_CHOICES), ranks.size * ranks.devices
    if not is_open and ranks.size == 1:
        return Decision(choice=choice)
    # A rank whose user chose both takes part: the ranks meet here, and are compared later.
    machine = _examine(choice, ranks)
    if not is_open:
        return Decision(choice=choice)
    applying = (
        rule for rule in RULES if rule.applies(choice, config, machine, fixed=fixed, processes=processes)
    )
    if rule := next(applying, None):
        choice = replace(choice, model=rule.model, precision=rule.precision)
        return Decision(choice=choice, reason=_explain(choice, config, machine, rule, fixed, processes))
    row = choice.framework_row
    refused = machine.device == "cuda" and (choice.model, choice.execution) in row.gpu_refusals
    if refused and "model" not in fixed:
        choice = replace(choice, model="basic")  # elementary operations, which every execution takes
    sole = row.gpu_precisions.get(choice.model)
    if machine.device == "cuda" and sole and "precision" not in fixed:
        reason = f"{choice.model}, as --model says, in {sole}, the one precision of its kernel"
        return Decision(choice=replace(choice, precision=sole), reason=reason)
    return Decision(choice=choice, reason=_explain_safe(choice, config, machine, fixed))


def is_slow(precision: str, choice: Choice) -> bool:
    """Return whether the device is slower in this half precision than in float32.

    This imports the framework.

    Args:
        precision: Precision that the choice's framework and model have on its device.
        choice: Choice of the framework and the device.

    Raises:
        UserError: The framework is not installed.
    """
    if precision not in ("bf16", "fp16"):
        return False
    machine = _examine(choice, SINGLE_PROCESS)
    return machine.device == "cpu" if precision == "fp16" else BFLOAT16 not in machine.features


def _examine(choice: Choice, ranks: Ranks) -> MachineFacts:
    """Return the machine, with the features that those of all processes have; without a device if unknown.

    Its name says so where another process lacks one that this has.
    """
    if not choice.framework_row.examine:
        return MachineFacts(device="", name=choice.framework)
    machine: MachineFacts = choice.import_function(choice.framework_row.examine)(choice.device)
    lacking = ranks.max_over_ranks([int(feature not in machine.features) for feature in FEATURES])
    common = machine.features - {feature for feature, lacks in zip(FEATURES, lacking, strict=True) if lacks}
    if common == machine.features:
        return machine
    return replace(machine, name=f"different devices, one of them {machine.name}", features=common)


def _explain(
    choice: Choice,
    config: Config,
    machine: MachineFacts,
    rule: Rule,
    fixed: Collection[str],
    processes: int,
) -> str:
    """Return the sentence about a choice by a rule: what was measured, and how far this is from that."""
    what, kind = _describe(choice, fixed)
    is_open = "precision" not in fixed
    # A faster precision may not be for this machine, or not be proven.
    alternative = f"model in {SAFE_PRECISION}" if is_open and rule.precision == SAFE_PRECISION else kind
    unproven = (
        f"; {rule.faster_precision} is faster, but no trained {config.cell} shows what it costs"
        if is_open and rule.faster_precision and BFLOAT16 in machine.features
        else ""
    )
    files = [*dict.fromkeys(file for file, _ in rule.evidence)]
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    *others, last = dict.fromkeys(workload for _, workload in rule.evidence)
    workloads = f"{', '.join(others)} and {last}" if others else last
    units, on_cpu = max(config.hidden_sizes), machine.device == "cpu"
    unmeasured = {
        f"{units:,} units": units > rule.widest_measured,
        f"{machine.cores} cores": on_cpu and machine.cores > MEASURED_CORES,
        f"a processor of the kind {platform.machine()}": on_cpu and platform.machine() != "x86_64",
        f"{processes} processes": processes > 1,
    }
    beyond = " or ".join(what for what, applies in unmeasured.items() if applies)
    not_measured = f", though not with {beyond}" if beyond else ""
    measured = (
        f"{what}, for {machine.name}: no other {alternative} was measured to be faster for {workloads} "
        f"(results/bench: {', '.join(files[:2])}{more}){not_measured}{unproven}"
    )
    if choice.precision == SAFE_PRECISION:
        return measured
    flags = "--precision fp32" if "model" in fixed else "--model cudnn --precision fp32"
    classic = "computes in float32" if "model" in fixed else "is torch.nn.LSTM in float32"
    return f"{measured}; {flags} {classic}"


def _explain_safe(choice: Choice, config: Config, machine: MachineFacts, fixed: Collection[str]) -> str:
    """Return the sentence about a safe choice: why it is one, and what the user can try."""
    what, kind = _describe(choice, fixed)
    is_usual = choice.execution == choice.framework_row.executions[0]
    execution = "" if is_usual else f", --execution {choice.execution}"
    units = f"{max(config.hidden_sizes):,} units{execution}"
    how = f"{choice.framework} {config.cell} of {units}, on {machine.name}"
    advice = ADVICE.get((choice.framework, machine.device)) if "precision" not in fixed else None
    advice = f"; {advice.format(bench=command_name('bench'))}" if advice else ""
    return f"{what}: the usual {kind}, because no measurement covers such a run ({how}){advice}"


def _describe(choice: Choice, fixed: Collection[str]) -> tuple[str, str]:
    """Return what was chosen, with the flag that says a part of it, and what kind of thing was open."""
    if "model" in fixed:
        return f"{choice.model}, as --model says, in {choice.precision}", "precision"
    if "precision" in fixed:
        return f"{choice.model} in {choice.precision}, as --precision says", "model"
    return f"{choice.model} in {choice.precision}", "choice"
