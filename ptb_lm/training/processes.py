"""The processes of a training: whether there are others, how this one joins them, who speaks for all.

torchrun and launchers like it tell a process its place by environment variables; TensorFlow has TF_CONFIG.
--devices starts such processes on this machine.
"""

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ptb_lm.common import cli, host, signals, streams
from ptb_lm.common.errors import DivergenceError, LostRankError, UserError
from ptb_lm.common.program import CONTINUATION, TYPED_COMMAND, version
from ptb_lm.data.corpus import Corpus
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS, REDUCE_PRECISIONS
from ptb_lm.model.ranks import SINGLE_PROCESS, Facts, OneWithDevices, Ranks, check_divisible
from ptb_lm.model.tf_config import tf_config
from ptb_lm.training import run_folder
from ptb_lm.training.fine_tuning import Start
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config, resumed_config

DEFAULT = next(iter(FRAMEWORKS))  # where no flag names a framework, and no run that can be seen here
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what a launcher of torch's processes sets
# What may differ between machines: where the text lies. What a run begins with, the first reads for all.
OF_A_MACHINE = ("data", "source", "init_from", "hyperparameters")


class Launched(NamedTuple):
    """How this process was started.

    Attributes:
        size: Of how many processes it is one; 1 if it is alone.
        by: Who says so: "TF_CONFIG", or "torchrun", also where another launcher sets the same variables.
    """

    size: int
    by: str


def launched() -> Launched:
    """Return how this process was started. Of what torchrun and TF_CONFIG say, the greater number counts.

    Raises:
        UserError: What they say makes no sense.
    """
    processes, workers = _world_size(), tf_config().processes
    return Launched(workers, "TF_CONFIG") if workers > processes else Launched(processes, "torchrun")


def _world_size() -> int:
    if not all(os.environ.get(name) for name in PLACE):
        return 1
    size = cli.from_environment("WORLD_SIZE", cli.whole_number(1), 1)
    here = cli.from_environment("LOCAL_WORLD_SIZE", cli.whole_number(1, size), size)
    for name, least, most in (("RANK", 0, size - 1), ("LOCAL_RANK", 0, here - 1), ("MASTER_PORT", 1, 65535)):
        cli.from_environment(name, cli.whole_number(least, most), least)
    return size


def to_start(arguments: argparse.Namespace) -> bool:
    """Return whether --devices asks for processes that are still to be started.

    Raises:
        UserError: A launcher has started another number of them, or --seeds asks it for several runs.
    """
    (here, by), asked = launched(), arguments.devices or 1
    if here > 1 and arguments.seeds:
        raise UserError(f"--seeds does not go with {by}; --devices trains each seed on several devices")
    if here > 1 and asked not in (1, here):
        raise UserError(f"--devices {asked} does not match the {here} processes that {by} names")
    row = FRAMEWORKS[_framework(vars(arguments))]
    return asked > here and not row.trains_on_devices


