"""Training as the flags say: a new run or a resumed one, its folder, its result.

This is not in ptb_lm.train, because its imports take longer than --help may.
"""

import argparse
import contextlib
import dataclasses
import itertools
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm import cli, host, streams
from ptb_lm.data.corpus import Corpus, load_named
from ptb_lm.data.preparation import FIELDS, requested
from ptb_lm.errors import UserError
from ptb_lm.files import home
from ptb_lm.model import backend, frameworks, parameters
from ptb_lm.model.choice import CHOSEN, Choice
from ptb_lm.model.config import HYPERPARAMETERS, RECIPES
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.training import run_data
from ptb_lm.training.fine_tuning import Start
from ptb_lm.training.interrupt import Interrupted, StopRequest
from ptb_lm.training.progress_display import LOG_SECONDS
from ptb_lm.training.run_config import RESUMABLE, RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.trainer import Trainer, count_steps


def train(arguments: argparse.Namespace, command_line: str, *, started: float) -> int:
    """Train as the flags say; return the exit status.

    Args:
        arguments: Of ptb_lm.train's parser; None where a flag was not given.
        command_line: As it was typed, for the record.
        started: When the command was, by time.perf_counter.

    Raises:
        UserError: Something is wrong with the flags, the data or the run directory, and nothing was written;
            or there is not enough memory for a step, and the run directory has the newest state.
    """
    command, load = f"{cli.TRAIN} {command_line}".strip(), host.Load()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    resuming = arguments.resume is not None
    start = None
    if "extend_vocabulary" in given and "init_from" not in given:
        raise UserError("--extend-vocabulary needs --init-from")
    if arguments.overwrite and arguments.run_dir is None:
        raise UserError("--overwrite needs --run-dir")
    if resuming:
        directory = RunDirectory(arguments.resume)
        found = directory.read_config()
        run = resumed_config(found, given)
    else:
        start = Start.read(arguments.init_from) if "init_from" in given else None
        run = start.config(given) if start else new_config(given)
        directory = RunDirectory(arguments.run_dir or default_path(run))
        if arguments.run_dir is not None:
            _refuse_existing(directory, overwrite=arguments.overwrite)

    # Everything that can be wrong is found out before anything is written.
    if resuming:
        corpus = run_data.load_again(run, directory.read_vocabulary())
    else:
        vocabulary, extend = start.vocabulary if start else None, bool(arguments.extend_vocabulary)
        corpus = load_named(run.data, run.preparation, vocabulary=vocabulary, extend=extend)
        if start:
            run = dataclasses.replace(run, init_from=start.record(corpus))
    run = run_data.with_source(run, corpus)
    count_steps(corpus, run)  # refuses a split that is too short
    if resuming:
        _check_vocabulary(directory, corpus)
    parameters.check_fits(run.hyperparameters, len(corpus.vocabulary))
    draw = start.initial if start else _drawn
    weights = draw(run, len(corpus.vocabulary))
    model = backend.build(run.hyperparameters, weights, run.choice)
    if not resuming and arguments.run_dir is None:
        directory = RunDirectory(_made_first(directory.path))
    with directory.locked(), StopRequest() as stop:
        # Another process may have been at work here since this was looked at.
        if not resuming:
            _refuse_existing(directory, overwrite=arguments.overwrite)
        elif directory.read_config() != found:
            raise UserError(f"another process has changed {directory.config}; try again")
        trainer = Trainer(
            run,
            corpus,
            model,
            directory,
            stop=stop,
            command=command,
            started=started,
            log_seconds=given.get("log_interval", LOG_SECONDS),
        )
        if resuming:
            trainer.resume(command)
            result = directory.read_result()
            if trainer.progress.epoch == run.hyperparameters.epochs and result:
                cli.remark(
                    f"the run in {directory.path} is finished; to train it further, give more --epochs"
                )
                _report(result, directory)
                return 0
            directory.remove_leftovers()
            directory.write_config(run)
        else:
            directory.create(run, corpus.vocabulary)
        threads = trainer.environment.get("threads")
        busy = load.hint(threads) if isinstance(threads, int) else None
        _announce(
            run,
            corpus,
            model,
            directory,
            parameters.count(weights),
            hints=[*model.hints, *filter(None, [busy])],
        )
        if resuming:
            cli.remark(f"continues in epoch {trainer.progress.epoch + 1}, step {trainer.progress.step + 1}")
            _tell_what_changed(*trainer.progress.environments[-2:])
        try:
            result = trainer.train()
        except Interrupted as interrupted:
            again = shlex.join([*cli.TRAIN.split(), "--resume", str(directory.path)])
            streams.tell(f"{interrupted}: saved; continue with: {again}")
            return interrupted.exit_status
        result["command_seconds"] = time.perf_counter() - started  # of this process: all but starting Python
        if run.init_from:
            result["init_from"] = run.init_from.to_json()
        directory.write_result(result)
    _report(result, directory)
    return 0


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
        choice=Choice.of(**{name: given[name] for name in CHOSEN if name in given}),
        hyperparameters=RECIPES[recipe][preset].replace(**changes),
        preparation=requested(given, data, is_file=Path(data).is_file()),
    )


