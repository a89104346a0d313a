"""One run per seed, one after the other or several at a time, and the mean of their perplexities."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ptb_lm.common import cli, files, signals, streams
from ptb_lm.common.errors import DivergenceError, LostRankError, UserError
from ptb_lm.common.program import TYPED_COMMAND
from ptb_lm.model.frameworks import AUTO
from ptb_lm.model.ranks import Ranks
from ptb_lm.training import processes, run_data, run_folders, seed_runs
from ptb_lm.training.evaluation import format_perplexity
from ptb_lm.training.fine_tuning import ParentRun
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config, with_fastest, with_global_batch

# The exit status of a seed by its error; of a lost process it is as if a signal had ended it.
_STATUS_OF_ERROR = {DivergenceError: cli.EXIT_FAILED, LostRankError: 128 + signal.SIGKILL}
WATCH_SECONDS = 0.2  # how often a stop is looked for while no run prints anything

TrainOne = Callable[[list[str]], int]  # of ptb_lm.train's arguments; returns the exit status


def train(flag_values: dict[str, Any], train_one: TrainOne) -> int:
    """Train one run per seed, each in its own folder; return the exit status.

    Existing runs continue where they stopped. Finished runs stay as they are.

    Args:
        flag_values: The flags that were given, by name.
        train_one: Function that trains a run in this process.

    Raises:
        UserError: Something is wrong with the flags, the data or a run directory.
    """
    seeds, jobs = _parse(flag_values)
    flag_values = with_global_batch(flag_values, flag_values.get("devices", 1))
    parent = ParentRun.read(flag_values["init_from"]) if "init_from" in flag_values else None
    make_config = parent.derive_config if parent else new_config
    flag_values = seed_runs.with_earlier_choice(flag_values, seeds, make_config(flag_values).choice)
    config = make_config(flag_values)  # of all seeds; refuses what is impossible
    run_data.check_folder(config)
    # Where other processes train, they choose: this one would hold a part of the GPU's memory to its end.
    trains_here = jobs == 1 and not processes.should_start(flag_values)
    extend = bool(flag_values.get("extend_vocabulary"))  # which draws the weights of new words
    if parent and len(seeds) > 1 and not _is_random(config, parent, extend=extend):
        raise UserError(
            "--seeds would train the same run for each seed: the weights are those of --init-from, and "
            f"without dropout{' or new words' * extend} or --vary-num-steps nothing else is drawn"
        )
    if trains_here:
        config, _ = with_fastest(config, flag_values, Ranks(flag_values.get("devices", 1)))
        # Imported before there is a folder: meanwhile a signal ends the process at once.
        config.choice.builder()
    model = None if trains_here else flag_values.get("model", AUTO)
    is_new = "run_dir" not in flag_values
    folder = flag_values.get("run_dir") or run_folders.create_folder(
        run_folders.default_path(config, model=model)
    )
    flag_values = {**flag_values, "run_dir": folder}
    runs = {seed: RunDirectory(folder / f"seed-{seed}") for seed in seeds}
    before = {seed: files.identity(directory.config_path) for seed, directory in runs.items()}
    commands = seed_runs.remaining_commands(runs, config, parent, flag_values)

    def print_how_to_continue() -> None:
        again = seed_runs.how_to_continue(flag_values, runs, before, config.choice)
        streams.print_to_stderr(f"all seeds continue with: {again}")

    try:
        statuses = _train_in_turn(commands, train_one) if jobs == 1 else _train_in_parallel(commands, jobs)
    except signals.StopSignal as stop:
        print_how_to_continue()
        return stop.exit_status
    except (OSError, MemoryError):  # for example of a full disk, or of no room for what is saved
        print_how_to_continue()
        raise
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # something was wrong, and no run came into it
                folder.rmdir()
    failures = [seed for seed, status in statuses.items() if status]
    _report([directory for seed, directory in runs.items() if seed not in failures], failures, folder)
    if any(status > 128 for status in statuses.values()):  # of a run that was killed
        print_how_to_continue()
    return max((cli.EXIT_FAILED if status > 128 else status for status in statuses.values()), default=0)


def _is_random(config: RunConfig, parent: ParentRun, *, extend: bool) -> bool:
    """Return whether a run from another's weights draws anything: masks, windows, or weights of new words."""
    draws_in_training = config.hyperparameters.has_dropout or config.hyperparameters.vary_num_steps
    if draws_in_training or not extend:
        return draws_in_training
    corpus = run_data.load_first(config, parent.vocabulary, extend=True)
    return len(corpus.vocabulary) > len(parent.vocabulary)


def _parse(flag_values: dict[str, Any]) -> tuple[list[int], int]:
    """Return --seeds and --jobs, after checking that the other flags go with them."""
    seeds: list[int] = flag_values["seeds"]
    if "resume" in flag_values:
        raise UserError(
            "--seeds cannot be combined with --resume: the runs in --run-dir continue by themselves"
        )
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise UserError(f"--seeds names {twice[0]} twice")
    if "run_dir" in flag_values and flag_values["run_dir"].is_file():
        raise UserError(f"{flag_values['run_dir']} is a file, not a folder for runs")
    if "run_dir" in flag_values and RunDirectory(flag_values["run_dir"]).config_path.exists():
        raise UserError(f"{flag_values['run_dir']} is the folder of a run; give --seeds another --run-dir")
    return seeds, flag_values.get("jobs", 1)


