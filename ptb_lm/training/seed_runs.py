"""The runs of several seeds: which exist, whether the flags are theirs, and what is left to train."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ptb_lm.common import cli, files
from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import command_words
from ptb_lm.data.preparation import effective_settings
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.model.fastest import AUTO_CHOICES
from ptb_lm.training import run_data, run_folders
from ptb_lm.training.fine_tuning import ParentRun, load_text
from ptb_lm.training.run_config import PLACES, RunConfig, describe_digest
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import NEW_RUN_FLAGS

_HYPERPARAMETERS = {each.name for each in HYPERPARAMETERS}


def with_earlier_choice(flag_values: dict[str, Any], seeds: Sequence[int], choice: Choice) -> dict[str, Any]:
    """Return the flags with the model and the precision of a seed that was begun, where no flag names them.

    All seeds are then computed alike, on whatever machine they continue.

    Args:
        flag_values: The flags that were given, by name.
        seeds: Seeds of the runs.
        choice: Choices of the flags.
    """
    if "run_dir" not in flag_values or flag_values.get("overwrite"):
        return flag_values
    for directory in (RunDirectory(flag_values["run_dir"] / f"seed-{seed}") for seed in seeds):
        if _has_trained(directory):
            earlier = directory.read_config().choice
            if earlier.framework == choice.framework:
                return {**{name: getattr(earlier, name) for name in AUTO_CHOICES}, **flag_values}
    return flag_values


def remaining_commands(
    runs: Mapping[int, RunDirectory],
    config: RunConfig,
    parent: ParentRun | None,
    flag_values: Mapping[str, Any],
) -> dict[int, list[str]]:
    """Return the arguments that start or continue the runs that are not finished, by seed.

    Nothing is written: a run to overwrite stays until its successor begins.

    Args:
        runs: Folders of the runs, by seed.
        config: Configuration that the flags ask for, of any seed.
        parent: Run whose weights they start from; None: they start from random ones.
        flag_values: The flags that were given, by name.

    Raises:
        UserError: A folder has a run of other flags, or something else; another process is at work in one
            whose run would be replaced; or the text cannot be read.
    """
    overwrite = bool(flag_values.get("overwrite"))
    existing = [seed for seed, directory in runs.items() if _has_trained(directory) and not overwrite]
    if existing:
        config, _ = load_text(config, parent, extend=bool(flag_values.get("extend_vocabulary")))
    seed_flag_values = {
        name: value for name, value in flag_values.items() if name not in ("seeds", "jobs", "run_dir")
    }
    commands = {}
    for seed, directory in runs.items():
        if seed in existing:
            command = _resume_command(directory, seed, config, seed_flag_values)
        else:
            run_folders.refuse_existing(
                directory.path,
                overwrite=overwrite,
                init_from=parent.directory.weights_path if parent else None,
            )
            if directory.path.is_dir():
                with directory.lock():  # another process in it is told of before the first seed trains
                    pass
            command = command_line({**seed_flag_values, "seed": seed, "run_dir": directory.path})
        if command is not None:
            commands[seed] = command
    return commands


def how_to_continue(
    flag_values: dict[str, Any],
    runs: Mapping[int, RunDirectory],
    before: Mapping[int, object],
    choice: Choice,
) -> str:
    """Return the command that continues all seeds.

    With --overwrite there may be two: one that replaces the runs that no other has replaced yet, and one that
    keeps those that have begun.

    Args:
        flag_values: The flags that were given, by name, --run-dir among them.
        runs: Folders of the runs, by seed.
        before: Identity of each config.json before the first seed was trained, by seed.
        choice: Choices of the flags.
    """
    replace = bool(flag_values.get("overwrite"))
    waiting = [
        seed
        for seed, directory in runs.items()
        if replace and files.identity(directory.config_path) == before[seed]
    ]
    started = [seed for seed in runs if seed not in waiting]
    again = {**flag_values, "overwrite": False}
    commands = [again] if started else []
    if waiting:
        first = with_earlier_choice(again, started, choice)
        commands.insert(0, {**first, "seeds": waiting, "overwrite": True})
    return " && ".join(
        f"{cli.command_name('train')} {shlex.join(command_line(command))}" for command in commands
    )


def command_line(flag_values: Mapping[str, Any]) -> list[str]:
    """Return the command line that gives these values by name."""
    # Only hyper-parameters have a --no- flag.
    kept = {
        name: value for name, value in flag_values.items() if value is not False or name in _HYPERPARAMETERS
    }
    return [word for name, value in kept.items() for word in command_words(name, value)]


def _has_trained(directory: RunDirectory) -> bool:
    """Return whether a run there has saved a state, so that something would be lost."""
    return directory.config_path.exists() and not directory.is_expendable()


def _resume_command(
    directory: RunDirectory, seed: int, config: RunConfig, flag_values: dict[str, Any]
) -> list[str] | None:
    """Return the arguments that continue a run; None if it is finished.

    Raises:
        UserError: It is not a run of these flags, or its state is gone.
    """
    path, epochs = directory.path, config.hyperparameters.epochs
    here = dataclasses.replace(config, choice=dataclasses.replace(config.choice, seed=seed))
    result = directory.read_result()
    found = differences(directory.read_config().as_trained(result or {}, epochs), here)
    if result and result["epochs"] > epochs and not any(each.startswith("epochs ") for each in found):
        found.append(f"epochs {result['epochs']} there, {epochs} here")
    if found:
        raise UserError(
            f"{path} is a run with other settings ({'; '.join(found)}); give its flags, another --run-dir "
            "or --overwrite"
        )
    if result and result["epochs"] == epochs:
        cli.try_print_line(f"seed {seed} has ended, in {path}")
        return None
    if not directory.state_path.exists():
        raise UserError(
            f"{directory.state_path} is missing, and the run cannot continue to epoch {epochs} without it"
        )
    kept = {name: value for name, value in flag_values.items() if name not in NEW_RUN_FLAGS}
    return command_line({**kept, "seed": seed, "epochs": epochs, "resume": path})


def differences(there: RunConfig, here: RunConfig) -> list[str]:
    """Return the differences of a run from the one that flags would make, with both values.

    Its device and the place of its text do not count, nor do its epochs, unless they change every epoch's
    learning rate.

    Args:
        there: Configuration of the run.
        here: Configuration of the flags, with the digests of the text and of the weights to start from.
    """
    extendable = ("epochs",) if there.hyperparameters.schedule == "exponential" else ()
    found = there.differences(here, ignore=(*PLACES, *extendable))
    found += [f"{change} there" for change in there.changes]
    origins, others = _origins(there), _origins(here)
    words = [
        f"{name} {text} there, {others[name][1]} here"
        for name, (value, text) in origins.items()
        if value != others[name][0]
    ]
    # Prepared otherwise, or with another vocabulary, any text has another digest.
    if not words and run_data.identify(there) != run_data.identify(here):
        words = [f"data {_describe_text(there)} there, {_describe_text(here)} here"]
    return [*found, *words]


def _origins(run: RunConfig) -> dict[str, tuple[Any, str]]:
    """Return how a run's text was prepared and where its weights came from: values to compare and to show."""
    origins = {name: (value, repr(value)) for name, value in effective_settings(run.preparation).items()}
    init_from = run.init_from
    if init_from is None:
        return {**origins, "init_from": (None, "none")}
    text = f"{init_from.run} ({describe_digest(init_from.weights_sha256)}, {init_from.new_words:,} new words)"
    return {**origins, "init_from": ((init_from.weights_sha256, init_from.new_words), text)}


def _describe_text(run: RunConfig) -> str:
    return f"{run.source.path} ({describe_digest(run.source.sha256)})" if run.source else run.data
