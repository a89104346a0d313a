"""A training from its flags to its result, in three steps: `parse_request`, `prepare`, `run`.

This is not in ptb_lm.train, because its imports take longer than --help may.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptb_lm.common import cli, host, streams
from ptb_lm.common.errors import LostRankError, OutOfMemoryError, UserError
from ptb_lm.common.flags import flag_name, path_word
from ptb_lm.common.program import version
from ptb_lm.common.signals import StopRequest, TrainingInterrupted
from ptb_lm.data.corpus import Corpus
from ptb_lm.model import backend, parameters
from ptb_lm.model.ranks import Facts, Ranks
from ptb_lm.training import display, processes, run_data, run_folders
from ptb_lm.training.fine_tuning import ParentRun, load_text
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import (
    NEW_RUN_FLAGS,
    new_config,
    resumed_config,
    with_fastest,
    with_global_batch,
)
from ptb_lm.training.trainer import Trainer
from ptb_lm.training.window_plan import WindowPlan

# Keys that processes need not have alike: where the text lies (its digest is compared) and where the first
# weights are (the first process reads them). The hyper-parameters are compared one by one, not as a table.
MAY_DIFFER_PER_HOST = ("data", "source", "init_from", "hyperparameters")

RUN_FOLDERS = ("run_dir", "resume", "init_from")  # flags that name the folder of a run


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A training that the flags ask for.

    Attributes:
        command: Command line, for the record.
        flag_values: The flags that were given, by name.
        run: Configuration of the run.
        directory: Folder of the run, and the processes that train it together.
        config_on_disk: Configuration in the folder of a run that is resumed; None: the run is new.
        parent: Run whose weights it begins with (--init-from); None: it begins with random ones.
        reason: Sentence that says why a new run takes its model and its precision; "" if flags say so.
    """

    command: str
    flag_values: Mapping[str, Any]
    run: RunConfig
    directory: RunDirectory
    config_on_disk: RunConfig | None = None
    parent: ParentRun | None = None
    reason: str = ""


def train(flag_values: dict[str, Any], command_line: str, *, command_start: float, ranks: Ranks) -> int:
    """Train as the flags say; return the exit status.

    Args:
        flag_values: The flags that were given, by name.
        command_line: Command line as it was typed, for the record.
        command_start: Time when the command started, by time.perf_counter.
        ranks: Processes that train this run together.

    Raises:
        UserError: Something is wrong with the flags, the data or the run directory, and nothing was written;
            or there is not enough memory for a step, and the run directory has the newest state.
        LostRankError: Another process ended; the run directory has the newest state.
    """
    load = host.Load()
    flag_values = with_global_batch(flag_values, ranks.size * ranks.devices)
    request = parse_request(flag_values, f"{cli.TRAIN} {command_line}".strip(), ranks)
    # Everything that can be wrong is found out before anything is written.
    request, corpus, model = prepare(request)
    return run(request, corpus, model, load=load, command_start=command_start)


def parse_request(flag_values: dict[str, Any], command: str, ranks: Ranks) -> TrainRequest:
    """Return the training that the flags ask for, checked as far as that is possible without the text.

    Args:
        flag_values: The flags that were given, by name.
        command: Command line, for the record.
        ranks: Processes that train the run together.

    Raises:
        UserError: The flags contradict each other, the run or the folder.
    """
    # They decide what the processes agree upon next.
    ranks.same_on_all(lambda: [name for name in RUN_FOLDERS if name in flag_values], _shared_folders)
    resume = flag_values.get("resume")
    if resume is None and processes.is_restarted(flag_values.get("run_dir"), command, ranks):
        resume = flag_values["run_dir"]
        flag_values = {name: value for name, value in flag_values.items() if name not in NEW_RUN_FLAGS}
    if resume is not None:
        directory = RunDirectory(resume, ranks)
        config_on_disk = directory.read_config()
        if directory.is_expendable():
            raise UserError(
                f"the run in {resume} had saved nothing; start it again with --run-dir {path_word(resume)}"
            )
        return TrainRequest(
            command=command,
            flag_values=flag_values,
            run=resumed_config(
                config_on_disk.as_trained(directory.read_result() or {}, flag_values.get("epochs")),
                flag_values,
            ),
            directory=directory,
            config_on_disk=config_on_disk,
        )
    parent = (
        ranks.run_on_first(lambda: ParentRun.read(flag_values["init_from"]))
        if "init_from" in flag_values
        else None
    )
    run_config = parent.derive_config(flag_values) if parent else new_config(flag_values)
    if "run_dir" in flag_values:
        path, overwrite = flag_values["run_dir"], bool(flag_values.get("overwrite"))
        source = parent.directory.weights_path if parent else None
        ranks.run_on_first(lambda: run_folders.refuse_existing(path, overwrite=overwrite, init_from=source))
    if ranks.size == 1:  # otherwise all of them load the text together
        run_data.check_folder(run_config)  # a missing folder is reported before the framework is imported
    run_config, reason = with_fastest(run_config, flag_values, ranks)
    path = flag_values.get("run_dir") or ranks.run_on_first(lambda: run_folders.default_path(run_config))
    return TrainRequest(
        command=command,
        flag_values=flag_values,
        run=run_config,
        directory=RunDirectory(path, ranks),
        parent=parent,
        reason=reason,
    )


