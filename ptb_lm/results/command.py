"""The command that repeats a run, as far as its folder and this version know it."""

import shlex

from ptb_lm import cli
from ptb_lm.model.config import PRESETS, RECIPES, Config
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.results.runs import Run


def command_of(run: Run) -> str:
    """Return the command that repeats a run, without its seed and folder. Defaults are left out."""
    config, choice = run.config, run.config.choice
    chosen_and_usual = {
        "recipe": ("default" if recipe(run) == "both" else config.recipe, "default"),
        "framework": (choice.framework, "torch"),
        "execution": (execution(run), ""),
        "unroll": (choice.unroll, choice.row.unrolls[0]),
        "precision": (choice.precision, "fp32"),
        "data": (run.data, "ptb"),
    }
    flags = ["--model", choice.model, "--config", config.config]
    for name, (chosen, usual) in chosen_and_usual.items():
        if chosen != usual:
            flags += [f"--{name}", chosen]
    return f"{cli.TRAIN} {shlex.join([*flags, *overrides(run, recipe=config.recipe)])}"


def recipe(run: Run) -> str:
    """Return the recipe's name; "both" if the two recipes have the same values for the preset."""
    name = run.config.config
    same = name in PRESETS and RECIPES["default"][name] == RECIPES["tutorial"][name]
    return "both" if same else run.config.recipe


def execution(run: Run) -> str:
    """Return the execution; "" if it is the default of the device and framework."""
    choice = run.config.choice
    usual = {choice.row.executions[0]}
    if choice.framework == "torch" and "cuda" not in run.result.get("environment", {}):
        usual.add("eager")
    return "" if choice.execution in usual else choice.execution


def model(run: Run) -> str:
    """Return what computed a run, for people: framework, model, execution and precision, without defaults."""
    choice = run.config.choice
    parts = [choice.framework, choice.model, execution(run)]
    precision = "" if choice.precision == "fp32" else f" @{choice.precision}"
    return " ".join(part for part in parts if part) + precision


def overrides(run: Run, *, recipe: str) -> list[str]:
    """Return the flags that turn a recipe's preset into this run; none if either is unknown."""
    config = run.config
    preset = RECIPES.get(recipe, {}).get(config.config, config.hyperparameters)
    return flags(config.hyperparameters, beside=preset)


def as_its_recipe_is_now(run: Run) -> bool:
    """Return whether a run has the values that its preset has today: a default may have changed since."""
    return not overrides(run, recipe=run.config.recipe)


def flags(config: Config, beside: Config) -> list[str]:
    """Return the command-line flags that turn one configuration into another."""
    chosen = []
    for name in vars(config):
        value = getattr(config, name)
        if value == getattr(beside, name):
            continue
        if isinstance(value, bool):
            chosen.append(flag_name(name) if value else flag_name(name).replace("--", "--no-", 1))
        elif isinstance(value, str):
            chosen += [flag_name(name), value]
        else:
            short = f"{value:g}"
            chosen += [flag_name(name), short if float(short) == value else repr(value)]
    return chosen