def start(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """Start processes on this machine that train together, and wait for them; return the exit status.

    Args:
        arguments: Of ptb_lm.train's parser, with --devices.
        command: Its command line.

    Raises:
        UserError: The framework has no such thing, or the batch cannot be shared by so many.
    """
    choice = Choice.create(framework=_framework(vars(arguments)))
    if not choice.framework_row.start:
        raise UserError(f"--devices: {choice.framework} trains in one process here; --framework torch can")
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if "batch_size_per_device" not in given:
        check_divisible(_batch_size(given), arguments.devices)
    os.environ[TYPED_COMMAND] = cli.command_name("train")  # which they name
    status: int = choice.import_function(choice.framework_row.start)(
        [sys.executable, *cli.TRAIN.split()[1:], *command],
        processes=arguments.devices,
        device=given.get("device", "auto"),
    )
    return status


def _batch_size(given: dict[str, Any]) -> int:
    """Return the batch of a run that is still to be started or resumed.

    Raises:
        UserError: The flags contradict each other or that run.
    """
    if "resume" in given:
        run = resumed_config(RunDirectory(given["resume"]).read_config(), given)
    elif "init_from" in given:
        run = Start.read(given["init_from"]).config(given)
    else:
        run = new_config(given)
    return run.hyperparameters.batch_size


def check_devices(given: Mapping[str, Any], batch_size: int) -> None:
    """Check that --devices can share a batch, and that --reduce-precision is given for several devices only.

    Args:
        given: The flags, by name.
        batch_size: Of all devices together.

    Raises:
        UserError: They cannot, or it is not.
    """
    devices = given.get("devices") or 1
    on_devices = Choice.create(framework=_framework(given)).framework_row.trains_on_devices
    check_divisible(batch_size, devices, what="devices" if on_devices else "processes")
    _check_reduced(devices, given.get("reduce_precision") or REDUCE_PRECISIONS[0])


def _check_reduced(devices: int, reduce_precision: str) -> None:
    if devices == 1 and reduce_precision != REDUCE_PRECISIONS[0]:
        raise UserError(
            f"--reduce-precision {reduce_precision} is for several devices, and there is one; "
            "--devices trains on more"
        )


@contextlib.contextmanager
def joined(given: Mapping[str, Any]) -> Iterator[Ranks]:
    """Return the processes of this training, once all of them are there; of the others' errors one speaks.

    Args:
        given: The flags, by name.

    Raises:
        UserError: They did not find each other, or they are not as many as was said; or there is one device
            alone, and what is sent between devices is to be rounded.
        LostRankError: One of them ended.
    """
    here, reduce_precision = launched(), given.get("reduce_precision") or REDUCE_PRECISIONS[0]
    if here.size == 1:
        devices = given.get("devices") or 1
        _check_reduced(devices, reduce_precision)
        yield OneWithDevices(devices, reduce_precision=reduce_precision) if devices > 1 else SINGLE_PROCESS
        return
    choice = Choice.create(framework=_framework(given))
    if not choice.framework_row.join:
        raise UserError(f"{choice.framework} trains in one process here; --framework torch trains in several")
    ranks: Any = choice.import_function(choice.framework_row.join)(
        device=given.get("device", "auto"), reduce_precision=reduce_precision
    )
    try:
        if ranks.size != here.size:
            raise UserError(
                f"{here.by} names {here.size} processes, but those of {choice.framework} are {ranks.size}; "
                "unset the variables of torchrun, or TF_CONFIG"
            )
        with contextlib.nullcontext() if ranks.is_first else _silent():
            yield ranks
    except (UserError, DivergenceError, OSError, LostRankError) as error:
        signals.set_answered_signal(signal.SIGTERM)  # the launcher sends it to all, because one has ended
        if not ranks.report_failure(str(error)) or (isinstance(error, LostRankError) and not error.speaker):
            raise SystemExit(cli.EXIT_USAGE if isinstance(error, UserError) else cli.EXIT_FAILED) from None
        raise
    except signals.Stopped as stopped:
        if ranks.is_first:
            raise
        raise SystemExit(stopped.exit_status) from None
    finally:
        ranks.leave()


def how_to_continue(path: Path, given: Mapping[str, Any], ranks: Ranks, *, framework: str) -> str:
    """Return the clause that says how to continue a run on as many devices, with the same numbers.

    Args:
        path: The run's folder.
        given: The flags, by name.
        ranks: The processes.
        framework: The run's.
    """
    command, start = ["--resume", str(path)], ""
    if (devices := given.get("devices") or 1) > 1:
        command += ["--devices", str(devices)]
    elif ranks.size > 1:
        start = " the same TF_CONFIG" if launched().by == "TF_CONFIG" else " the same launcher"
    if ranks.size > 1 and framework != DEFAULT:  # a machine that does not see the folder cannot look it up
        command += ["--framework", framework]
    if ranks.reduce_precision != REDUCE_PRECISIONS[0]:  # no file of the run has it
        command += ["--reduce-precision", ranks.reduce_precision]
    return f"continue with{start}: {cli.command_name('train')} {shlex.join(command)}"


def tell_launcher(again: str, ranks: Ranks) -> None:
    """Tell the launcher of --devices how to continue, which it says if no process is left that can.

    Args:
        again: The clause.
        ranks: The processes.
    """
    file = os.environ.get(CONTINUATION)
    if file and ranks.is_first and ranks.size > 1:
        with contextlib.suppress(OSError):  # of a full disk; the run needs no such file
            Path(file).write_text(again)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Return a context in which nothing is said; what ends it can be."""
    terminal = streams.terminal
    with (
        open(os.devnull, "w") as null,  # noqa: PTH123
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        streams.terminal = null.fileno()
        try:
            yield
        finally:
            streams.terminal = terminal


def _framework(given: Mapping[str, Any]) -> str:
    """Return the name of the framework that the flags mean; of a run on another machine, the first."""
    for name in ("resume", "init_from"):
        if run := given.get(name):
            with contextlib.suppress(UserError):  # which is said later, by all
                return run_folder.find(run).read_config().choice.framework
    return given.get("framework") or DEFAULT


def with_global_batch(given: dict[str, Any], devices: int) -> dict[str, Any]:
    """Return the flags with --batch-size in place of --batch-size-per-device, and say so.

    Args:
        given: The flags, by name.
        devices: How many train the run, those of all processes.

    Raises:
        UserError: Both were given.
    """
    if "batch_size_per_device" not in given:
        return given
    given = {**given}
    each = given.pop("batch_size_per_device")
    if "batch_size" in given:
        raise UserError("give --batch-size or --batch-size-per-device, not both")
    given["batch_size"] = each * devices
    cli.remark(
        f"--batch-size-per-device {each} on {devices} device{'s' * (devices > 1)} is --batch-size "
        f"{given['batch_size']}; --learning-rate stays as it is, and such a batch may need another"
    )
    return given


def facts(run: RunConfig, corpus: Corpus, ranks: Ranks) -> Facts:
    """Return what must be the same in all processes: program, text, configuration, what is sent."""
    values = run.to_json()
    settings = {**values, **values["hyperparameters"]}
    return {
        "version": version(),
        "commit": str(host.environment()["commit"]),
        "corpus (SHA-256)": corpus.sha256[:12],
        "reduce_precision": ranks.reduce_precision,
        **{name: str(value) for name, value in settings.items() if name not in OF_A_MACHINE},
    }