def prepare(request: TrainRequest) -> tuple[TrainRequest, Corpus, backend.Backend]:
    """Load the text and build the model with its first weights; nothing is written.

    Returns:
        The request, whose configuration knows its text now; the text; the model.

    Raises:
        UserError: The text or the model is impossible, or they are not those of the run that is resumed.
    """
    parent, directory, ranks = request.parent, request.directory, request.directory.ranks
    ranks.check_divisible(request.run.hyperparameters.batch_size)
    run_config, corpus = ranks.same_on_all(
        lambda: _load_text(request), lambda text: _shared_facts(*text, ranks)
    )
    if request.config_on_disk is not None:
        # If somebody has edited config.json, this refuses it before a model is built.
        ranks.run_on_first(lambda: bool(RunDirectory(directory.path).read_state(run=run_config)))
    vocabulary_size = len(corpus.vocabulary)
    parameters.check_fits(run_config.hyperparameters, vocabulary_size)
    weights = (
        parent.make_initial_weights(run_config, vocabulary_size)
        if parent
        else parameters.draw_initial(run_config.hyperparameters, vocabulary_size, seed=run_config.choice.seed)
    )
    model = backend.build(run_config.hyperparameters, weights, run_config.choice, ranks)
    model.prepare_training()
    ranks.barrier()  # one machine may have compiled what another one had already
    return replace(request, run=run_config), corpus, model


def run(
    request: TrainRequest, corpus: Corpus, model: backend.Backend, *, load: host.Load, command_start: float
) -> int:
    """Create or continue the run directory, train to the end, write result.json; return the exit status.

    Args:
        request: Request that `prepare` returned.
        corpus: Text of the run.
        model: Model with its first weights.
        load: Load of the machine since the command started.
        command_start: Time when the command started, by time.perf_counter.

    Raises:
        UserError: Another process uses the run directory, or there is not enough memory for a step.
        LostRankError: Another process ended; the run directory has the newest state.
    """
    ranks, default = request.directory.ranks, request.directory.path
    if request.config_on_disk is None and "run_dir" not in request.flag_values:
        path = ranks.run_on_first(lambda: run_folders.create_folder(default))
        request = replace(request, directory=RunDirectory(path, ranks))
    run_config, directory = request.run, request.directory
    with directory.lock(), StopRequest(is_one_of_several=ranks.size > 1) as stop:
        _check_unchanged(request)
        trainer = Trainer(
            run_config,
            corpus,
            model,
            directory,
            stop=stop,
            command=request.command,
            # Taken now: at the end of a long run the checkout may be another.
            environment={**host.environment(), **model.environment(), **processes.torchrun_job()},
            command_start=command_start,
            log_seconds=request.flag_values.get("log_interval", display.LOG_SECONDS),
        )
        if request.config_on_disk is None:
            directory.create(run_config, corpus.vocabulary)
        else:
            directory.remove_leftovers()
            if _resume(trainer, request):
                return 0
            directory.write_config(trainer.run)
        if request.parent and request.flag_values.keys().isdisjoint(("data", "text_column")):
            cli.try_print_line(f"without --data, the text is that of {request.parent.directory.path}")
        if request.reason:
            cli.try_print_line(request.reason)
        environment = trainer.progress.environments[-1]
        display.announce(run_config, corpus, model, directory.path, environment=environment, load=load)
        if request.config_on_disk is not None:
            display.print_resumed(
                trainer.progress,
                request.config_on_disk.hyperparameters,
                run_config.hyperparameters,
                trainer.plan,
            )
        how_to_continue = processes.how_to_continue(
            directory.path, request.flag_values, ranks, run_config.choice
        )
        processes.store_continuation(how_to_continue, ranks)
        try:
            result = trainer.train()
            directory.write_result(result)
        except TrainingInterrupted as interruption:
            streams.print_to_stderr(f"{interruption}: saved; {how_to_continue}")
            return interruption.exit_status
        except LostRankError as error:
            raise LostRankError(f"{error}; {how_to_continue}", speaker=error.speaker) from None
        except (OSError, MemoryError, OutOfMemoryError) as error:  # for example of a full disk
            # A model that is too large for a first step would be too large again.
            if directory.state_path.exists() and (trainer.steps_done() or isinstance(error, OSError)):
                error.add_note(how_to_continue)
            raise
    display.report(result, directory)
    return 0


