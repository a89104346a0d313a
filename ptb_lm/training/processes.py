"""The processes of a training: whether there are others, how this one joins them, how they are restarted.

torchrun and launchers like it tell a process its place by environment variables; TensorFlow has TF_CONFIG.
--devices starts such processes on this machine.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common import cli, host, signals, streams
from ptb_lm.common.errors import DivergenceError, LostRankError, UserError
from ptb_lm.common.flags import command_words
from ptb_lm.common.program import CONTINUATION, LAUNCHER, TYPED_COMMAND
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import DEVICES, FRAMEWORKS, REDUCE_PRECISIONS
from ptb_lm.model.ranks import TORCHRUN_VARIABLES, Ranks, check_divisible, tf_config
from ptb_lm.training import run_folders
from ptb_lm.training.fine_tuning import ParentRun
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config, resumed_config

# The framework if neither a flag names one nor a run that this machine can read.
DEFAULT_FRAMEWORK = next(iter(FRAMEWORKS))
PR_SET_PDEATHSIG = 1  # of the kernel's prctl.h


def find_launcher() -> tuple[str, int]:
    """Find the launcher of this process: torchrun or TF_CONFIG, whichever names more processes.

    Returns:
        (name, size): "TF_CONFIG", or "torchrun", also where another launcher sets the same variables; and the
        number of processes that it started, 1 if this one is alone.

    Raises:
        UserError: Their variables make no sense.
    """
    processes, (workers, _) = _world_size(), tf_config()
    return ("TF_CONFIG", workers) if workers > processes else ("torchrun", processes)


def _world_size() -> int:
    given = {name: value for name in TORCHRUN_VARIABLES if (value := os.environ.get(name))}
    if missing := [name for name in TORCHRUN_VARIABLES if name not in given]:
        name = "WORLD_SIZE" if "WORLD_SIZE" in given else "RANK"
        # One of them alone, or an address, may be meant for another program.
        if len(given) == 1 or name not in given or given.get("WORLD_SIZE") == "1":
            return 1
        raise UserError(f"{name} is {given[name]}, but {missing[0]} is not set")
    size = cli.from_environment("WORLD_SIZE", cli.whole_number(1), 1)
    here = cli.from_environment("LOCAL_WORLD_SIZE", cli.whole_number(1, size), size)
    for name, least, most in (("RANK", 0, size - 1), ("LOCAL_RANK", 0, here - 1), ("MASTER_PORT", 1, 65535)):
        cli.from_environment(name, cli.whole_number(least, most), least)
    return size


def should_start(flag_values: Mapping[str, Any]) -> bool:
    """Return whether --devices asks for processes that are still to be started.

    Args:
        flag_values: The flags that were given, by name.

    Raises:
        UserError: A launcher has started another number of them, or --seeds asks it for several runs.
    """
    (name, size), devices = find_launcher(), flag_values.get("devices", 1)
    if size > 1 and "seeds" in flag_values:
        raise UserError(
            f"--seeds cannot be combined with {name}; --devices trains each seed on several devices"
        )
    if size > 1 and devices not in (1, size):
        raise UserError(f"--devices {devices} does not match the {size} processes that {name} names")
    row = FRAMEWORKS[_framework(flag_values)]
    return devices > size and bool(row.start)


def start(flag_values: dict[str, Any], command: Sequence[str]) -> int:
    """Start processes on this machine that train together, and wait for them; return the exit status.

    Args:
        flag_values: The flags that were given, by name; --devices is one of them.
        command: Command line of ptb_lm.train.

    Raises:
        UserError: The batch cannot be shared by so many.
    """
    choice = Choice.create(framework=_framework(flag_values))
    if "batch_size_per_device" not in flag_values:
        check_divisible(_batch_size(flag_values), flag_values["devices"])
    with host.set_variables({TYPED_COMMAND: cli.command_name("train")}):  # which they name
        return choice.import_function(choice.framework_row.start)(
            [sys.executable, *cli.TRAIN.split()[1:], *command],
            processes=flag_values["devices"],
            device=_device(flag_values),
        )


def _batch_size(flag_values: dict[str, Any]) -> int:
    """Return the batch of a run that is still to be started or resumed.

    Raises:
        UserError: The flags contradict each other or that run.
    """
    if "resume" in flag_values:
        run = resumed_config(RunDirectory(flag_values["resume"]).read_config(), flag_values)
    elif "init_from" in flag_values:
        run = ParentRun.read(flag_values["init_from"]).derive_config(flag_values)
    else:
        run = new_config(flag_values)
    return run.hyperparameters.batch_size


@contextlib.contextmanager
def join(flag_values: Mapping[str, Any]) -> Iterator[Ranks]:
    """Yield the ranks of this training, once all have joined. If they fail alike then, one alone reports it.

    Args:
        flag_values: The flags that were given, by name.

    Raises:
        UserError: They did not find each other, or their number is not the launcher's; or --reduce-precision
            is given for one device.
        LostRankError: One of them ended.
    """
    reduce_precision = flag_values.get("reduce_precision", REDUCE_PRECISIONS[0])
    launcher, size = find_launcher()
    if size == 1:
        devices = flag_values.get("devices", 1)
        if devices == 1 and reduce_precision != REDUCE_PRECISIONS[0]:
            raise UserError(
                f"--reduce-precision {reduce_precision} is for several devices, and there is one; "
                "--devices trains on more"
            )
        yield Ranks(devices, reduce_precision=reduce_precision)
        return
    # When another rank has ended, torch would print the stack of its own threads before our sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    _end_with_launcher()
    choice = Choice.create(framework=_framework(flag_values))
    if not choice.framework_row.join:
        raise UserError(f"{choice.framework} trains in one process here; --framework torch trains in several")
    ranks: Any = choice.import_function(choice.framework_row.join)(
        device=_device(flag_values), reduce_precision=reduce_precision
    )
    is_complete = False
    try:
        if ranks.size != size:
            raise UserError(
                f"{launcher} names {size} processes, but those of {choice.framework} are "
                f"{ranks.size}; unset the variables of torchrun, or TF_CONFIG"
            )
        with contextlib.nullcontext() if ranks.is_first else _silent():
            yield ranks
        is_complete = True
    except (UserError, DivergenceError, OSError, MemoryError, LostRankError) as error:
        signals.answered_signal = signal.SIGTERM  # the launcher sends it to all, because one has ended
        problem = cli.describe_memory_error(error) if isinstance(error, MemoryError) else str(error)
        if not ranks.report_failure(problem) or (isinstance(error, LostRankError) and not error.speaker):
            is_usage = isinstance(error, (UserError, MemoryError))
            raise SystemExit(cli.EXIT_USAGE if is_usage else cli.EXIT_FAILED) from None
        raise
    except signals.StopSignal as stop:
        if ranks.is_first:
            raise
        raise SystemExit(stop.exit_status) from None
    finally:
        ranks.leave(failed=not is_complete)


def _end_with_launcher() -> None:
    """Let the kernel send SIGTERM when the launcher of --devices ends, which may be killed."""
    launcher = os.environ.get(LAUNCHER)
    if launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(launcher):  # it ended before
            signal.raise_signal(signal.SIGTERM)


def how_to_continue(path: Path, flag_values: Mapping[str, Any], ranks: Ranks, choice: Choice) -> str:
    """Return the clause that says how to continue a run on as many devices, with the same numbers.

    Args:
        path: Folder of the run.
        flag_values: The flags that were given, by name.
        ranks: Processes that train the run.
        choice: Choices of the run.
    """
    command, launcher = command_words("resume", path), ""
    if (devices := flag_values.get("devices", 1)) > 1:
        command += ["--devices", str(devices)]
    elif ranks.size > 1:
        launcher = " the same TF_CONFIG" if find_launcher()[0] == "TF_CONFIG" else " the same launcher"
    if ranks.size > 1:  # a machine that does not see the folder cannot look these up
        for flag, value, usual in (
            ("--framework", choice.framework, DEFAULT_FRAMEWORK),
            ("--device", choice.device, DEVICES[0]),
        ):
            command += [flag, value] if value != usual else []
    if ranks.reduce_precision != REDUCE_PRECISIONS[0]:  # no file of the run has it
        command += ["--reduce-precision", ranks.reduce_precision]
    return f"continue with{launcher}: {cli.command_name('train')} {shlex.join(command)}"


def store_continuation(continuation: str, ranks: Ranks) -> None:
    """Store how to continue, which the launcher of --devices prints if no process is left that can.

    Args:
        continuation: The clause that says how to continue, by `how_to_continue`.
        ranks: The processes.
    """
    file = os.environ.get(CONTINUATION)
    if file and ranks.is_first and ranks.size > 1:
        with contextlib.suppress(OSError):  # of a full disk; the run needs no such file
            Path(file).write_bytes(os.fsencode(continuation))  # its path may be no text


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Print nothing in this context; a process may still print why it ends."""
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


