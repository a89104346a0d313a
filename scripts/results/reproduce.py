"""Make results again: run what plan.toml lists, and keep it in results/ even after an error or a signal."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from ptb_lm.bench.reporting import report
from ptb_lm.common import cli, files, json_files, signals, streams
from ptb_lm.common.errors import UserError
from ptb_lm.training.run_directory import RunDirectory
from results import flags, keep, pages, plan, records, run_tables
from results.plan import Step, fill_placeholders, results_of, steps_of

PROG = "scripts/reproduce"


def reproduce(names: Sequence[str], root: Path) -> int:
    """Make results one after the other; one that fails does not stop those after it.

    Args:
        names: Names of plan.toml, or "all".
        root: The checkout.

    Returns:
        The exit status: of one result its own; 128 and the number of the signal that ended it all.

    Raises:
        UserError: A record cannot be made of this code or on so many cores. Nothing was made.
    """
    device = plan.find_device()
    chosen = results_of(names, device)
    for name in chosen:
        if any(step.record for step in steps_of(name, device)):
            records.check_machine(name, device)
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


class _Work:
    """One process at work at a time; a signal ends the work when that process has ended.

    A process hears of the terminal's and of timeout's signals itself: a training saves and ends.

    Args:
        root: The checkout.
        device: "cpu" or "cuda".
    """

    def __init__(self, root: Path, device: str) -> None:
        self.root, self.results, self.device = root, root / "results", device
        self.commit = "COMMIT"  # of a race
        self.stopped = 0  # the signal that came
        self.running: Step | None = None  # the training to keep, even after an error
        self._listen()

    def _listen(self) -> None:
        for number in signals.handled_signals():
            signal.signal(number, self._hear)

    def _call_with_errors_printed(self, body: Callable[[], int]) -> int:
        """Call a function and print its errors as one sentence. Signals are only remembered, as before."""

        def listen_and_call() -> int:
            self._listen()  # in place of what a command does with them
            return body()

        return cli.run(PROG, listen_and_call)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.stopped = number

    def make(self, name: str) -> int:
        """Make a result and write the pages; return the exit status.

        A failure to keep a failed run hinders nothing else, and changes no status but success.
        """
        status = self._call_with_errors_printed(lambda: self._make(name))
        if self.running:
            self._call_with_errors_printed(self._keep_run)
        written = self._call_with_errors_printed(self._write_pages)
        return status or written

    def _make(self, name: str) -> int:
        every = steps_of(name, self.device)
        steps = [step for step in every if not step.is_absent]
        if not steps:
            needed = " and ".join(dict.fromkeys(step.needs for step in every))
            where = f"a Python without {needed}" if needed else f"a machine with the device {self.device}"
            raise UserError(f"{name}: {where} cannot make this result")
        for step in every:
            if step.is_absent:
                line = step.command(self.device)
                streams.print_to_stderr(
                    f"{PROG}: {name}: {step.needs} is not installed, so this is left out: {line}"
                )
        failed = 0
        for step in steps:
            status = 128 + self.stopped if self.stopped else self._do(step)
            if status and (self.stopped or not (step.alone or self._is_kept(step, status))):
                return status
            failed = failed or status
        return failed

    def _do(self, step: Step) -> int:
        if step.unless:
            return 0 if self._has_run_of(step.unless) else self._make(step.unless)
        if step.keep == plan.RUN:
            return self._train(step)
        if step.after and (status := self._train(plan.training(step.after))):
            return status
        out, command = self._out(step), step.command(self.device)
        is_there = False
        if step.keep == plan.ADAPTATION and not (is_there := self._is_adapted(step, command, out)):
            (out / "result.json").unlink(missing_ok=True)  # which is never replaced
        if step.keep == plan.BENCHMARK:
            (out / report.MARKDOWN).unlink(missing_ok=True)  # which is written at the end
        status = 0 if is_there else self._run(command, out)
        if status and not self._is_kept(step, status):
            return status
        name = self._fill(step.id)
        if step.keep == plan.BENCHMARK:
            keep.benchmark(self.results, out, name)
        elif step.keep == plan.ADAPTATION:
            keep.adaptation(self.results, out / "result.json", name, self._fill(step.after))
        elif step.keep:
            keep.study(self.results, out, step.keep, name, command=command)
        return status

    def _out(self, step: Step) -> Path:
        return self.root / "bench" / f"reproduce-{self._fill(step.id)}"

    def _is_kept(self, step: Step, status: int) -> bool:
        """Return whether what failed has a result: a benchmark that ended, in which a variant failed."""
        has_ended = step.keep == plan.BENCHMARK and (self._out(step) / report.MARKDOWN).exists()
        return has_ended and status == cli.EXIT_FAILED

    def _is_adapted(self, step: Step, command: str, out: Path) -> bool:
        """Return whether a run that adapts was tested by this command, with the weights that it has now."""
        run = RunDirectory(self.root / "checkpoints" / f"reproduce-{self._fill(step.after)}")
        result = out / "result.json"
        if not result.exists() or result.stat().st_mtime < run.weights_path.stat().st_mtime:
            return False
        made = json_files.read(result, remedy="remove it")["command"]
        return shlex.split(made) == shlex.split(command)

    def _has_run_of(self, result: str) -> bool:
        runs = run_tables.read(self.results)
        same = (runs["result"] == result) & runs["has_ended"] & (runs["overrides"] == "")
        return bool(same.any())

    def _train(self, step: Step) -> int:
        if step.record:
            self.commit = records.clean_commit(step.result)
        folder = f"checkpoints/reproduce-{self._fill(step.id)}"
        run = RunDirectory(self.root / folder)
        ended, going_on = _has_ended(run), run.state_path.exists() and not step.record
        if (ended or going_on) and (changed := flags.differences_today(run.read_config(), step.run)):
            raise UserError(
                f"{folder} is a run of other settings than today's ({', '.join(changed)}); remove that "
                "folder to train it again"
            )
        self.running = step
        if not ended:
            again = f"python -m ptb_lm.train --resume {folder}"
            if status := self._run(again if going_on else step.command(self.device, self.commit)):
                if status == cli.EXIT_USAGE:  # refused: another process may be at work there
                    self.running = None
                return status
        return self._keep_run()

    def _keep_run(self) -> int:
        step, self.running = self.running, None
        assert step is not None, "or there is nothing to keep"
        name = self._fill(step.id)
        folder = self.root / "checkpoints" / f"reproduce-{name}"
        keep.run(self.results, folder, name, result=step.result, replace=True)
        if step.record and _has_ended(RunDirectory(folder)):
            what = os.environ.get("WHAT", "")
            records.add(self.results, folder, name, what, usual=step.record, result=step.result)
        return 0

    def _run(self, command: str, out: Path | None = None) -> int:
        """Run a command to its end; return its exit status, or 128 + the number of the signal."""
        typed, _, printed = command.partition(" > ")
        called = [sys.executable, *shlex.split(typed)[1:]]
        done = subprocess.run(called, cwd=self.root, stdout=subprocess.PIPE if printed else None, check=False)
        if self.stopped:
            return 128 + self.stopped
        if printed and out and done.returncode == 0:
            out.parent.mkdir(exist_ok=True)
            files.atomic_write(out, done.stdout)
        elif printed:  # it may say what failed
            for line in done.stdout.decode(errors="replace").splitlines():
                streams.print_to_stderr(line)
        return done.returncode if done.returncode >= 0 else 128 - done.returncode

    def _fill(self, text: str) -> str:
        return fill_placeholders(text, self.device, self.commit)

    def _write_pages(self) -> int:
        pages.write(self.root)
        return 0


def _has_ended(run: RunDirectory) -> bool:
    """Return whether a run has ended, and has not done more epochs since."""
    return run.result_path.exists() and bool(run.read_end(len(run.read_metrics())))
