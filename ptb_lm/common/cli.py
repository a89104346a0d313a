"""Code shared by all commands: one-sentence errors, exit statuses, types for flags, lines, progress bars."""

import argparse
import contextlib
import errno
import functools
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ptb_lm.common import files, flags, signals, streams
from ptb_lm.common.errors import DivergenceError, LostRankError, UserError
from ptb_lm.common.program import command_name as command_name

if TYPE_CHECKING:  # it takes longer to import than --help should
    from tqdm import tqdm

Argument: TypeAlias = str | os.PathLike[str]  # a word of a command line, as a program gives it

TRAIN = "python -m ptb_lm.train"  # the command as records have it, however it was typed

EXIT_FAILED = 1  # the run failed: divergence, a full disk
EXIT_INTERRUPTED = 130  # Ctrl-C: 128 and the number of SIGINT
EXIT_USAGE = 2  # the user can correct it: a name, a value, a file

FILE_IN_THE_WAY = "a file is there already, where a folder is to be made; give another name"
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
BAD_PATH = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that answers a bad command line with a line for each problem and no usage dump.

    Flags cannot be abbreviated: `--lr` would set `--lr-decay`.
    """

    def __init__(self, *, prog: str, description: str) -> None:
        formatter = functools.partial(flags.HelpFormatter, max_help_position=flags.HELP_COLUMN)
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=formatter)
        # Path("") would be the current folder.
        self.register("type", Path, lambda value: Path(nonempty(value)))
        for kind in (int, float):
            self.register("type", kind, functools.partial(flags.parse_number, kind))
        self._negative_number_matcher = flags.NEGATIVE_NUMBER  # argparse's own lacks -5e-05

    def add_output(self, flag: str, *, replaced: str = "", makes_folder: bool = False, **given: Any) -> None:
        """Add a flag that names a file to write, and --overwrite, without which no file is replaced.

        Args:
            flag: The flag.
            replaced: Words for what --overwrite replaces; "": the file that the flag names.
            makes_folder: True if the command makes the file's folder; otherwise the folder must exist.
            **given: The arguments of `add_argument` for the flag.
        """
        kind = Path if makes_folder else _in_folder
        self.set_defaults(output=self.add_argument(flag, type=kind, **given))
        replaced = replaced or f"the file that {flag} names"
        self.add_argument("--overwrite", action="store_true", help=f"replace {replaced}")

    def parse_args(  # type: ignore[override] # a namespace of another class is not wanted here
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse a command line; an unknown flag is answered with the nearest one."""
        given = sys.argv[1:] if args is None else list(args)
        wrong = flags.unknown_flags(self, given)
        values = self._parse(given, wrong)
        if values and not wrong:
            return values
        # The other problems may follow from the first one, unless they are a flag's.
        problems = wrong[:1] + [each for each in wrong[1:] if each.startswith(("unknown", "argument -"))]
        *_, parser = flags.named_parsers(self, given)
        *others, last = dict.fromkeys(problems)
        for problem in (*others, f"{last} (see --help)"):
            streams.print_to_stderr(f"{parser.prog}: {problem}")
        sys.exit(EXIT_USAGE)

    def _parse(self, given: list[str], wrong: list[str]) -> argparse.Namespace | None:
        """Return what a command line says; add what argparse finds wrong, which ends at the first problem."""
        # With positionals that may be left out, flags may stand between them, too: RUN --bits FILE.
        between = any(action.nargs in ("?", "*") for action in self._get_positional_actions())
        try:
            values = (self.parse_intermixed_args if between else super().parse_args)(given)
            if output := getattr(values, "output", None):
                path = getattr(values, output.dest)
                if problem := files.output_problem(path, overwrite=values.overwrite):
                    self.error(f"argument {output.option_strings[0]}: {problem}")
            return values
        except UserError as error:
            wrong.append(str(error))
            rest = flags.drop_argument(str(error), given)
            return self._parse(rest, wrong) if rest != given else None

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's own passes over what cannot be written."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """End the parsing, which argparse does at the first problem."""
        raise UserError(message)


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return the type of a flag whose value is a whole number.

    Args:
        least: The least value.
        most: The greatest value: for a number that a library takes, which holds it in so many bits.
    """

    def parse(value: str) -> int:
        try:
            number = flags.parse_number(int, value)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {value!r}")
        if number > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}")  # and the value is long
        return number

    return parse


def nonempty(value: str) -> str:
    """Return a flag's value, which must not be "", as that of an unset variable is."""
    if not value:
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def _in_folder(value: str) -> Path:
    path = Path(nonempty(value))
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: there is no folder {path.parent}")
    return path


