"""The configuration of a run, from the flags of ptb_lm.train; and the flag that other commands have as well.

Flags that were not given have no value here, so that a resumed run knows which were. This module imports
nothing slow.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import command_words, flag_list, flag_name
from ptb_lm.data.preparation import FIELDS, effective_settings, from_flags
from ptb_lm.model import fastest
from ptb_lm.model.cells import CELLS
from ptb_lm.model.choice import CHOICE_NAMES
from ptb_lm.model.config import HYPERPARAMETERS, SHORTEST_WINDOW, Config
from ptb_lm.model.hyperparameter import format_value
from ptb_lm.model.presets import AWD_PRESETS, RECIPES
from ptb_lm.model.ranks import Ranks
from ptb_lm.training.run_config import PLACES, RESUMABLE, RESUMABLE_HYPERPARAMETERS, RunConfig

# Flags that --resume allows to differ.
CHANGEABLE = (*PLACES, "devices", "reduce_precision", *RESUMABLE_HYPERPARAMETERS)
NEW_RUN_FLAGS = ("overwrite", "init_from", "extend_vocabulary")  # flags that --resume refuses
AVERAGES = ("average_epochs", "average_after_stall")  # of which a run has one
BETWEEN_LAYERS = "between_keep_prob"  # without effect in a single layer
PLACES_OF_DROPOUT = ("input_keep_prob", BETWEEN_LAYERS, "output_keep_prob")
# (flags, field, test): the flags change nothing where the test is true of the field's value.
WITHOUT_EFFECT: Sequence[tuple[Sequence[str], str, Callable[[Any], bool]]] = (
    (("mogrifier_rank",), "mogrifier_rounds", lambda rounds: rounds == 0),
    (("decay_after", "lr_decay"), "schedule", lambda schedule: schedule != "exponential"),
    (("decay_after",), "lr_decay", lambda factor: factor == 1),
    (("slowness_penalty", "variational"), "num_steps", lambda steps: steps == 1),
)
INIT_FROM_RATE = 0.5  # share of the other run's learning rate that a run with --init-from has


def new_config(flag_values: dict[str, Any]) -> RunConfig:
    """Return the configuration of a new run from the flags that were given.

    Of a model and a precision that no flag names it has safe ones; `with_fastest` replaces them.
    """
    data = flag_values.get("data", "ptb")
    preset = flag_values.get("config", "demo" if data == "synthetic" else "small")
    recipe = flag_values.get("recipe", "default")
    if recipe == "tutorial" and preset in AWD_PRESETS:
        raise UserError(f"--recipe tutorial would change nothing with --config {preset}")
    hyperparameters = with_flags(RECIPES[recipe][preset], flag_values)
    return RunConfig(
        preset=preset,
        recipe=recipe,
        data=data,
        choice=fastest.choose_safe(flag_values, cell=hyperparameters.cell),
        hyperparameters=hyperparameters,
        preparation=from_flags(flag_values, data),
        text_column=flag_values.get("text_column"),
    )


def with_flags(config: Config, flag_values: Mapping[str, Any]) -> Config:
    """Return the hyper-parameters with those that flags give in their place.

    Raises:
        UserError: One is impossible or has no effect, or two contradict each other.
    """
    changes = {each.name: flag_values[each.name] for each in HYPERPARAMETERS if each.name in flag_values}
    for name, other in (AVERAGES, reversed(AVERAGES)):
        if changes.get(name):
            changes.setdefault(other, getattr(Config, other))  # not the preset's
        elif name in changes and other not in changes and (value := getattr(config, other)):
            raise UserError(f"{flag_name(name)} 0 would change nothing with {flag_name(other)} {value:g}")
    if sizes := changes.get("layer_sizes"):
        if "hidden_size" in changes:
            raise UserError("give --layer-sizes or --hidden-size, not both")
        changes.setdefault("num_layers", len(sizes))
        changes["hidden_size"] = max(sizes)  # the preset's would contradict the sizes in config.json
        if len({*sizes}) == 1 and len(sizes) == changes["num_layers"]:  # a model has one description
            changes["layer_sizes"] = ()
    elif "hidden_size" in changes or changes.get("num_layers", config.num_layers) != config.num_layers:
        changes["layer_sizes"] = ()  # those of the preset
    changed = config.replace(**changes)
    if changed.optimizer != config.optimizer and "learning_rate" not in flag_values:
        raise UserError(
            f"--optimizer {changed.optimizer} needs a --learning-rate: {config.learning_rate:g} is that of "
            f"{config.optimizer}"
        )
    check_effects(changed, flag_values)
    if changed.vary_num_steps and changed.num_steps < 2 * SHORTEST_WINDOW:
        raise UserError(
            f"--vary-num-steps draws lengths of at least {SHORTEST_WINDOW}, around --num-steps and "
            f"around half of it: give --num-steps at least {2 * SHORTEST_WINDOW}, not {changed.num_steps}"
        )
    return changed


def check_effects(config: Config, flag_values: Mapping[str, Any]) -> None:
    """Check that each given hyper-parameter has an effect in a configuration.

    A value that has no effect only because the run is short is accepted, such as an average that would begin
    later: people try the flags of a long run for a few epochs.

    Raises:
        UserError: One has none.
    """
    places = [name for name in PLACES_OF_DROPOUT if config.num_layers > 1 or name != BETWEEN_LAYERS]
    if "keep_prob" in flag_values and all(getattr(config, name) for name in places):
        raise UserError(f"--keep-prob would change nothing with {flag_list(places)}")
    if BETWEEN_LAYERS in flag_values and BETWEEN_LAYERS not in places:
        raise UserError(f"{flag_name(BETWEEN_LAYERS)} would change nothing in a single layer")
    if flag_values.get("variational") and min(config.unit_keep_probs) == 1:
        raise UserError("--variational would change nothing without dropout of units, as by --keep-prob 0.5")
    own_options = CELLS[config.cell].options.values()
    others = {option for row in CELLS.values() for option in row.options.values()}.difference(own_options)
    if idle := [name for name in flag_values if name in others]:
        raise UserError(f"{flag_list(idle)} would change nothing with --cell {config.cell}")
    for names, field, is_idle in WITHOUT_EFFECT:
        # A switch that is off cannot change anything, and is accepted.
        idle = [name for name in names if flag_values.get(name, False) is not False]
        value = getattr(config, field)
        if idle and is_idle(value):
            raise UserError(f"{flag_list(idle)} would change nothing with {flag_name(field)} {value}")
    input_sizes = (config.embedding_width, *config.hidden_sizes[:-1])
    full_rank = max(map(min, input_sizes, config.hidden_sizes))
    if (rank := flag_values.get("mogrifier_rank", 0)) > full_rank:
        raise UserError(
            f"--mogrifier-rank {rank} is above {full_rank}, the highest rank of the gates' full kernels"
        )


def with_fastest(config: RunConfig, flag_values: Mapping[str, Any], ranks: Ranks) -> tuple[RunConfig, str]:
    """Return a new run's configuration with the fastest model and precision, and a sentence that says why.

    What a flag names stays; the sentence is empty if both are named. This imports the framework, once the
    model is known to compute the cell.

    Args:
        config: Configuration by `new_config`, or by ParentRun.derive_config.
        flag_values: The flags that were given, by name.
        ranks: Processes that train the run together.

    Raises:
        UserError: The model does not compute the cell, or the framework is not installed.
    """
    config.choice.check_cell(config.hyperparameters.cell)  # before the framework is imported
    decision = fastest.choose(config.choice, config.hyperparameters, fixed=flag_values, ranks=ranks)
    return dataclasses.replace(config, choice=decision.choice), decision.reason


def resumed_config(run: RunConfig, flag_values: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with the flags given now, where they may differ."""
    if run.imported:
        raise UserError(
            "an imported run has no state of a training that could be resumed; --init-from starts a new run "
            "from its weights"
        )
    if "init_from" in flag_values:
        raise UserError("--init-from starts a new run and cannot be combined with --resume")
    preparation = {
        **(effective_settings(run.preparation) if run.preparation else {}),
        "text_column": run.text_column,
    }
    for name in (*FIELDS, "text_column"):
        if name in flag_values and flag_values[name] != preparation.get(name):
            raise UserError(
                f"{flag_name(name)} would change the text of the run; a resumed run cannot do that"
            )
    for name, (here, there) in contradictions(run, flag_values).items():
        if name not in RESUMABLE:
            raise UserError(
                f"{here} differs from the run's {there}; a resumed run can change {flag_list(CHANGEABLE)} "
                "and nothing else"
                + ("; --init-from starts a new run from its weights" if name in CHOICE_NAMES else "")
            )
    hyperparameters = run.hyperparameters.replace(
        **{name: flag_values[name] for name in RESUMABLE_HYPERPARAMETERS if name in flag_values}
    )
    check_effects(hyperparameters, flag_values)
    return dataclasses.replace(
        run,
        data=flag_values.get("data", run.data),
        source=None if "data" in flag_values else run.source,
        choice=dataclasses.replace(run.choice, device=flag_values.get("device", run.choice.device)),
        hyperparameters=hyperparameters,
    )


