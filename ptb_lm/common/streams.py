"""The standard streams of a command: open, able to print every character, and harmless if they break."""

import contextlib
import io
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TextIO

# Control characters of ASCII and Latin-1, those that turn the direction of what follows, surrogates, and two
# that XML lacks.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

_COMMAND = re.compile("(?<=: )(ptb-lm|python -m|pip|tensorboard|\\S*scripts/train) .+")

terminal = 2  # where stderr goes, also while file descriptor 2 is held back (host.hold_back_stderr)


def prepare() -> None:
    """Make the standard streams safe to write to.

    A stream that the shell closed (`>&-`) is opened on the null device: the next file to be opened would
    otherwise get its number, and a library's notices on stderr. Python has None in its place. Characters that
    an encoding lacks are written as escapes, as Python does on stderr by itself.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Return a context by `prepare`, after which stdout is that of the program that runs a command in it."""
    stdout, errors = sys.stdout, getattr(sys.stdout, "errors", None)
    prepare()
    try:
        yield
    finally:
        if isinstance(stdout, io.TextIOWrapper) and not stdout.closed and stdout.errors != errors:
            stdout.reconfigure(errors=errors)


def print_to_stderr(line: str) -> None:
    """Print a line on stderr; do nothing if that fails."""
    if sys.stderr is None:  # it was closed when Python started
        return
    try:
        print(wrap(escape_controls(line), sys.stderr), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # ValueError: it is closed
        mute(sys.stderr)


def write_to_stderr_in_handler(line: str) -> None:
    """Write a line to stderr from within a signal's handler: not through a buffer, and without waiting."""
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [terminal], [], 0)[1]:  # a pipe that nobody empties would hold us up
            os.write(terminal, f"{line}\n".encode(errors="backslashreplace"))


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal. What a program has put in its place may lack `isatty`."""
    return getattr(stream, "isatty", bool)()


def wrap(line: str, stream: TextIO) -> str:
    """Return a line with breaks between words where a terminal would break it within one.

    A row of a table stays whole. So does a command at the end of a sentence, and can be copied.

    Args:
        line: The line to write.
        stream: The stream to write to; if it is no terminal, the line stays as it is.
    """
    if not is_terminal(stream) or line.startswith("|"):
        return line
    kept = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), line)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = textwrap.wrap(
        kept,
        shutil.get_terminal_size().columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return "\n".join(lines).replace("\0", " ")


def mute(stream: TextIO | None) -> None:
    """Discard the rest of a broken stream's buffer and all later output.

    The interpreter would otherwise try once more when it exits, with a message and another exit status.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as null:  # noqa: PTH123
        os.dup2(null.fileno(), stream.fileno())  # type: ignore[union-attr]


def escape_controls(text: str) -> str:
    r"""Return a text with its control characters as escapes (`\x1b`), so that it cannot steer a terminal.

    So are surrogates, of a path that is no UTF-8, and what XML lacks: what is returned can be encoded, and
    drawn.
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_for(text: str, stream: TextIO | None = None) -> str:
    """Return a text as it is for a program, and by `escape_controls` for a terminal.

    Args:
        text: The text.
        stream: The stream to write to; by default stdout.
    """
    return escape_controls(text) if is_terminal(stream or sys.stdout) else text
