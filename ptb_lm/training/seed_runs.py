"""The runs of several seeds: which exist, whether the flags are theirs, and what is left to train."""

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.preparation import effective_settings
from ptb_lm.model import parameters
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.model.fastest import OPEN
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.training import processes, run_data, run_folders
from ptb_lm.training.fine_tuning import Start
from ptb_lm.training.run_config import PLACES, RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import NEW_RUN_FLAGS
from ptb_lm.training.window_plan import WindowPlan

_HYPERPARAMETER_NAMES = {each.name for each in HYPERPARAMETERS}


def with_earlier_choice(given: dict[str, Any], seeds: Sequence[int], choice: Choice) -> dict[str, Any]:
    """Return the flags with the model and the precision of a seed that was begun, where no flag names them.

    All seeds are then computed alike, on whatever machine they continue.

    Args:
        given: Flags by name.
        seeds: Seeds of the runs.
        choice: Choices of the flags.
    """
    if "run_dir" not in given or given.get("overwrite"):
        return given
    for directory in (RunDirectory(given["run_dir"] / f"seed-{seed}") for seed in seeds):
        if _has_trained(directory):
            earlier = directory.read_config().choice
            if earlier.framework == choice.framework:
                return {**{name: getattr(earlier, name) for name in OPEN}, **given}
    return given


def remaining_commands(
    runs: dict[int, RunDirectory],
    configs: dict[int, RunConfig],
    start: Start | None,
    given: dict[str, Any],
    *,
    trains_here: bool = True,
) -> dict[int, list[str]]:
    """Return the arguments that start or continue the runs that are not finished, by seed.

    Runs to overwrite are cleared here, before the first seed trains: if it is stopped, the next command takes
    none of them for a new one.

    Args:
        runs: Folders of the runs, by seed.
        configs: Configurations that the flags ask for, by seed.
        start: Run whose weights they start from.
        given: Flags by name.
        trains_here: False if other processes train, so that this one holds no memory of a GPU.

    Raises:
        UserError: A folder has a run of other flags, or something else; the text cannot be read; or the runs
            that replace others cannot begin.
    """
    existing = {seed: run for seed, run in runs.items() if _has_trained(run)}
    overwrite, init_from = bool(given.get("overwrite")), start.directory.weights if start else None
    if existing:
        config = next(iter(configs.values()))  # all read the same text
        words, extend = start.vocabulary if start else None, bool(given.get("extend_vocabulary"))
        corpus = run_data.load_first(config, words, extend=extend)
        configs = {seed: _with_origins(each, corpus, start) for seed, each in configs.items()}
    flags = {name: value for name, value in given.items() if name not in ("seeds", "jobs", "run_dir")}
    commands = {}
    for seed, run in runs.items():
        if seed in existing and not overwrite:
            command = _resume_command(run, configs[seed], flags)
        else:
            run_folders.refuse_existing(run.path, overwrite=overwrite, init_from=init_from)
            command = command_line({**flags, "seed": seed, "run_dir": run.path})
        if command is not None:
            commands[seed] = command
    if existing and overwrite:
        _check_begins(config, corpus, given, trains_here=trains_here)
        _clear(existing.values())
    return commands


def command_line(given: dict[str, Any]) -> list[str]:
    """Return the command line that gives these values by name."""
    line: list[str] = []
    for name, value in given.items():
        flag = flag_name(name)
        if isinstance(value, bool):
            if value:
                line.append(flag)
            elif name in _HYPERPARAMETER_NAMES:  # only hyper-parameters have a --no- flag
                line.append(flag.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            line += [flag, *map(str, value)]
        else:
            line += [flag, str(value)]
    return line


def _has_trained(directory: RunDirectory) -> bool:
    """Return whether there is a run that has existing."""
    return directory.config.exists() and not directory.is_expendable()


def _with_origins(config: RunConfig, corpus: Corpus, start: Start | None) -> RunConfig:
    """Return a configuration as a new run records it: with the origins of its text and of its weights."""
    config = run_data.with_source(config, corpus, own_words=start is None)
    return dataclasses.replace(config, init_from=start.record(corpus)) if start else config


def _check_begins(config: RunConfig, corpus: Corpus, given: dict[str, Any], *, trains_here: bool) -> None:
    """Check that a run can begin, as far as that can be known before its model is built.

    Raises:
        UserError: It cannot.
    """
    WindowPlan(corpus, config.hyperparameters, seed=config.choice.seed)  # refuses a split that is too short
    parameters.check_fits(config.hyperparameters, len(corpus.vocabulary))
    processes.check_devices(given, config.hyperparameters.batch_size)
    config.choice.check_cell(config.hyperparameters.cell)
    if trains_here:
        config.choice.check_device()
    else:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
            other.submit(config.choice.check_device).result()


def _resume_command(directory: RunDirectory, config: RunConfig, flags: dict[str, Any]) -> list[str] | None:
    """Return the arguments that continue a run; None if it is finished.

    Raises:
        UserError: It is not a run of these flags, or its state is gone.
    """
    path, epochs = directory.path, config.hyperparameters.epochs
    found = differences(directory.read_config(), config)
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
    kept = {name: value for name, value in flags.items() if name not in NEW_RUN_FLAGS}
    return command_line({**kept, "seed": config.choice.seed, "epochs": epochs, "resume": path})


def _clear(directories: Collection[RunDirectory]) -> None:
    with contextlib.ExitStack() as locks:
        for directory in directories:
            locks.enter_context(directory.lock())
        for directory in directories:
            directory.clear()


def differences(there: RunConfig, here: RunConfig) -> list[str]:
    """Return the differences of a run from the one that flags would make, with both values.

    Its device, the place of its text and its epochs do not count.

    Args:
        there: Configuration of the run.
        here: Configuration of the flags, with the digests of the text and of the weights to start from.
    """
    found = there.differences(here, ignore=(*PLACES, "epochs"))
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
    start = run.init_from
    if start is None:
        return {**origins, "init_from": (None, "none")}
    text = f"{start.run} (SHA-256 {start.weights_sha256[:12]}…, {start.new_words:,} new words)"
    return {**origins, "init_from": ((start.weights_sha256, start.new_words), text)}


def _describe_text(run: RunConfig) -> str:
    return f"{run.source.path} (SHA-256 {run.source.sha256[:12]}…)" if run.source else run.data
