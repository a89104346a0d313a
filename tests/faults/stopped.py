"""A run gets signals, loses its streams, or meets another one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.fault import Outcomes, flaw
from faults.subject import AS_PROMISED, Ended, Subject, fingerprint, kill_after, open_streams
from ptb_lm import train
from ptb_lm.training import launch


def signals(*numbers: signal.Signals) -> Outcomes:
    """Return what sends signals at a random time, one right after the other."""

    def outcomes(subject: Subject, rng: random.Random) -> Iterator[str]:
        while True:
            run = subject.new()
            after = kill_after(rng.uniform(0, subject.seconds), *numbers)
            ended = subject.process(subject.training(run), meanwhile=after)
            yield _flaw(ended, *numbers) or subject.finish(run)

    return outcomes


def deaf_streams(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Send SIGINT to a run whose stdout and stderr are a pipe without a reader, closed, or a full disk."""
    while True:
        run, how = subject.new(), rng.choice(["pipe", "closed", "full disk"])

        def work(run: Path = run, how: str = how) -> int:
            _break_streams(how)
            return train.main(subject.arguments(run))

        after = kill_after(rng.uniform(0.2, 1) * subject.seconds, signal.SIGINT)
        found = flaw(subject.process(work, meanwhile=after), 0, 130)
        yield f"{found} ({how})" if found else subject.finish(run)


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
    commands = [
        ("evaluate", [str(subject.expected)]),
        ("bench", ["list"]),
        ("score", [str(subject.expected), str(subject.data / "test.txt")]),
        ("train", subject.arguments(subject.folder / "started")),
    ]
    while True:
        name, arguments = rng.choice(commands)
        number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        command = [sys.executable, "-m", f"ptb_lm.{name}", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(rng.uniform(0.1, 2))
        process.send_signal(number)
        said, _ = process.communicate()
        subject.said = f"{name}: {number.name}\n{said}"
        if "/ptb_lm/" not in said and "ptb_lm." not in said:
            yield AS_PROMISED  # Python itself was starting: none of our code had run
        else:
            # 2: the run of an earlier try is there.
            yield _flaw(Ended(process.returncode, said, 0), number, also=2) or AS_PROMISED


def _flaw(ended: Ended, *numbers: signal.Signals, also: int = 0) -> str | None:
    # A fork has the signals' usual meaning for a moment, as a process has before Python runs; 0: too late.
    return flaw(ended, 0, also, *(128 + number for number in numbers), *(-number for number in numbers))


def two_in_one_folder(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Start two runs into one folder."""
    while True:
        run = subject.new()
        first, second = _two(subject, rng, subject.training(run))
        found = flaw(first, 0, 2) or flaw(second, 0, 2)
        if not found and sorted([first.status, second.status]) != [0, 2]:
            found = f"statuses {first.status} and {second.status}"
        yield found or _same(subject, run)


def two_in_default_folders(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Start two runs that choose a folder by themselves."""
    while True:
        home = subject.new()

        def work(home: Path = home) -> int:
            launch.home = lambda: home
            flags = subject.arguments(home)
            at = flags.index("--run-dir")
            return train.main(flags[:at] + flags[at + 2 :])

        first, second = _two(subject, rng, work)
        runs = list((home / "checkpoints").iterdir())
        found = flaw(first, 0) or flaw(second, 0) or (len(runs) != 2 and f"{len(runs)} folders")
        yield found or next(
            (each for run in runs if (each := _same(subject, run)) != AS_PROMISED), AS_PROMISED
        )


def _two(subject: Subject, rng: random.Random, work: Callable[[], int]) -> list[Ended]:
    """Do some work twice, the second time a little later; return how each ended."""
    later: list[Ended] = []

    def meanwhile(_: int) -> None:
        time.sleep(rng.uniform(0, 0.3) * subject.seconds)
        later.append(subject.process(work, name="second"))

    return [subject.process(work, meanwhile=meanwhile), *later]


def _same(subject: Subject, run: Path) -> str:
    return AS_PROMISED if fingerprint(run) == fingerprint(subject.expected) else "another result"
