"""A run gets signals, loses its streams, or meets another one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.subject import Outcomes, ProcessEnd, Subject, fingerprint, flaw, kill_after, open_streams
from faults.table import AS_PROMISED
from ptb_lm import train
from ptb_lm.training import checkpoint, run_folders
from ptb_lm.training.run_directory import RunDirectory

NEVER_SAVE = 1e9  # seconds between two saves: every save is for the signal


def signals(*numbers: signal.Signals) -> Outcomes:
    """Return the fault that sends signals in a row, after a random step or before the first."""

    def outcomes(subject: Subject, rng: random.Random) -> Iterator[str]:
        while True:
            run = subject.new()
            yield _stop(subject, run, rng, *numbers) or subject.finish(run)

    return outcomes


def deaf_streams(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Send SIGINT to a run whose stdout and stderr are a pipe without a reader, closed, or a full disk."""
    while True:
        run, how = subject.new(), rng.choice(["pipe", "closed", "full disk"])
        found = _stop(subject, run, rng, signal.SIGINT, before=lambda how=how: _break_streams(how))  # type: ignore[misc]
        yield f"{found} ({how})" if found else subject.finish(run)


def _stop(
    subject: Subject,
    run: Path,
    rng: random.Random,
    *numbers: signal.Signals,
    before: Callable[[], None] = lambda: None,
) -> str | None:
    """Send signals to a run that saves only for a signal; return the flaw of its end."""
    at, later, sent_after = rng.randrange(subject.steps), rng.uniform(0, 1) * subject.seconds, []

    def work() -> int:
        before()
        checkpoint.SAVE_SECONDS = NEVER_SAVE
        return train.main(subject.arguments(run))

    def meanwhile(child: int) -> None:
        if at:
            _wait_for_step(subject, at, child)
        else:
            time.sleep(later)
        sent_after.append(subject.steps_done())
        kill_after(0, *numbers)(child)

    end = subject.process(work, meanwhile=meanwhile)
    statuses = {128 + number for number in numbers}
    if len(set(numbers)) < len(numbers):
        statuses |= {-number for number in numbers}  # the same one again ends it at once
    if sent_after[0] == subject.steps:
        statuses.add(0)  # it came while the trained model was tested, or too late
    if found := flaw(end, *statuses):
        return found
    if not sent_after[0] or len(set(numbers)) < len(numbers) or not end.status:
        return None
    step = _saved_steps(subject, run)
    return None if step >= end.steps else f"step {step} was saved and step {end.steps} was done"


def _wait_for_step(subject: Subject, step: int, child: int) -> None:
    """Wait until a run has done a step, or has ended."""
    while subject.steps_done() < step:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.0005)


def _saved_steps(subject: Subject, run: Path) -> int:
    """Return after how many steps of the whole run its state was saved; -1 if there is none."""
    directory = RunDirectory(run)
    if not directory.state_path.exists():
        return -1
    progress = directory.read_state().progress
    epochs = RunDirectory(subject.expected).read_config().hyperparameters.epochs
    return progress.epoch * (subject.steps // epochs) + progress.step


def _break_streams(how: str) -> None:
    os.close(1)
    os.close(2)
    if how != "closed":
        reader, writer = os.pipe() if how == "pipe" else (os.dup(0), os.open("/dev/full", os.O_WRONLY))
        os.dup2(writer, 2)
        os.dup2(writer, 1)
        for number in {reader, writer} - {1, 2}:
            os.close(number)
    open_streams()


def signals_at_start(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Send a signal to a command that was just started, in a process that imports everything."""
    commands = [  # with words that each prints at its end
        ("evaluate", [str(subject.expected)], "computed by"),
        ("bench", ["list"], "small-2000-words"),
        ("score", [str(subject.expected), str(subject.data / "test.txt")], "sentences, "),
        ("train", subject.arguments(subject.folder / "started"), "written to"),
    ]
    while True:
        name, arguments, last_words = rng.choice(commands)
        number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        command = [sys.executable, "-m", f"ptb_lm.{name}", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(rng.uniform(0.1, 2))
        process.send_signal(number)
        output, _ = process.communicate()
        subject.last_output = f"{name}: {number.name}\n{output}"
        end = ProcessEnd(process.returncode, output, 0, 0)
        too_late = last_words in output and {0, -number}  # Python's exit takes our handlers away
        # 2: the run of an earlier try is there.
        also = (too_late or set()) | ({2} if name == "train" else set())
        yield _flaw_at_start(number, end, also) or AS_PROMISED


def _flaw_at_start(number: signal.Signals, end: ProcessEnd, also: set[int]) -> str | None:
    """Return the flaw of the end of a command that got a signal as it started."""
    pythons_own = "KeyboardInterrupt" in end.output and number == signal.SIGINT
    ours = "/ptb_lm/" in end.output or "ptb_lm." in end.output
    if ours or (end.output and not pythons_own):
        return flaw(end, 128 + number, *also)
    # Python itself was starting: none of our code had run.
    statuses = {-number, *((1, 130) if pythons_own else ())}
    return None if end.status in statuses else f"status {end.status}, without a word"


def two_in_one_folder(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Start two runs into one folder."""
    while True:
        run = subject.new()
        first, second = _run_twice(subject, rng, subject.training(run))
        found = flaw(first, 0, 2) or flaw(second, 0, 2)
        if not found and sorted([first.status, second.status]) != [0, 2]:
            found = f"statuses {first.status} and {second.status}"
        yield found or _compare(subject, run)


def two_in_default_folders(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Start two runs that choose a folder by themselves."""
    while True:
        folder = subject.new()

        def work(folder: Path = folder) -> int:
            run_folders.working_folder = lambda: folder
            flags = subject.arguments(folder)
            at = flags.index("--run-dir")
            return train.main(flags[:at] + flags[at + 2 :])

        first, second = _run_twice(subject, rng, work)
        runs = list((folder / "checkpoints").iterdir())
        found = flaw(first, 0) or flaw(second, 0) or (len(runs) != 2 and f"{len(runs)} folders")
        yield found or next(
            (each for run in runs if (each := _compare(subject, run)) != AS_PROMISED), AS_PROMISED
        )


def _run_twice(subject: Subject, rng: random.Random, work: Callable[[], int]) -> list[ProcessEnd]:
    """Do some work twice, the second time a little later; return both ends."""
    later: list[ProcessEnd] = []

    def meanwhile(_: int) -> None:
        time.sleep(rng.uniform(0, 0.3) * subject.seconds)
        later.append(subject.process(work, name="second"))

    return [subject.process(work, meanwhile=meanwhile), *later]


def _compare(subject: Subject, run: Path) -> str:
    return AS_PROMISED if fingerprint(run) == fingerprint(subject.expected) else "another result"
