"""The command that repeats a run, as far as its folder and this version know it."""

import argparse
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path

from ptb_lm import cli
from ptb_lm.comparison.runs import Run
from ptb_lm.data.preparation import NAMED, Preparation
from ptb_lm.data.tables import HUB
from ptb_lm.model import frameworks
from ptb_lm.model.choice import CHOSEN
from ptb_lm.model.config import HYPERPARAMETERS, PRESETS, RECIPES, Config
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.training.run_config import PLACES, RunConfig
from ptb_lm.training.run_flags import new_config


def command_of(run: Run) -> str:
    """Return the command that repeats a run, without its seed and folder."""
    return f"{cli.TRAIN} {flags_of(run)}"


def flags_of(run: Run) -> str:
    """Return the flags of the command that repeats a run, without its seed and folder. Defaults are left out.

    Of a text and of the run that it began with, it has the name, not the place.
    """
    config, choice, environment = run.config, run.config.choice, run.result.get("environment", {})
    chosen_and_usual = {
        "recipe": ("default" if recipe(run) == "both" else config.recipe, "default"),
        "framework": (choice.framework, "torch"),
        "execution": (execution(run), ""),
        "unroll": (choice.unroll, choice.row.unrolls[0]),
        "precision": (choice.precision, "fp32"),
        "data": (_data(run), "" if config.init_from else "ptb"),  # by default that of --init-from
        "devices": (str(environment.get("processes", environment.get("devices", 1))), "1"),
        "reduce-precision": ("bf16" if environment.get("reduce_precision") == "bfloat16" else "fp32", "fp32"),
    }
    flags = ["--model", choice.model, "--config", config.config]
    for name, (chosen, usual) in chosen_and_usual.items():
        if chosen != usual:
            flags += [f"--{name}", chosen]
    return shlex.join([*flags, *_beginning(config), *overrides(run, recipe=config.recipe)])


def _data(run: Run) -> str:
    """Return what --data says: a corpus's name, or that of a file or folder."""
    if run.config.data.startswith(HUB):
        return run.config.data
    name = Path(run.config.data).name
    if run.data in NAMED:
        return run.data
    return f"./{name}" if name in NAMED else name


def _beginning(config: RunConfig) -> Iterator[str]:
    """Yield the flags for the text's preparation, and for the run whose weights a run began with."""
    if config.text_column:
        yield from ("--text-column", config.text_column)
    if config.preparation:
        tokenize = config.preparation.tokenize  # named in any case: without a flag a folder is read as it is
        yield from ("--tokenize", tokenize)
        yield from flags(config.preparation, beside=Preparation(tokenize=tokenize))
    if config.init_from:
        yield from ("--init-from", Path(config.init_from.run).name)
        if config.init_from.new_words:
            yield "--extend-vocabulary"


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


def differences_today(run: RunConfig, flags: str) -> list[str]:
    """Return what differs between a run and the run that flags of ptb_lm.train would make today.

    Where it reads and computes does not count.

    Args:
        run: The run's configuration.
        flags: The model's and the training's.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("config", "recipe", *CHOSEN):
        parser.add_argument(flag_name(name), type=int if name == "seed" else str)
    for each in HYPERPARAMETERS:
        parser.add_argument(each.flag, **each.argument)
    parsed = vars(parser.parse_args(shlex.split(flags)))
    given = {name: value for name, value in parsed.items() if value is not None}
    if given.get("precision") == frameworks.AUTO:
        given["precision"] = run.choice.precision  # it was chosen when the run began
    return run.differences(new_config(given), allowed=PLACES)


def flags(config: Config | Preparation, beside: Config | Preparation) -> list[str]:
    """Return the command-line flags that turn one configuration into another of the same kind."""
    chosen = []
    for name in (each.name for each in dataclasses.fields(config)):
        value = getattr(config, name)
        if value == getattr(beside, name):
            continue
        if isinstance(value, bool):
            chosen.append(flag_name(name) if value else flag_name(name).replace("--", "--no-", 1))
        elif isinstance(value, float) and float(f"{value:g}") == value:
            chosen += [flag_name(name), f"{value:g}"]
        else:
            chosen += [flag_name(name), str(value)]
    return chosen