def parse_finite(text: str) -> float | None:
    """Return a finite number as a person writes it; None if it is none."""
    try:
        number = flags.parse_number(float, text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def positive_number(value: str) -> float:
    """Return a flag's value, which is a finite number above 0."""
    number = parse_finite(value)
    if number is None or number <= 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {value!r}")
    return number


def from_environment(variable: str, parse: Callable[[str], flags.Number], default: object) -> flags.Number:
    """Return a number that a variable of the environment says, or the default if it is not set.

    Raises:
        UserError: It says something else.
    """
    try:
        return parse(os.environ.get(variable) or str(default))
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{variable} {error}") from None


def print_line(line: str) -> None:
    """Print a line on stdout at once, above any progress bar; on a terminal it is broken between words.

    Raises:
        OSError: It cannot be written.
    """
    from tqdm import tqdm

    lines = (streams.wrap(streams.escape_for(each), sys.stdout) for each in line.split("\n"))
    tqdm.write("\n".join(lines), file=sys.stdout)
    sys.stdout.flush()


def try_print_line(line: str) -> None:
    """Print a line about a run on stdout. If that fails, the run continues: its files say the same."""
    try:
        print_line(line)
    except OSError as error:
        streams.mute(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # nobody listened any more
            streams.print_to_stderr(f"stdout: {error.strerror}; the run goes on without it")


def progress_bar(total: int | None, description: str = "", *, unit: str = "step", **given: Any) -> "tqdm":
    """Return a progress bar on stderr; it is silent when stderr is not a terminal, or closed.

    Args:
        total: The number of units; None: unknown.
        description: The label of the bar.
        unit: The word for what is counted.
        **given: Other arguments of tqdm.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        desc=description,
        unit=unit,
        leave=False,
        disable=not streams.is_terminal(sys.stderr),
        **({"dynamic_ncols": True} if _tells_width() else {"ncols": 80, "nrows": 24}),
        **given,
    )


def _tells_width() -> bool:
    """Return whether the terminal of stderr tells its width: that of `docker run -t` may say 0."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 1  # tqdm leaves one free
    except (AttributeError, OSError, ValueError):
        return False


def words(argv: Sequence[Argument] | None) -> list[str]:
    """Return the words of a command line: those given, or otherwise those that were typed.

    Raises:
        UserError: One is neither a text nor a path.
    """
    given = sys.argv[1:] if argv is None else argv
    for each in given:
        if not isinstance(each, str | os.PathLike):
            raise UserError(f"an argument must be a string or a path, not {each!r}")
    return [os.fspath(each) for each in given]


def command(
    name: str, description: str, add_flags: Callable[[Parser], None]
) -> Callable[[Callable[[argparse.Namespace], None]], Callable[..., int]]:
    """Return the decorator that makes the `main` of a command of a function, which does its work.

    The function takes the values of the flags, and `typed_flags`, the flags as they were typed. If it
    returns, the exit status is 0.

    Args:
        name: The command as the user types it.
        description: Sentence for --help about what the command does.
        add_flags: Function that adds the flags to a parser.
    """

    def decorate(work: Callable[[argparse.Namespace], None]) -> Callable[..., int]:
        def main(argv: Sequence[Argument] | None = None) -> int:
            """Run the command; return its exit status."""

            def body() -> int:
                parser = Parser(prog=name, description=description)
                add_flags(parser)
                given = words(argv)
                arguments = parser.parse_args(given)
                arguments.typed_flags = shlex.join(given)
                work(arguments)
                return 0

            return run(name, body)

        return main

    return decorate


def run(name: str, body: Callable[[], int]) -> int:
    """Run a command's body and turn the errors a user may meet into one sentence and an exit status.

    Anything else is a bug of ours and keeps its traceback.

    Args:
        name: The command as the user typed it, to open the sentence with.
        body: The command; returns its exit status.

    Returns:
        The exit status: the body's, 2 for what the user can correct, 1 for a failed run, 130 for Ctrl-C,
        128 and its number for another signal.
    """
    try:
        # The streams come first: signals open a file, which must not get the number of a closed one.
        with streams.prepared(), signals.handle_signals(name), _flushed_stdout():
            return body()
    except UserError as error:
        return _fail(name, str(error), EXIT_USAGE, error)
    except (DivergenceError, LostRankError) as error:
        return _fail(name, str(error), EXIT_FAILED)
    except BrokenPipeError:
        return EXIT_FAILED  # the reader of our output went away (`| head`); nobody is left to tell
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free some space and try again" if error.errno in NO_SPACE else ""
        status = EXIT_USAGE if error.errno in BAD_PATH else EXIT_FAILED
        what = FILE_IN_THE_WAY if error.errno == errno.EEXIST else error.strerror
        return _fail(name, f"{where}{what}{hint}", status, error)
    except MemoryError as error:
        return _fail(name, describe_memory_error(error), EXIT_USAGE, error)
    except signals.StopSignal as stop:
        return _fail(name, str(stop), stop.exit_status)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", EXIT_INTERRUPTED)


def describe_memory_error(error: MemoryError) -> str:
    """Return a sentence about memory that could not be had."""
    from ptb_lm.common import host  # what it imports takes longer than --help should

    numbers = host.describe_failed_allocation(error)
    return f"there is not enough memory{numbers and f' ({numbers})'}"


@contextlib.contextmanager
def _flushed_stdout() -> Iterator[None]:
    """Flush stdout at the end, while its errors can still be reported; an error of the body has priority."""
    try:
        yield
    except BaseException as error:
        is_help = isinstance(error, SystemExit) and not error.code  # or another flag that ends the command
        with contextlib.nullcontext() if is_help else contextlib.suppress(OSError, ValueError):
            _flush()
        raise
    _flush()


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        streams.mute(sys.stdout)
        raise


def _fail(name: str, sentence: str, status: int, error: BaseException | None = None) -> int:
    streams.print_to_stderr("; ".join([f"{name}: {sentence}", *getattr(error, "__notes__", [])]))
    return status