def _drawn(run: RunConfig, words: int) -> parameters.Weights:
    return parameters.initial(run.hyperparameters, words, seed=run.choice.seed)


def resumed_config(run: RunConfig, given: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with the flags given now, where they may differ."""
    before = {**run.to_json(), **run.to_json()["hyperparameters"]}
    if "init_from" in given:
        raise UserError("--init-from starts a new run and cannot be combined with --resume")
    for name in FIELDS:
        if name in given and given[name] != getattr(run.preparation, name, None):
            raise UserError(
                f"{flag_name(name)} would change the text of the run; a resumed run cannot do that"
            )
    for name in given:
        kept = name in RESUMABLE or (name, given[name]) == ("precision", frameworks.AUTO)
        if name in before and not kept and given[name] != before[name]:
            raise UserError(
                f"{flag_name(name)} {given[name]} differs from the run's {before[name]}; a resumed run can "
                f"change {', '.join(map(flag_name, RESUMABLE))} and nothing else"
            )
    changes = {each.name: given[each.name] for each in HYPERPARAMETERS if each.name in given}
    return dataclasses.replace(
        run,
        data=given.get("data", run.data),
        source=None if "data" in given else run.source,
        choice=dataclasses.replace(run.choice, device=given.get("device", run.choice.device)),
        hyperparameters=run.hyperparameters.replace(**changes),
    )


def default_path(run: RunConfig) -> Path:
    """Return the default folder of a run in checkpoints; another run may already have it."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{run.choice.framework}-{run.choice.model}-{run.config}"
    path = home() / "checkpoints" / name
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _made_first(path: Path) -> Path:
    """Make a new folder of this name, or with a number after it if the name is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):  # runs that start within one second
        new = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            new.mkdir()
            return new
    raise AssertionError("numbers do not end")


def _refuse_existing(directory: RunDirectory, *, overwrite: bool) -> None:
    path = directory.path
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a run directory")
    if not path.is_dir() or not any(path.iterdir()) or directory.never_began():
        return
    if overwrite:
        directory.read_config()  # of a run; any other folder is left alone
    elif not directory.config.exists():
        raise UserError(f"{path} holds files of something else than a run: give --run-dir a new folder")
    else:
        again = shlex.join(["--resume", str(path)])
        raise UserError(
            f"the run directory {path} exists; continue it with {again}, or replace it with --overwrite"
        )


def _check_vocabulary(directory: RunDirectory, corpus: Corpus) -> None:
    if directory.read_vocabulary().sha256 != corpus.vocabulary.sha256:
        raise UserError(
            f"the vocabulary of the data ({len(corpus.vocabulary):,} words) is not the one in "
            f"{directory.vocabulary}"
        )


def _announce(
    run: RunConfig,
    corpus: Corpus,
    model: backend.Backend,
    directory: RunDirectory,
    parameter_count: int,
    *,
    hints: Sequence[str],
) -> None:
    tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in corpus.splits.items())
    cli.remark(f"data {run.data}: {tokens} tokens, {len(corpus.vocabulary):,} words")
    for line in run_data.report(run, corpus):
        cli.remark(line)
    cli.remark(
        f"model {run.choice.model}, config {run.config}, recipe {run.recipe}: {parameter_count:,} "
        f"parameters, {model.engine}; precision {run.choice.precision}"
    )
    cli.remark(f"run directory {directory.path}")
    for hint in hints:
        cli.remark(f"hint: {hint}")


def _tell_what_changed(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Print changes since the run stopped that affect the last digits of its numbers."""
    # A run from before there was a choice.
    before = {**({"kernels": "torch", "float32_products": "MKL"} if "kernels" in now else {}), **before}
    changed = [
        f"{name.replace('_', ' ')} {before[name]} before, {now.get(name)} now"
        for name in ("torch", "tensorflow", "device", "kernels", "float32_products", "threads")
        if name in before and before[name] != now.get(name)
    ]
    if changed:
        cli.remark(
            f"from now on the numbers round differently from a run that never stopped: {'; '.join(changed)}"
        )


def _report(result: dict[str, Any], directory: RunDirectory) -> None:
    bound = result.get("best_possible_perplexity")
    best = f"; the best any model can do is {bound:.2f}" if bound else ""
    cli.remark(
        f"test perplexity {result['test_perplexity']:.2f}{best} (valid {result['valid_perplexity']:.2f}, "
        f"epoch {result['best_epoch']}; {result['words_per_second']:,.0f} words/s; "
        f"{result.get('seconds', 0):,.0f} s){_final_epoch(result)}"
    )
    cli.remark(f"written to {directory.result}")


def _final_epoch(result: dict[str, Any]) -> str:
    """Return the scores of the last epoch's weights, if they are not the best ones."""
    if (
        result["best_epoch"] == result["epochs"] or result.get("final_test_perplexity") is None
    ):  # of an older run
        return ""
    return (
        f"; the last epoch's weights: test {result['final_test_perplexity']:.2f}, "
        f"valid {result.get('final_valid_perplexity', 0):.2f}"
    )