def contradictions(run: RunConfig, flag_values: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the given flags that say something else than a run: by name, the flag and the run's value.

    Both are as a person types them; the value of a switch is its flag. Where several values describe the same
    layers, or the same embedding, each may be given. An embedding size of 0 stands for the top layer's width.
    """
    values, meant = {**run.settings, **run.hyperparameters.equivalent_sizes}, dict(flag_values)
    if flag_values.get("embedding_size") == 0:
        meant["embedding_size"] = run.hyperparameters.hidden_sizes[-1]  # what 0 stands for
    found = {}
    for name in flag_values:
        if name in values and meant[name] != (value := values[name]):
            here, there = (" ".join(command_words(name, each)) for each in (flag_values[name], value))
            found[name] = here, there if isinstance(value, bool) else format_value(value)
    return found


def with_global_batch(flag_values: dict[str, Any], devices: int) -> dict[str, Any]:
    """Return the flags with --batch-size in place of --batch-size-per-device, and say so.

    Args:
        flag_values: The flags that were given, by name.
        devices: Number of devices that train the run, those of all processes.

    Raises:
        UserError: Both were given.
    """
    if "batch_size_per_device" not in flag_values:
        return flag_values
    flag_values = {**flag_values}
    rows = flag_values.pop("batch_size_per_device")
    if "batch_size" in flag_values:
        raise UserError("give --batch-size or --batch-size-per-device, not both")
    flag_values["batch_size"] = rows * devices
    cli.try_print_line(
        f"--batch-size-per-device {rows} on {devices} device{'s' * (devices > 1)} is --batch-size "
        f"{flag_values['batch_size']}; --learning-rate stays as it is, and such a batch may need another"
    )
    return flag_values


def add_column(group: argparse._ActionsContainer) -> None:
    """Add the flag for a text that is a column of a table."""
    group.add_argument(
        "--text-column",
        metavar="NAME",
        help="text column of a JSONL, Parquet, CSV or TSV file (the last two with a header; default: text, "
        "sentence, or the only one with text)",
    )
