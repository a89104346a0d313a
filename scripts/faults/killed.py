"""A run is killed, or its disk fails it."""

import errno
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.subject import ProcessEnd, Subject, fingerprint, flaw, kill_after
from faults.table import AS_PROMISED
from ptb_lm import train

# The events of Python before it uses a process's files: writing shows between opening and renaming.
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.listdir", "os.truncate"}


def random_kills(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Kill a run at a random time."""
    while True:
        run = subject.new()
        after = kill_after(rng.uniform(0, subject.seconds), signal.SIGKILL)
        subject.process(subject.training(run), meanwhile=after)
        yield subject.finish(run)


def kills_at_operations(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Kill a run right before an operation on its files, each once."""
    for run, _ in _at_operations(subject, rng, _kill):
        yield subject.finish(run)


def errors_at_operations(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Let an operation on a run's files fail, each once."""

    def fail() -> None:
        number = rng.choice([errno.ENOSPC, errno.EIO, errno.EDQUOT])
        raise OSError(number, os.strerror(number))

    for run, end in _at_operations(subject, rng, fail):
        if found := flaw(end, 0, 1):
            yield found
        elif end.status:
            yield subject.finish(run)
        else:  # it was an operation that may fail
            yield AS_PROMISED if fingerprint(run) == fingerprint(subject.expected) else "another result"
            shutil.rmtree(run)


def full_disks(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Let no file grow beyond a random size: a write ends in its middle."""
    largest = max(path.stat().st_size for path in subject.expected.rglob("*") if path.is_file())
    while True:
        run, room = subject.new(), rng.randrange(500, largest)  # the sentence itself goes into a file

        def work(run: Path = run, room: int = room) -> int:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            return train.main(subject.arguments(run))

        yield flaw(subject.process(work), 1) or subject.finish(run)


def kill_half_way(subject: Subject) -> Path:
    """Return a run that was killed in the middle."""
    run, middle = subject.new(), _count_operations(subject) // 2
    subject.process(_train_with_hook(subject, run, lambda at: _kill() if at == middle else None))
    return run


def _at_operations(
    subject: Subject, rng: random.Random, act: Callable[[], None]
) -> Iterator[tuple[Path, ProcessEnd]]:
    """Do something before an operation on a run's files, each once, in random order; yield how it ended."""
    total = _count_operations(subject)
    for number in rng.sample(range(1, total + 1), total):
        run = subject.new()

        def act_once(at: int, number: int = number) -> None:
            if at == number:
                act()

        yield run, subject.process(_train_with_hook(subject, run, act_once))


def _count_operations(subject: Subject) -> int:
    run, count_file = subject.new(), subject.folder / "count"

    def work() -> int:
        counts: list[int] = []
        status = _train_with_hook(subject, run, counts.append)()
        count_file.write_text(str(len(counts)))
        return status

    assert subject.process(work).status == 0
    return int(count_file.read_text())


def _train_with_hook(subject: Subject, run: Path, act: Callable[[int], None]) -> Callable[[], int]:
    """Return a function that trains, and calls `act` with the number of each operation before it is done."""
    count, inside = 0, os.fspath(run)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in OPERATIONS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if os.fsdecode(arguments[0]).startswith(inside):
            count += 1
            act(count)

    def work() -> int:
        sys.addaudithook(hook)
        return train.main(subject.arguments(run))

    return work


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
