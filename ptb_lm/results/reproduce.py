"""Make results again: run what plan.py declares, and keep it in results/ even after an error or a signal."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from ptb_lm import cli, files, host, signals, streams
from ptb_lm.bench import rows
from ptb_lm.comparison import runs
from ptb_lm.errors import UserError
from ptb_lm.results import command, keep, markdown, records, table
from ptb_lm.results.plan import left_out_of, results_of, steps_of
from ptb_lm.results.steps import (
    Adapt,
    Python,
    Race,
    Step,
    Suite,
    Train,
    UnlessKept,
    arguments,
    command_line,
    find_device,
)
from ptb_lm.training.run_directory import RunDirectory

PROG = "scripts/reproduce"


def reproduce(names: Sequence[str], root: Path) -> int:
    """Make results one after the other; one that fails does not stop those after it.

    Args:
        names: Of `plan.RESULTS`, or "all".
        root: The checkout.

    Returns:
        The exit status: of one result its own; 128 and the number of the signal that ended it all.

    Raises:
        UserError: A record cannot be made of this code or on so many cores. Nothing was made.
    """
    device = find_device()
    chosen = results_of(names, device)
    for name in chosen:
        if any(isinstance(step, Race) for step in steps_of(name, device)):
            _check_race(name, device)
    work = _Work(root, device)
    failed = []
    for name in chosen:
        status = work.make(name)
        if work.stopped:
            return 128 + work.stopped
        if status:
            failed.append(name)
    if failed and len(chosen) > 1:
        print(f"{PROG}: failed: {' '.join(failed)}", file=sys.stderr)
        return cli.EXIT_FAILED
    return status


def _check_race(name: str, device: str) -> None:
    """Check what would keep a race from being a record.

    Raises:
        UserError: There is such a thing.
    """
    _commit(name)
    if device == "cpu" and (cores := len(host.cores())) > records.CORES:
        raise UserError(
            f"{name}: this process has {cores} cores, but the list of a CPU is for {records.CORES}: use "
            "taskset -c 0,1"
        )


def _commit(name: str) -> str:
    """Return the short hash of the code's commit, for a record.

    Raises:
        UserError: There is no commit, or there are uncommitted changes.
    """
    commit: str = host.environment()["commit"] or ""
    if not commit or " " in commit:  # marked after a space if there are uncommitted changes
        raise UserError(f"{name}: a record needs a clean commit, but this is {commit or 'not a checkout'}")
    return commit[:7]


def _check_settings(run: RunDirectory, step: Train, folder: str) -> None:
    """Check that a run is still what its step would train: a default may have changed since.

    Raises:
        UserError: It is not.
    """
    if changed := command.differences_today(run.read_config(), step.flags):
        raise UserError(
            f"{folder} is a run of other settings than today's ({', '.join(changed)}); remove that folder to "
            "train it again"
        )


class _Work:
    """One process at work at a time; a signal ends the work when that process has ended.

    A process hears of the terminal's and of timeout's signals itself: a training saves and ends.

    Args:
        root: The checkout.
        device: "cpu" or "cuda".
    """

    def __init__(self, root: Path, device: str) -> None:
        self.root, self.device = root, device
        self.commit = ""  # a race's
        self.stopped = 0  # the signal that came
        self.running = ""  # the run to keep, even after an error
        self._listen()

    def _listen(self) -> None:
        for number in signals.listened_to():
            signal.signal(number, self._hear)

    def _said(self, body: Callable[[], int]) -> int:
        """Call a function and print its errors as one sentence. Signals are only remembered, as before."""

        def listening() -> int:
            self._listen()  # in place of what a command does with them
            return body()

        return cli.run(PROG, listening)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.stopped = number

    def make(self, name: str) -> int:
        """Make a result and write the tables; return the exit status.

        What fails in keeping a run that failed hinders nothing else, and no status but success.
        """
        status = self._said(lambda: self._make(name))
        if self.running:
            self._said(self._keep)
        tables = self._said(self._write_tables)
        return status or tables

    def _make(self, name: str) -> int:
        steps, left_out = steps_of(name, self.device), left_out_of(name, self.device)
        if not steps:
            needed = " and ".join(dict.fromkeys(step.needs for step in left_out))
            where = f"a Python without {needed}" if needed else f"a machine with the device {self.device}"
            raise UserError(f"{name}: {where} cannot make this result")
        for step in left_out:
            line = self._named(command_line(step))
            streams.tell(f"{PROG}: {name}: {step.needs} is not installed, so this is left out: {line}")
        failed = 0
        for step in steps:
            status = 128 + self.stopped if self.stopped else self._do(step)
            if status and (self.stopped or not (isinstance(step, Python) and step.by_itself)):
                return status
            failed = failed or status
        return failed

    def _do(self, step: Step) -> int:
        if isinstance(step, UnlessKept):
            return 0 if self._has_run_of(step.result) else self._make(step.result)
        if isinstance(step, Train):
            return self._train(step)
        if isinstance(step, Adapt):
            return self._adapt(step)
        if isinstance(step, Suite):
            return self._measure(step)
        trained = self._train(step.run) if step.run else 0
        return trained or self._python(arguments(step), stdout=step.stdout)

    def _has_run_of(self, result: str) -> bool:
        finished = (path.parent for path in (self.root / "results").glob("*/result.json"))
        named = (runs.read(folder) for folder in finished if markdown.result_of(folder) == result)
        return any(run.result and command.as_its_recipe_is_now(run) for run in named)

    def _train(self, step: Train) -> int:
        if isinstance(step, Race):
            self.commit = _commit("race")
        name = self._named(step.name)
        folder = f"checkpoints/reproduce-{name}"
        run = RunDirectory(self.root / folder)
        ended, going_on = run.has_ended(), run.state.exists() and not isinstance(step, Race)
        if ended or going_on:
            _check_settings(run, step, folder)
        self.running = name
        if not ended:
            again = f"-m ptb_lm.train --resume {folder}"
            if status := self._python(again if going_on else arguments(step)):
                if status == cli.EXIT_USAGE:  # refused: another process may be at work there
                    self.running = ""
                return status
        self._keep()
        if isinstance(step, Race):
            self._record(name, step.what)
        return 0

    def _adapt(self, step: Adapt) -> int:
        if RunDirectory(self.root / "results" / step.name).result.exists():
            return 0
        return self._train(step.run) or self._python(arguments(step))

    def _record(self, name: str, usual: str) -> None:
        run, what = self.root / "results" / name, os.environ.get("WHAT", "")
        if what or not (run / records.FILE).exists():
            records.record(run, what or usual)

    def _measure(self, step: Suite) -> int:
        if status := self._python(arguments(step)):
            return status
        name = self._named(step.name)
        kept = self.root / "results" / name
        kept.mkdir(parents=True, exist_ok=True)
        measured = self.root / "bench" / f"reproduce-{name}"
        for path in (measured / rows.FILE, *measured.glob("report.*")):
            files.atomic_write(kept / path.name, path.read_bytes())
        return 0

    def _python(self, given: str, *, stdout: str = "") -> int:
        """Run a Python command to its end; return its exit status, or 128 + the number of the signal."""
        called = [sys.executable, *shlex.split(self._named(given))]
        done = subprocess.run(called, cwd=self.root, stdout=subprocess.PIPE if stdout else None, check=False)
        if self.stopped:
            return 128 + self.stopped
        if stdout and done.returncode == 0:
            kept = self.root / self._named(stdout)
            kept.parent.mkdir(parents=True, exist_ok=True)
            files.atomic_write(kept, done.stdout)
        elif stdout:  # it may say what failed
            for line in done.stdout.decode(errors="replace").splitlines():
                streams.tell(line)
        return done.returncode if done.returncode >= 0 else 128 - done.returncode

    def _named(self, text: str) -> str:
        return text.replace("DEVICE", self.device).replace("COMMIT", self.commit)

    def _keep(self) -> int:
        name, self.running = self.running, ""
        keep.keep(self.root / "checkpoints" / f"reproduce-{name}", self.root / "results" / name)
        return 0

    def _write_tables(self) -> int:
        results = self.root / "results"
        print(f"wrote the tables of {table.write(results)} runs into {results / 'README.md'}")
        return 0
