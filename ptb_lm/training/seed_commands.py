"""Runs of several seeds: what is left to train, as arguments of ptb_lm.train."""

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import Corpus
from ptb_lm.model import parameters
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.training import processes, run_data, run_folder, same_run
from ptb_lm.training.fine_tuning import Start
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import OF_A_NEW_RUN

_OF_A_CONFIG = {each.name for each in HYPERPARAMETERS}


def left(
    runs: dict[int, RunDirectory], configs: dict[int, RunConfig], start: Start | None, given: dict[str, Any]
) -> dict[int, list[str]]:
    """Return the arguments that start or continue the runs that are not finished, by seed.

    Runs to overwrite are cleared here, before the first seed trains: if it is stopped, the next command takes
    none of them for a new one.

    Args:
        runs: Their folders, by seed.
        configs: What the flags configure, by seed.
        start: The run whose weights they start from.
        given: The flags, by name.

    Raises:
        UserError: A folder has a run of other flags, or something else; the text cannot be read; or the runs
            that replace others cannot begin.
    """
    existing = {seed: run for seed, run in runs.items() if _began(run)}
    overwrite, init_from = bool(given.get("overwrite")), given.get("init_from")
    if existing:
        config = next(iter(configs.values()))  # all read the same text
        words, extend = start.vocabulary if start else None, bool(given.get("extend_vocabulary"))
        corpus = run_data.load_first(config, words, extend=extend)
        configs = {seed: _recorded(each, corpus, start) for seed, each in configs.items()}
    wanted = {name: value for name, value in given.items() if name not in ("seeds", "jobs", "run_dir")}
    commands = {}
    for seed, run in runs.items():
        if seed in existing and not overwrite:
            command = _to_go_on(run, configs[seed], wanted)
        else:
            run_folder.refuse_existing(run.path, overwrite=overwrite, init_from=init_from)
            command = flags({**wanted, "seed": seed, "run_dir": run.path})
        if command is not None:
            commands[seed] = command
    if existing and overwrite:
        _check_begins(config, corpus, given)
        _clear(existing.values())
    return commands


def flags(given: dict[str, Any]) -> list[str]:
    """Return the command line that gives these values by name."""
    line: list[str] = []
    for name, value in given.items():
        flag = flag_name(name)
        if isinstance(value, bool):
            if value:
                line.append(flag)
            elif name in _OF_A_CONFIG:  # only hyper-parameters have a --no- flag
                line.append(flag.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            line += [flag, *map(str, value)]
        else:
            line += [flag, str(value)]
    return line


def _began(directory: RunDirectory) -> bool:
    """Return whether there is a run that has trained."""
    return directory.config.exists() and not directory.never_began()


def _recorded(config: RunConfig, corpus: Corpus, start: Start | None) -> RunConfig:
    """Return a configuration as a new run records it: with its text, and the weights that it starts from."""
    config = run_data.with_source(config, corpus, own_words=start is None)
    return dataclasses.replace(config, init_from=start.record(corpus)) if start else config


def _check_begins(config: RunConfig, corpus: Corpus, given: dict[str, Any]) -> None:
    """Check that a run can begin, as far as that can be known before its model is built.

    Raises:
        UserError: It cannot.
    """
    run_data.count_steps(corpus, config.hyperparameters)
    parameters.check_fits(config.hyperparameters, len(corpus.vocabulary))
    processes.check_devices(given, config.hyperparameters.batch_size)
    config.choice.check_cell(config.hyperparameters.cell)
    config.choice.check_device()


def _to_go_on(directory: RunDirectory, config: RunConfig, wanted: dict[str, Any]) -> list[str] | None:
    """Return the arguments that continue a run; None if it is finished.

    Raises:
        UserError: It is not a run of these flags, or its state is gone.
    """
    path, epochs = directory.path, config.hyperparameters.epochs
    found = same_run.differences(directory.read_config(), config)
    result = directory.read_result()
    if result and result["epochs"] > epochs:
        found.append(f"epochs {result['epochs']} there, {epochs} here")
    if found:
        raise UserError(
            f"{path} is a run with other settings ({'; '.join(found)}); give its flags, another --run-dir "
            "or --overwrite"
        )
    if result and result["epochs"] == epochs:
        cli.remark(f"seed {config.choice.seed} has ended, in {path}")
        return None
    if not directory.state.exists():
        raise UserError(
            f"{directory.state} is missing, and the run cannot continue to epoch {epochs} without it"
        )
    kept = {name: value for name, value in wanted.items() if name not in OF_A_NEW_RUN}
    return flags({**kept, "seed": config.choice.seed, "epochs": epochs, "resume": path})


def _clear(directories: Collection[RunDirectory]) -> None:
    with contextlib.ExitStack() as locks:
        for directory in directories:
            locks.enter_context(directory.locked())
        for directory in directories:
            directory.clear()
