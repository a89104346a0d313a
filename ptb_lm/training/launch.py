"""Training as the flags say: a new run or a resumed one, its folder, its result.

This is not in ptb_lm.train, because its imports take longer than --help may.
"""

import argparse
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_lm.common import cli, host, streams
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import backend, parameters
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.training import announcements, processes, restarts, run_data, run_folder
from ptb_lm.training.fine_tuning import Start
from ptb_lm.training.interrupt import Interrupted, StopRequest
from ptb_lm.training.progress_display import LOG_SECONDS
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import OF_A_NEW_RUN, new_config, resumed_config
from ptb_lm.training.schemas import Row
from ptb_lm.training.shared_directory import SharedRunDirectory
from ptb_lm.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the flags ask for.

    Attributes:
        given: The flags that were given, by name.
        run: The run's configuration.
        directory: Its folder.
        found: The configuration of a run that is resumed, as its folder has it.
        vocabulary: The words, if an earlier run has them.
        start: The run whose weights it begins with.
    """

    given: Mapping[str, Any]
    run: RunConfig
    directory: RunDirectory
    found: RunConfig | None = None
    vocabulary: Vocabulary | None = None
    start: Start | None = None

    @property
    def resuming(self) -> bool:
        return self.found is not None

    @property
    def overwrite(self) -> bool:
        return bool(self.given.get("overwrite"))


def train(
    arguments: argparse.Namespace, command_line: str, *, started: float, ranks: Ranks = SINGLE_PROCESS
) -> int:
    """Train as the flags say; return the exit status.

    Args:
        arguments: Of ptb_lm.train's parser; None where a flag was not given.
        command_line: As it was typed, for the record.
        started: When the command was, by time.perf_counter.
        ranks: The processes that train this run together.

    Raises:
        UserError: Something is wrong with the flags, the data or the run directory, and nothing was written;
            or there is not enough memory for a step, and the run directory has the newest state.
        LostRankError: Another process ended; the run directory has the newest state.
    """
    command, load = f"{cli.TRAIN} {command_line}".strip(), host.Load()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    given = processes.with_global_batch(given, ranks.size * ranks.devices)
    asked = _asked(given, command, ranks)
    # Everything that can be wrong is found out before anything is written.
    run, corpus, model, count = _built(asked, ranks)
    directory = _made(asked, ranks)
    with directory.locked(), StopRequest(together=ranks.size > 1) as stop:
        _check_again(asked, directory, ranks)
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
        trainer.environment |= restarts.job()
        if not asked.resuming:
            directory.create(run, corpus.vocabulary)
        elif result := _resumed(trainer, command):
            announcements.report(result, directory)
            return 0
        if asked.start and "data" not in given:
            cli.remark(f"without --data, the text is that of {asked.start.directory.path}")
        _announce(trainer, load, parameter_count=count, resuming=asked.resuming)
        again = processes.how_to_continue(directory.path, given, ranks, framework=run.choice.framework)
        processes.tell_launcher(again, ranks)
        try:
            result = _to_the_end(trainer, again=again, started=started)
        except Interrupted as interrupted:
            return interrupted.exit_status
    announcements.report(result, directory)
    return 0


def _built(asked: _Asked, ranks: Ranks) -> tuple[RunConfig, Corpus, backend.Backend, int]:
    """Return the run's configuration, its text, its model with the first weights, and how many these are."""
    ranks.check_divisible(asked.run.hyperparameters.batch_size)
    run, corpus = ranks.same_on_all(lambda: _with_text(asked), lambda made: processes.facts(*made, ranks))
    start = asked.start
    if start:
        run = dataclasses.replace(run, init_from=ranks.run_on_first(lambda: start.record(corpus)))
    if asked.resuming:  # before a model is built of a config.json that somebody has changed
        ranks.run_on_first(lambda: bool(RunDirectory(asked.directory.path).read_state(run=run)))
    parameters.check_fits(run.hyperparameters, len(corpus.vocabulary))
    draw = start.initial if start else _drawn
    weights = draw(run, len(corpus.vocabulary))
    model = backend.build(run.hyperparameters, weights, run.choice, ranks)
    ranks.barrier()  # one machine may have compiled what another one had already
    return run, corpus, model, parameters.count_scalars(weights)


def _made(asked: _Asked, ranks: Ranks) -> RunDirectory:
    """Return the run's folder; if no flag names one, it is made."""
    if asked.resuming or "run_dir" in asked.given:
        return asked.directory
    path = asked.directory.path
    return _directory(ranks.run_on_first(lambda: run_folder.made_first(path)), ranks)


def _check_again(asked: _Asked, directory: RunDirectory, ranks: Ranks) -> None:
    """Check that no other process has been at work in the folder since this one looked at it."""
    if not asked.resuming:
        path, overwrite = directory.path, asked.overwrite
        ranks.run_on_first(lambda: run_folder.refuse_existing(path, overwrite=overwrite))
    elif directory.read_config() != asked.found:
        raise UserError(f"another process has changed {directory.config}; try again")


