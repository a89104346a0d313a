"""From the flags of ptb_lm.train to the configuration of a run, new or resumed."""

import dataclasses
from pathlib import Path
from typing import Any

from ptb_lm.common.errors import UserError
from ptb_lm.data.preparation import FIELDS, effective_settings, from_flags
from ptb_lm.model import frameworks
from ptb_lm.model.choice import CHOICE_NAMES, Choice
from ptb_lm.model.config import HYPERPARAMETERS, RECIPES
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.training.run_config import PLACES, RESUMABLE, RESUMABLE_HYPERPARAMETERS, RunConfig

CHANGEABLE = (*PLACES, "devices", *RESUMABLE_HYPERPARAMETERS)  # flags that --resume allows to differ
OF_A_NEW_RUN = ("overwrite", "init_from", "extend_vocabulary")  # flags that --resume refuses


def new_config(given: dict[str, Any]) -> RunConfig:
    """Return the configuration of a new run from the flags that were given, by name."""
    data = given.get("data", "ptb")
    preset = given.get("config", "demo" if data == "synthetic" else "small")
    recipe = given.get("recipe", "default")
    changes = {each.name: given[each.name] for each in HYPERPARAMETERS if each.name in given}
    return RunConfig(
        config=preset,
        recipe=recipe,
        data=data,
        choice=Choice.create(**{name: given[name] for name in CHOICE_NAMES if name in given}),
        hyperparameters=RECIPES[recipe][preset].replace(**changes),
        preparation=from_flags(given, data, is_file=Path(data).is_file()),
        text_column=given.get("text_column"),
    )


def resumed_config(run: RunConfig, given: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with the flags given now, where they may differ."""
    if run.imported:
        raise UserError(
            "an imported run has no state of a training that could be resumed; --init-from starts a new run "
            "from its weights"
        )
    before = {**run.to_json(), **run.to_json()["hyperparameters"]}
    if "init_from" in given:
        raise UserError("--init-from starts a new run and cannot be combined with --resume")
    prepared = {
        **(effective_settings(run.preparation) if run.preparation else {}),
        "text_column": run.text_column,
    }
    for name in (*FIELDS, "text_column"):
        if name in given and given[name] != prepared.get(name):
            raise UserError(
                f"{flag_name(name)} would change the text of the run; a resumed run cannot do that"
            )
    for name in given:
        kept = name in RESUMABLE or (name, given[name]) == ("precision", frameworks.AUTO)
        if name in before and not kept and given[name] != before[name]:
            raise UserError(
                f"{flag_name(name)} {given[name]} differs from the run's {before[name]}; a resumed run can "
                f"change {', '.join(map(flag_name, CHANGEABLE))} and nothing else"
                + ("; --init-from starts a new run from its weights" if name in CHOICE_NAMES else "")
            )
    changes = {each.name: given[each.name] for each in HYPERPARAMETERS if each.name in given}
    return dataclasses.replace(
        run,
        data=given.get("data", run.data),
        source=None if "data" in given else run.source,
        choice=dataclasses.replace(run.choice, device=given.get("device", run.choice.device)),
        hyperparameters=run.hyperparameters.replace(**changes),
    )
