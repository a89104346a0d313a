"""Signals that end a command: it prints a line and exits with 128 + N, or stops at the next safe place."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ptb_lm.common import streams
from ptb_lm.common.program import command_name

# The signals that ask a process to stop: Ctrl-C, kill, and a terminal that is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

REPEAT_SECONDS = 1.0  # within which the same signal is no second request
NEVER_REPEATED = "SIGHUP"  # the signal that is no second request, however late
PATIENCE_SECONDS = 5.0  # until a line says what a process waits for
IMPORT_SECONDS = 0.1  # after which a signal that came amid an import is sent once more

_is_our_command = False  # whether this process is a command of this package, and no program that imports it
_command = ""  # the running command, which opens the line
_imports = 0  # the imports that had begun where the command did
_program_handlers: dict[int, Any] = {}  # the handlers of the program that runs the command, by signal
_arrivals = -1  # the file that the numbers of signals are written to as they come (`_note_arrivals`)
# The signal that the command has already stopped for. Signals that come while it ends change nothing
# (`_stop` and `_end` look at it).
answered_signal: int | None = None
_first_times: dict[int, float] = {}  # when each signal came first that `_stop` has heard (`add_signal`)


class StopSignal(KeyboardInterrupt):
    """A signal asked the process to stop; a KeyboardInterrupt, because it is treated as one."""

    def __init__(self, number: int) -> None:
        super().__init__(describe_signal(number))
        self.exit_status = 128 + number


class TrainingInterrupted(Exception):  # noqa: N818 - not an error, but an end that was asked for
    """A signal asked a training to stop. When this leaves `Trainer.train`, the newest state is on disk."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_status = 128 + signal_number