def _framework(flag_values: Mapping[str, Any]) -> str:
    """Return the name of the framework that the flags mean; of a run on another machine, the first.

    A flag changes the framework of --init-from. That of --resume stays.
    """
    run = _find_choice(flag_values, "resume")
    if run is None and "framework" not in flag_values:
        run = _find_choice(flag_values, "init_from")
    return run.framework if run else flag_values.get("framework") or DEFAULT_FRAMEWORK


def _device(flag_values: Mapping[str, Any]) -> str:
    """Return the value of --device, or that of the run that is resumed, if this machine has its folder."""
    if "device" not in flag_values and (run := _find_choice(flag_values, "resume")):
        return run.device
    return flag_values.get("device") or DEVICES[0]


def _find_choice(flag_values: Mapping[str, Any], flag: str) -> Choice | None:
    """Return the choices of the run that a flag names, if it is given and this machine has the folder."""
    if flag in flag_values:
        with contextlib.suppress(UserError):  # which is said later, by all
            return run_folders.find(flag_values[flag]).read_config().choice
    return None


def is_restarted(path: Path | None, command: str, ranks: Ranks) -> bool:
    """Return whether torchrun --max-restarts started this process again, for a run of the same command.

    Args:
        path: Folder that --run-dir names.
        command: Command line; a run that another one began is refused as ever.
        ranks: All processes, which were all started again.

    Raises:
        UserError: Such processes could not find their run.
    """
    if path is None:
        if _count("TORCHELASTIC_MAX_RESTARTS") > 0:
            raise UserError(
                "torchrun --max-restarts needs --run-dir DIR, so that restarted processes can find the run"
            )
        return False
    # An agent does not count a restart that another machine caused, so the numbers may differ.
    (restarts,) = ranks.max_over_ranks([_count("TORCHELASTIC_RESTART_COUNT")])
    return restarts > 0 and ranks.run_on_first(lambda: _is_of_this_job(path, command))


def torchrun_job() -> dict[str, Any]:
    """Return the name of the torchrun that restarts this run's processes, for the run's record."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return {"torchrun_id": name} if name and _count("TORCHELASTIC_MAX_RESTARTS") else {}


def _is_of_this_job(path: Path, command: str) -> bool:
    """Return whether this torchrun began the run; an earlier one may have run the same command."""
    directory = RunDirectory(path)
    if not directory.state_path.exists():
        return False
    progress = directory.read_state().progress
    torchrun_id = progress.environments[-1].get("torchrun_id")
    return progress.commands[-1] == command and torchrun_id == torchrun_job().get("torchrun_id")


def _count(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else 0
