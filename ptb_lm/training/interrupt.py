"""SIGINT and SIGTERM as a request to stop at the next safe place."""

import os
import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):  # noqa: N818 - not an error, but an end that was asked for
    """The run stopped because a signal asked for it, and its state is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_status = 128 + signal_number


class StopRequest:
    """While entered, remembers the first SIGINT or SIGTERM; a second one acts as usual, at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        self.signal_number = signal_number
        self._restore()
        name = signal.Signals(signal_number).name
        # Not through sys.stderr, which the signal may have caught in the middle of a write.
        os.write(2, f"\n{name}: finishing the step and saving; once more stops at once\n".encode())

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
