"""SIGINT, SIGTERM and SIGHUP as a request to stop at the next safe place."""

import signal
from types import FrameType, TracebackType
from typing import Any

from ptb_lm.common import signals, streams


class Interrupted(Exception):  # noqa: N818 - not an error, but an end that was asked for
    """The run stopped because a signal asked for it, and its state is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_status = 128 + signal_number


class StopRequest:
    """While entered, remembers the first signal that asks to stop; the same one once more acts at once.

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

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in signals.handled_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.signal_number is not None:
            signals.set_answered_signal(self.signal_number)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.is_one_of_several:
            signal.signal(number, self._previous[number])
        if self.signal_number is None:
            self.signal_number = number
            message = f"\n{signal.Signals(number).name}: finishing the step and saving"
            if not self.is_one_of_several:
                streams.tell_at_once(f"{message}; once more stops at once")
            elif number != signal.SIGTERM:
                streams.tell_at_once(message)