def _train_in_turn(commands: dict[int, list[str]], train_one: TrainOne) -> dict[int, int]:
    """Train in this process; return the exit statuses by seed.

    Raises:
        signals.StopSignal: A signal to stop ended one of them.
    """
    statuses = {}
    for number, (seed, command) in enumerate(commands.items(), start=1):
        cli.try_print_line(f"seed {seed}, {number} of {len(commands)}")
        stop = None
        try:
            statuses[seed] = train_one(command)
            if statuses[seed] > 128:
                stop = statuses[seed] - 128
        except (DivergenceError, LostRankError, UserError) as error:
            if isinstance(error, UserError) and not statuses:
                raise  # it may be of the text or the memory, which all have in common
            streams.print_to_stderr(f"seed {seed}: {error}")
            statuses[seed] = _STATUS_OF_ERROR.get(type(error), cli.EXIT_USAGE)
        gc.collect()  # the model is in reference cycles, and would be kept beside the next one
        # A signal that comes as a run ends does not stop that run; it stops those that are left.
        if number < len(commands):
            stop = signals.answered_signal or stop
        if stop:
            raise signals.StopSignal(stop)
    return statuses


def _train_in_parallel(commands: dict[int, list[str]], jobs: int) -> dict[int, int]:
    """Train each run in its own process, `jobs` at a time; return the exit statuses by seed.

    Their output is printed with the seed before each line. A signal to stop is passed to them. A run that is
    killed by itself stops no other.

    Raises:
        signals.StopSignal: A signal to stop ended some of them.
    """
    waiting, running, statuses = list(commands.items()), dict[Any, _Child](), dict[int, int]()
    is_forwarded = False
    with signals.StopRequest() as stop:
        try:
            while running or (waiting and not stop.signal_number):
                while waiting and len(running) < jobs and not stop.signal_number:
                    child = _Child(*waiting.pop(0))
                    running[child.stdout] = child
                if stop.signal_number and not is_forwarded:
                    _send_signal(running.values(), stop.signal_number)
                    is_forwarded = True
                for stdout in connection.wait(running, WATCH_SECONDS):
                    if not running[stdout].print_lines():
                        child = running.pop(stdout)
                        statuses[child.seed] = child.wait(is_stopped=stop.signal_number is not None)
        except BaseException as error:
            # A signal for the second time stops them at once, if they had the first for long enough. After
            # another error they save.
            time.sleep(WATCH_SECONDS)
            _send_signal(
                running.values(),
                error.exit_status - 128 if isinstance(error, signals.StopSignal) else signal.SIGTERM,
            )
            for child in running.values():
                child.wait(is_stopped=True)
            raise
        if stop.signal_number and (waiting or any(status > 128 for status in statuses.values())):
            raise signals.StopSignal(stop.signal_number)
    return {seed: statuses[seed] for seed in commands}


class _Child:
    """A process that trains a run.

    Attributes:
        seed: Seed of the run.
        stdout: Stdout and stderr of the process.

    Args:
        seed: Seed of the run.
        command: Arguments of ptb_lm.train.
    """

    def __init__(self, seed: int, command: Sequence[str]) -> None:
        self.seed = seed
        # It has its own session, so Ctrl-C does not reach it: a second signal would stop it from saving.
        self.process = subprocess.Popen(
            [sys.executable, *cli.TRAIN.split()[1:], *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, TYPED_COMMAND: cli.command_name("train")},
        )
        assert self.process.stdout
        self.stdout = self.process.stdout
        self._rest = b""

    def print_lines(self) -> bool:
        """Wait for output, print the lines that are whole, and return whether there can be more."""
        new = os.read(self.stdout.fileno(), 65536)
        # A progress bar's lines end in a carriage return.
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + new) if new else (self._rest, b"")
        for line in lines:
            if line.strip():  # what stands between a carriage return and a line end is none
                cli.try_print_line(f"seed {self.seed}: {line.decode(errors='replace').rstrip()}")
        return bool(new)

    def wait(self, *, is_stopped: bool) -> int:
        """Print the rest, wait for the end, and return the exit status, as the shell counts.

        Args:
            is_stopped: True if a signal was sent to it; otherwise a line tells of one that ended it.
        """
        while self.print_lines():
            pass
        with self.process:
            status = self.process.wait()
        if status < 0 and not is_stopped:  # a crash, or the system had no memory left
            streams.print_to_stderr(f"seed {self.seed}: {signals.describe_signal(-status)}")
        return status if status >= 0 else 128 - status


def _send_signal(children: Iterable[_Child], number: int) -> None:
    for child in children:
        child.process.send_signal(number)


def _report(runs: Sequence[RunDirectory], failures: Sequence[int], folder: Path) -> None:
    results = [result for directory in runs if (result := directory.read_result())]
    if failures:
        which = f"seed{'s' * (len(failures) > 1)} {', '.join(map(str, failures))}"
        cli.try_print_line(f"{which} failed and {'is' if len(failures) == 1 else 'are'} not included below")
    for split in ("test", "valid"):
        values = [result[f"{split}_perplexity"] for result in results]
        summary = ", ".join(map(format_perplexity, values))
        if len(values) > 1:
            spread = f"{format_perplexity(stdev(values))} (mean ± standard deviation)"
            summary = f"{format_perplexity(fmean(values))} ± {spread}: {summary}"
        if values:
            seeds = f"{len(values)} seed{'s' * (len(values) > 1)}"
            cli.try_print_line(f"{split} perplexity of {seeds}: {summary}")
    cli.try_print_line(f"the runs are in {folder}")