def _resumed(trainer: Trainer, command: str) -> Row | None:
    """Continue from the newest state; return the result if there is nothing left to train or to test."""
    directory = trainer.directory
    trainer.resume(command)
    result = directory.read_result()
    # A run that went on and has not been tested since still has the result of its earlier end.
    if result and trainer.progress.epoch == trainer.config.epochs == result["epochs"]:
        directory.restore_metrics(trainer.progress.rows)
        cli.remark(f"the run in {directory.path} is finished; to train it further, give more --epochs")
        return result
    directory.remove_leftovers()
    directory.write_config(trainer.run)
    return None


def _announce(trainer: Trainer, load: host.Load, *, parameter_count: int, resuming: bool) -> None:
    """Say what is trained, how it could be faster, and what is not as it was before a resumed run stopped."""
    model, threads = trainer.backend, trainer.environment.get("threads")
    busy = load.hint(threads) if isinstance(threads, int) and trainer.ranks.size == 1 else None
    hints = [*model.hints, *filter(None, [busy])]
    announcements.announce(
        trainer.run, trainer.corpus, model, trainer.directory, parameter_count, hints=hints
    )
    if resuming:
        announcements.tell_where(trainer.progress, epochs=trainer.run.hyperparameters.epochs)
        before, now = trainer.progress.environments[-2:]
        announcements.tell_what_changed(before, now, drops=trainer.run.hyperparameters.drops)


def _to_the_end(trainer: Trainer, *, again: str, started: float) -> Row:
    """Train, write result.json and return it; say how to continue if that does not end.

    Args:
        trainer: Of the run.
        again: How to continue.
        started: When the command was, by time.perf_counter.

    Raises:
        Interrupted: A signal asked to stop; the state is saved.
        LostRankError: Another process ended; the run directory has the newest state.
    """
    try:
        result = trainer.train()
    except Interrupted as interrupted:
        streams.tell(f"{interrupted}: saved; {again}")
        raise
    except LostRankError as error:
        raise LostRankError(f"{error}; {again}", speaker=error.speaker) from None
    result["command_seconds"] = time.perf_counter() - started  # of this process: all but starting Python
    if trainer.run.init_from:
        result["init_from"] = trainer.run.init_from.to_json()
    trainer.directory.write_result(result)
    return result


def _asked(given: dict[str, Any], command: str, ranks: Ranks) -> _Asked:
    """Return what the flags ask for, checked as far as that is possible without the text."""
    if "extend_vocabulary" in given and "init_from" not in given:
        raise UserError("--extend-vocabulary needs --init-from")
    if given.get("overwrite") and "run_dir" not in given:
        raise UserError("--overwrite needs --run-dir")
    where = given.get("resume")
    if where is None and restarts.goes_on(given.get("run_dir"), command, ranks):
        where = given["run_dir"]
        given = {name: value for name, value in given.items() if name not in OF_A_NEW_RUN}
    if where is not None:
        directory = _directory(where, ranks)
        found = directory.read_config()
        run, vocabulary = resumed_config(found, given), directory.read_vocabulary()
        return _Asked(given=given, run=run, directory=directory, found=found, vocabulary=vocabulary)
    start = ranks.run_on_first(lambda: Start.read(given["init_from"])) if "init_from" in given else None
    run = start.config(given) if start else new_config(given)
    path = given.get("run_dir") or ranks.run_on_first(lambda: run_folder.default_path(run))
    if "run_dir" in given:
        overwrite, init_from = bool(given.get("overwrite")), start.directory.path if start else None
        ranks.run_on_first(lambda: run_folder.refuse_existing(path, overwrite=overwrite, init_from=init_from))
    words = start.vocabulary if start else None
    return _Asked(given=given, run=run, directory=_directory(path, ranks), vocabulary=words, start=start)


def _with_text(asked: _Asked) -> tuple[RunConfig, Corpus]:
    """Return the run's configuration with the place of its text, and the text.

    Raises:
        UserError: It cannot be read, is too short, or is not the one that a resumed run was trained on.
    """
    run, words = asked.run, asked.vocabulary
    if asked.resuming:
        assert words is not None
        corpus = run_data.load_again(run, words)
    else:
        corpus = run_data.load_first(run, words, extend=bool(asked.given.get("extend_vocabulary")))
    run_data.count_steps(corpus, run.hyperparameters)  # refuses a split that is too short
    if asked.resuming and words is not None and words.sha256 != corpus.vocabulary.sha256:
        raise UserError(
            f"the vocabulary of the data ({len(corpus.vocabulary):,} words) is not the one in "
            f"{asked.directory.vocabulary}"
        )
    own_words = asked.start is None and run.init_from is None
    return run_data.with_source(run, corpus, own_words=own_words), corpus


def _drawn(run: RunConfig, words: int) -> parameters.Weights:
    return parameters.draw_initial(run.hyperparameters, words, seed=run.choice.seed)


def _directory(path: Path, ranks: Ranks) -> RunDirectory:
    return RunDirectory(path) if ranks.size == 1 else SharedRunDirectory(path, ranks)