def _resume(trainer: Trainer, request: TrainRequest) -> bool:
    """Continue from the newest state; return whether the run is finished, whose result is then reported.

    Raises:
        UserError: All epochs are done, and flags ask for another training.
    """
    assert request.config_on_disk is not None
    trainer.resume(request.config_on_disk)
    directory, epochs = request.directory, trainer.config.epochs
    result, is_trained = directory.read_result(), trainer.is_trained()
    before = request.config_on_disk.as_trained(result or {}, epochs)
    if is_trained and before.hyperparameters.replace(epochs=epochs) != trainer.config:
        raise UserError(
            f"all epochs of the run in {directory.path} are done; other settings need more --epochs"
        )
    # A run that went on and has not been tested since still has the result of its earlier end.
    if not (result and trainer.progress.epoch == result["epochs"] == epochs):
        return False
    if request.run != request.config_on_disk:
        # Where its text lies now; nothing was computed on another device.
        directory.write_config(replace(trainer.run, choice=before.choice))
    directory.restore_metrics(trainer.progress.rows)
    cli.try_print_line(f"the run in {directory.path} is finished; to train it further, give more --epochs")
    display.report(result, directory)
    return True


def _check_unchanged(request: TrainRequest) -> None:
    """Check that no other process has been at work in the folder since this one looked at it."""
    directory = request.directory
    if request.config_on_disk is None:
        path, overwrite = directory.path, bool(request.flag_values.get("overwrite"))
        directory.ranks.run_on_first(lambda: run_folders.refuse_existing(path, overwrite=overwrite))
    elif directory.read_config() != request.config_on_disk:
        raise UserError(f"another process has changed {directory.config_path}; try again")


def _load_text(request: TrainRequest) -> tuple[RunConfig, Corpus]:
    """Return the run's configuration with the origins of its text and its weights, and the text.

    Raises:
        UserError: It cannot be read, is too short, or is not the one that a resumed run was trained on.
    """
    run_config, parent = request.run, request.parent
    if request.config_on_disk is not None:
        corpus = run_data.load_again(
            request.config_on_disk,  # which says what its text is; a flag may say where that lies now
            request.directory.read_vocabulary(),  # by the first rank, for all: none may fail before this
            moved_to=request.flag_values.get("data"),
            run_name=str(request.directory.path),
        )
        run_config = run_data.with_source(run_config, corpus)
    else:
        extend = bool(request.flag_values.get("extend_vocabulary"))
        run_config, corpus = load_text(run_config, parent, extend=extend)
    # Refuses a split that is too short.
    WindowPlan(corpus, run_config.hyperparameters, seed=run_config.choice.seed)
    if parent:
        parent.check_unchanged(run_config, corpus, is_named="data" in request.flag_values)
    return run_config, corpus


def _shared_folders(given: Sequence[str]) -> Facts:
    """Return which folders of runs the flags name, which must be the same in all processes; not the paths."""
    names, used = ([flag_name(name) for name in each] for each in (RUN_FOLDERS, given))
    return {f"choice of {', '.join(names)}": " ".join(used) or "none"}


def _shared_facts(run: RunConfig, corpus: Corpus, ranks: Ranks) -> Facts:
    """Return the facts that must be the same in all processes: program, text, configuration, precision."""
    return {
        "version": version(),
        "commit": host.environment()["commit"],
        "corpus (SHA-256)": corpus.sha256[:12],
        "reduce_precision": ranks.reduce_precision,
        **{
            name: str(value)
            for name, value in {**run.to_json(), **run.settings}.items()
            if name not in MAY_DIFFER_PER_HOST
        },
    }
