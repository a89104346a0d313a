"""Studies that are no suite: python -m benchmarks.studies profile, contention, divergence and so on."""

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.model.config import PRESETS, RECIPES
from ptb_lm.model.frameworks import FRAMEWORKS

PROG = "python -m benchmarks.studies"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    name = f"{PROG} {given[0]}" if given and not given[0].startswith("-") else PROG
    return cli.run(name, lambda: _command(given))


def _command(given: list[str]) -> int:
    arguments = _parser().parse_args(given)
    arguments.command = shlex.join([*PROG.split(), *given])
    # Imported when the flags are known to be right: what a study imports takes longer than --help should.
    study = importlib.import_module(f"benchmarks.studies.{arguments.study}")
    status: int = study.run(arguments)
    return status


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG, description="Study training, scoring and the benchmark in ways that no suite does."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for study, (text, add_flags) in _STUDIES.items():
        added = commands.add_parser(study, prog=f"{PROG} {study}", description=text, help=text)
        add_flags(added)
        added.set_defaults(study=study)
    return parser


def _profile_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variant", metavar="VARIANT", help="for example torch/cudnn or plain-torch/cudnn")
    _add_config(parser, default="small")
    parser.add_argument("--recipe", choices=tuple(RECIPES), default="default", help="default: %(default)s")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    _add_precision(parser)
    parser.add_argument("--steps", type=cli.whole_number(1), default=5, help="steps to profile (default: 5)")
    _add_out(parser, "profile.txt and OUT/rows.jsonl")
    parser.add_argument("--trace", action="store_true", help="write OUT/trace.json too, for Perfetto")


def _contention_flags(parser: argparse.ArgumentParser) -> None:
    _add_config(parser, default="medium")
    parser.add_argument("--model", default="block_fused", choices=tuple(FRAMEWORKS["torch"].models))
    _add_precision(parser)
    parser.add_argument(
        "--seconds",
        type=cli.positive_number,
        default=4.0,
        help="seconds that a block is timed (default: %(default)g)",
    )
    parser.add_argument("--rounds", type=cli.whole_number(1), default=3, help="default: %(default)s")
    _add_out(parser, "table.md and OUT/rows.jsonl")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)  # what it starts itself


def _divergence_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "variants",
        nargs="+",
        metavar="VARIANT",
        help="MODEL/PRECISION; with /nudged one weight is changed a little",
    )
    _add_config(parser, default="small")
    parser.add_argument("--data", default="ptb", help="as of python -m ptb_lm.train")
    parser.add_argument("--steps", type=cli.whole_number(1), default=151, help="default: %(default)s")
    _add_out(parser, "result.json")


def _scoring_flags(parser: argparse.ArgumentParser) -> None:
    _add_config(parser, default="medium")
    parser.add_argument("--model", default="block_fused", choices=tuple(FRAMEWORKS["torch"].models))
    _add_precision(parser)
    parser.add_argument("--rounds", type=cli.whole_number(1), default=5, help="default: %(default)s")
    _add_out(parser, "table.md and OUT/rows.jsonl")


def _coverage_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder with the rows of a program and its #again"
    )
    parser.add_argument(
        "--repetitions",
        type=cli.whole_number(1),
        default=20,
        help="studies that the rounds are divided into (default: %(default)s)",
    )


def _add_config(parser: argparse.ArgumentParser, *, default: str) -> None:
    parser.add_argument("--config", choices=tuple(PRESETS), default=default, help="default: %(default)s")


def _add_precision(parser: argparse.ArgumentParser) -> None:
    precisions = FRAMEWORKS["torch"].precisions
    parser.add_argument("--precision", choices=precisions, default="fp32", help="default: %(default)s")


def _add_out(parser: argparse.ArgumentParser, file: str) -> None:
    parser.add_argument("--out", type=Path, help=f"keep what is printed in OUT/{file}")


# Name of a command -> its line in --help, and its flags; a module of that name has the function `run`.
_STUDIES: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "profile": (
        "Where the time of a torch training step goes, operation by operation.",
        _profile_flags,
    ),
    "contention": (
        "How much a busy process slows down a training, by how torch's threads wait for each other.",
        _contention_flags,
    ),
    "divergence": (
        "How fast runs that differ only in rounding drift apart, loss by loss, on a CPU.",
        _divergence_flags,
    ),
    "scoring": (
        "How much faster sentences are scored side by side than one after the other, on a CPU.",
        _scoring_flags,
    ),
    "coverage": (
        "How many of a program's intervals against itself contain 1, from a benchmark's rows.",
        _coverage_flags,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
