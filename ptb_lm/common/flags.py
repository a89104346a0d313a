"""The names of flags, help texts that fit a screen, and a suggestion for a mistyped flag."""

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ptb_lm.common import streams

Number = TypeVar("Number", int, float)

HELP_COLUMN = 30  # the column of the help texts; a longer flag has its own line
_HELP = {"-h", "--help"}
_WHOLE_WORDS: Any = {"break_on_hyphens": False, "break_long_words": False}  # as the names of flags are
# A word that begins so, or is all this, is a negative number and no flag.
NEGATIVE_NUMBER = re.compile(r"-(\.?\d|(inf|infinity|nan)\Z)", re.IGNORECASE)

# Flags of pytorch/examples' word_language_model, awd-lstm-lm and TensorFlow's tutorial -> ours of train.
# docs/configurations.md has the same list.
FOREIGN_FLAGS = {
    "--lr": "--learning-rate, for a loss summed over the time steps",
    "--dropout": "--keep-prob, which is 1 - dropout",
    "--dropouti": "--input-keep-prob, which is 1 - dropouti",
    "--dropouth": "--between-keep-prob, which is 1 - dropouth",
    "--dropoute": "--embedding-keep-prob, which is 1 - dropoute",
    "--wdrop": "--recurrent-keep-prob, which is 1 - wdrop",
    "--bptt": "--num-steps",
    "--clip": "--max-grad-norm, for a loss summed over the time steps",
    "--nhid": "--hidden-size, or for a narrower top layer, as in awd-lstm-lm, --layer-sizes",
    "--emsize": "--embedding-size, which in awd-lstm-lm is the size of the top layer as well",
    "--nlayers": "--num-layers",
    "--tied": "--tie-weights",
    "--cuda": "--device cuda",
    "--save": "--run-dir",
    "--save_path": "--run-dir",
    "--data_path": "--data",
    "--num_gpus": "--devices",
    "--rnn_mode": "--model",
    "--use_fp16": "--precision fp16",
    "--alpha": "--activation-penalty",
    "--beta": "--slowness-penalty",
    "--wdecay": "--weight-decay",
    "--nonmono": "--average-after-stall",
}


def flag_name(field: str) -> str:
    """Return the command-line flag that sets a field: `hidden_size` -> `--hidden-size`."""
    return "--" + field.replace("_", "-")


def parse_number(kind: type[Number], text: str) -> Number:
    """Return a number as a person writes it: `1_0`, which only Python reads, is none.

    Raises:
        ValueError: It is no number of this kind.
    """
    if "_" in text:
        raise ValueError("no digit is _")
    return kind(text)


def flag_list(fields: Iterable[str]) -> str:
    """Return the flags of some fields, as a person types them: "--min-count, --lowercase"."""
    return ", ".join(map(flag_name, fields))


def command_words(field: str, value: Any) -> list[str]:
    """Return the words of a command line that give a field its value: a switch has none, a tuple several."""
    if isinstance(value, bool):
        return [flag_name(field) if value else flag_name(f"no_{field}")]
    if str(value).startswith("-"):  # would be read as a flag
        return [f"{flag_name(field)}={value}"]
    return [flag_name(field), *map(str, value if isinstance(value, list | tuple) else [value])]


def path_word(path: Path) -> str:
    """Return the word of a command line, quoted for a shell, that names a path and is read as no flag."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


class HelpFormatter(argparse.HelpFormatter):
    """argparse's formatter without breaks in words. --flag and --no-flag are shown as --[no-]flag."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)

    def _format_usage(self, *arguments: Any) -> str:
        # argparse does not break a list of choices, and indents by the command's name.
        words = super()._format_usage(*arguments).split()
        return (
            textwrap.fill(" ".join(words), max(self._width, 1), subsequent_indent=" " * 7, **_WHOLE_WORDS)
            + "\n\n"
        )

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        words = " ".join(text.split())
        return textwrap.fill(words, width, initial_indent=indent, subsequent_indent=indent, **_WHOLE_WORDS)


class ShowText(argparse.Action):
    """A flag that prints what its `const`, a function, returns, and ends the command, like --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        """Print it."""
        print("\n".join(streams.wrap(line, sys.stdout) for line in self.const().split("\n")))
        parser.exit()


def list_names_only(parser: argparse.ArgumentParser, names: Container[str], *, described_by: str) -> None:
    """Take the descriptions of some flags out of the help text; it ends in a list of these flags.

    Args:
        parser: The parser that has the flags.
        names: The `dest` of each flag.
        described_by: The flag that shows the descriptions.
    """
    left_out = [action for action in parser._actions if action.dest in names]
    for action in left_out:
        action.help = argparse.SUPPRESS
    names_only = ", ".join(action.option_strings[0] for action in left_out)
    parser.epilog = f"More flags, which {described_by} describes: {names_only}."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: what it is called here, or ""."""
    import difflib

    known = tuple(known)
    ours = FOREIGN_FLAGS.get(given, "")
    if not set(re.split(r"[ ,]", ours)).isdisjoint(known):
        return f"; here it is {ours}"
    bare = {name.lstrip("-"): name for name in known}  # dashes would make all flags alike
    nearest = difflib.get_close_matches(given.lstrip("-"), bare, n=1)
    return f"; did you mean {bare[nearest[0]]}?" if nearest else ""


def unknown_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Return an error about each flag that a parser does not know.

    This runs apart from argparse, which would first complain about the value after the flag.
    """
    known = [
        name
        for each in named_parsers(parser, arguments)
        for action in each._actions
        for name in action.option_strings
    ]
    flags = []
    for argument in arguments:
        if argument == "--":  # what follows are no flags
            break
        # As argparse sees it: a number, a text with a space and "-" alone are values.
        if argument[:1] == "-" != argument and " " not in argument and not NEGATIVE_NUMBER.match(argument):
            flags.append(argument.partition("=")[0])
    names = [name for name in known if name not in _HELP]
    # A short flag may have its value in the same word, as in -k5.
    unknown = [flag for flag in flags if flag not in known and not (flag[1:2] != "-" and flag[:2] in known)]
    return [f"unknown flag {flag}{did_you_mean(flag, names)}" for flag in unknown]


def drop_argument(problem: str, arguments: list[str]) -> list[str]:
    """Return a command line without the argument that a problem of argparse names, and its values."""
    names = problem.removeprefix("argument ").partition(":")[0].split("/")
    wrong = (each.partition("=")[0] in names or f": {each!r}" in problem for each in arguments)
    first = [*wrong, True].index(True)
    last = next((n for n, each in enumerate(arguments) if n > first and each[:1] == "-"), len(arguments))
    return arguments[:first] + arguments[last:]


def named_parsers(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser, and those of the commands below it that are named."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                if name in arguments:
                    yield from named_parsers(below, arguments)
