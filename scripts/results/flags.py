"""The flags that train a run again, as far as today's presets go."""

import argparse
import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptb_lm.common.flags import command_words, flag_name
from ptb_lm.data.preparation import PTB, Preparation
from ptb_lm.model import fastest, frameworks
from ptb_lm.model.choice import CHOICE_NAMES
from ptb_lm.model.config import HYPERPARAMETERS, Config
from ptb_lm.model.presets import RECIPES
from ptb_lm.training import run_data
from ptb_lm.training.run_config import PLACES, RunConfig
from ptb_lm.training.run_flags import new_config


def overrides(config: Config, preset: str, recipe: str) -> str:
    """Return the flags that turn a recipe's preset into a configuration; "" where this preset is unknown."""
    beside = _flag_values(RECIPES.get(recipe, {}).get(preset, config))
    if beside["optimizer"] != config.optimizer:
        del beside["learning_rate"]  # another optimizer needs one, be it the same
    return shlex.join(_differences(_flag_values(config), beside))


def has_one_recipe(preset: str) -> bool:
    """Return whether both recipes have the same values for a preset."""
    return RECIPES["default"].get(preset) == RECIPES["tutorial"].get(preset)


def others(config: RunConfig, environment: dict[str, Any]) -> str:
    """Return the flags of a run that have no column of their own in runs.csv."""
    choice, flags = config.choice, []
    usual = {choice.framework_row.executions[0]}
    if "auto" in usual and "cuda" not in environment:
        usual.add("eager")  # which auto is on a CPU
    if choice.execution not in usual:
        flags += ["--execution", choice.execution]
    if choice.unroll != choice.framework_row.unrolls[0]:
        flags += ["--unroll", choice.unroll]
    if (devices := environment.get("processes", environment.get("devices", 1))) != 1:
        flags += ["--devices", str(devices)]
    if environment.get("reduce_precision") == "bfloat16":
        flags += ["--reduce-precision", "bf16"]
    return shlex.join([*flags, *_text(config)])


def _text(config: RunConfig) -> Iterator[str]:
    """Yield the flags for the text, its preparation, and the run whose weights a run began with."""
    name = run_data.short_name(config)
    if config.init_from or name != PTB:
        yield from ("--data", name)
    if config.text_column:
        yield from ("--text-column", config.text_column)
    if config.preparation:
        tokenize = config.preparation.tokenize
        values, usual = map(dataclasses.asdict, (config.preparation, Preparation(tokenize=tokenize)))
        yield from ("--tokenize", tokenize, *_differences(values, usual))
    if config.init_from:
        yield from ("--init-from", Path(config.init_from.run).name)
        if config.init_from.new_words:
            yield "--extend-vocabulary"


def _flag_values(config: Config) -> dict[str, Any]:
    """Return the values by name, with the one of the two for the units of layers that may be given."""
    without = "hidden_size" if config.layer_sizes else "layer_sizes"
    return {name: value for name, value in dataclasses.asdict(config).items() if name != without}


def _differences(values: Mapping[str, Any], beside: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if value != beside.get(name):
            yield from command_words(name, f"{value:g}" if _is_short(value) else value)


def _is_short(value: object) -> bool:
    return isinstance(value, float) and float(f"{value:g}") == value


def parse_config_flags(flags: str) -> dict[str, Any]:
    """Return what flags of ptb_lm.train say of a run's configuration, by name; "auto" says nothing."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("config", "recipe", *CHOICE_NAMES):
        parser.add_argument(flag_name(name), type=int if name == "seed" else str)
    for each in HYPERPARAMETERS:
        parser.add_argument(each.flag, **each.argument)
    parsed, _ = parser.parse_known_args(shlex.split(flags))
    return {name: value for name, value in vars(parsed).items() if value not in (None, frameworks.AUTO)}


def differences_today(run: RunConfig, flags: str) -> list[str]:
    """Return what differs between a run and the run that flags of ptb_lm.train would make today.

    Where it reads and computes does not count.
    """
    chosen = {name: getattr(run.choice, name) for name in fastest.AUTO_CHOICES}  # when the run began
    return run.differences(new_config(chosen | parse_config_flags(flags)), ignore=PLACES)