class StopRequest:
    """While entered, remembers the first signal that asks to stop; the same one a second later acts at once.

    Another one after it changes nothing: who sends SIGINT and then SIGTERM wants the run to end, and it will.
    A signal that is ignored stays so.

    Args:
        is_one_of_several: True for one of several processes. A launcher hands on a signal that the process
            may have heard already, so a repeated one changes nothing; the launcher kills a process that takes
            too long. It also sends SIGTERM when another process has failed, so nothing is said of SIGTERM.
    """

    def __init__(self, *, is_one_of_several: bool = False) -> None:
        self.is_one_of_several = is_one_of_several
        self.signal_number: int | None = None
        self._previous: dict[int, Any] = {}
        self._first_times: dict[int, float] = {}
        self._arrivals = _note_arrivals()

    def __enter__(self) -> "StopRequest":
        self._arrivals.__enter__()
        self._previous = {number: signal.signal(number, self._handle) for number in handled_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global answered_signal
        if self.signal_number is not None:
            answered_signal = self.signal_number
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._arrivals.__exit__(None, None, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if add_signal(number, self._first_times) and not self.is_one_of_several:
            _hand_on(number, self._previous[number])
        if self.signal_number is None:
            self.signal_number = number
            name, is_heard = signal.Signals(number).name, not self.is_one_of_several
            may_repeat = is_heard and name != NEVER_REPEATED
            again = "; once more, a second later, stops at once" if may_repeat else ""
            if is_heard or number != signal.SIGTERM:
                streams.write_to_stderr_in_handler(f"\n{name}: finishing the step and saving{again}")


def add_signal(number: int, first_times: dict[int, float]) -> bool:
    """Add a signal to those that came; return whether it came before, and is sent on purpose once more.

    One sent within a second is not sent on purpose, however late its handler runs. A machine that shuts down
    signals all processes, for example, and a parent hands the signal on to a child that has it already. A
    terminal that closes sends SIGHUP twice, by the shell and by the kernel, at any distance; so SIGHUP never
    counts.

    Args:
        number: The signal.
        first_times: Time when each signal was first handled, by time.monotonic.
    """
    now = time.monotonic()
    is_new, first = number not in first_times, first_times.setdefault(number, now)
    is_late = now - _seconds_since_arrival(number) - first >= REPEAT_SECONDS
    return not is_new and is_late and signal.Signals(number).name != NEVER_REPEATED


@contextlib.contextmanager
def _note_arrivals() -> Iterator[None]:
    """Inside this context it is known when a signal came; its handler runs when the main thread leaves C.

    CPython's handler in C writes the signal's number to the "wakeup fd" at once, and the time of that file's
    change is then the signal's. A pipe would keep no such time. A wakeup fd that was there (asyncio's) gets
    the numbers of other signals at the end; those that end a command are the command's.
    """
    global _arrivals
    file = -1
    if _arrivals < 0 and handled_signals():
        with contextlib.suppress(AttributeError, OSError):  # only Linux has them; it may refuse one
            file = os.memfd_create("signals")
    if file < 0:
        yield
        return
    _arrivals = file
    os.set_blocking(file, False)
    previous = signal.set_wakeup_fd(file)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        _arrivals = -1
        with contextlib.suppress(OSError):  # there is none, it is full, or closed
            os.write(previous, _numbers(file).translate(None, bytes(SIGNALS)))
        os.close(file)


def _seconds_since_arrival(number: int) -> float:
    """Return how long ago a signal came last; infinity if that is not known, as another one came later."""
    if _arrivals < 0:
        return 0.0
    changed = os.fstat(_arrivals).st_mtime  # before the number is read: a newer number gets an older time
    return max(0.0, time.time() - changed) if _numbers(_arrivals)[-1:] == bytes([number]) else math.inf


def _numbers(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def describe_signal(number: int) -> str:
    """Return a sentence about a process that a signal ended."""
    if number == signal.SIGINT:
        return "interrupted"
    names = {each.value: each.name for each in signal.Signals}  # most real-time signals have none
    return f"ended by {names.get(number, f'signal {number}')}"


def handled_signals(numbers: Sequence[signal.Signals] = SIGNALS) -> list[signal.Signals]:
    """Return those signals to handle here that are not ignored from the start (nohup, a shell's `&`)."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        return []
    return [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]


@contextlib.contextmanager
def handle_signals(command: str) -> Iterator[None]:
    """Inside this context the first signal raises StopSignal; the same one a second later ends the process.

    As with StopRequest, others after it change nothing: a launcher may have handed it on, for example. In a
    program that imports this package, which has more to lose, the later one is that program's.

    Args:
        command: The command as the user typed it.
    """
    global _command, _imports, _program_handlers, answered_signal
    if threading.current_thread() is not threading.main_thread():
        if not _command:  # otherwise all this is of the main thread's command, which hears the signals
            answered_signal = None
        yield
        return
    before = _command, _imports, _program_handlers
    _command, _imports, answered_signal = command, _count_imports(sys._getframe()), None
    _first_times.clear()
    _program_handlers = {number: signal.signal(number, _stop) for number in handled_signals()}
    try:
        with _note_arrivals():
            yield
    finally:
        for number, handler in _program_handlers.items():
            signal.signal(number, handler)
        _command, _imports, _program_handlers = before


@contextlib.contextmanager
def handle_in_libraries(waits: str = "", *, blocks_python: bool = False) -> Iterator[None]:
    """Inside this context a signal ends the command while a library in C++ waits for other processes.

    Python's handlers run only when the library returns. Nothing changes where a signal is remembered until
    the state is saved.

    Args:
        waits: A sentence about the processes that it waits for, printed if they do not come soon.
        blocks_python: True if the library lets no thread of Python run. Then the sentence is printed at
            once, and a signal ends the process without another one.
    """
    numbers = [number for number in handled_signals() if signal.getsignal(number) is _stop]
    if not numbers or not hasattr(signal, "sigtimedwait"):
        yield
        return
    if blocks_python:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        streams.print_to_stderr(f"{_command}: {waits}; a signal ends it at once")
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, _stop)
        return
    done = threading.Event()

    def listen() -> None:
        # The main thread of a process gets a signal, unless it blocks it.
        found = signal.sigtimedwait(numbers, PATIENCE_SECONDS)
        if waits and not found and not done.is_set():
            streams.print_to_stderr(f"{_command}: {waits}")
        while not found and not done.is_set():
            found = signal.sigtimedwait(numbers, PATIENCE_SECONDS)
        if found:
            _end(found.si_signo)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handle_from_start() -> None:
    """Let a signal end a command with a line while it imports, and as it exits."""
    global _command, _is_our_command
    _is_our_command = True
    modules = sys.argv[0] == "-m"  # Python looks for the module
    _command = " ".join(["python", *sys.orig_argv[1:3]]) if modules else command_name(*sys.argv[1:2] or [""])
    for number in handled_signals():
        signal.signal(number, lambda number, _: _end(number))


def _stop(number: int, frame: FrameType | None) -> None:
    if answered_signal is not None:
        return
    # Modules in C make other errors of an exception, or lose it, and none can be imported again then.
    is_importing = _count_imports(frame) > _imports
    if is_importing and not _is_our_command:
        threading.Timer(IMPORT_SECONDS, _send_again, [number]).start()
        return
    is_first = not _first_times
    if add_signal(number, _first_times):
        _hand_on(number, signal.SIG_DFL if _is_our_command else _program_handlers[number])
    if not is_first:
        return
    if is_importing:  # commands import before they begin
        _end(number)
    raise StopSignal(number)


def _send_again(number: int) -> None:
    # If the command has ended meanwhile, the signal is the program's; but not if the command stopped for it.
    if _command or not _first_times:
        os.kill(os.getpid(), number)


def _hand_on(number: int, handler: Any) -> None:
    """Let another handler act on a signal that came, and on all later ones."""
    signal.signal(number, handler)
    os.kill(os.getpid(), number)  # this thread may block it


def _end(number: int) -> NoReturn:
    with contextlib.suppress(Exception):  # RuntimeError: the signal came in the middle of a write
        sys.stdout.flush()
    if answered_signal is None:
        streams.write_to_stderr_in_handler(f"{_command}: {describe_signal(number)}")
    os._exit(128 + (answered_signal or number))


def _count_imports(frame: FrameType | None) -> int:
    """Return the number of Python's own functions in a stack of calls that import modules."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return count
