"""Score a text with a trained run: python -m ptb_lm.evaluate RUN [--split test | --text FILE]."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.data import SPLITS
from ptb_lm.inference import loading
from ptb_lm.inference.adaptation import add_flags, read_flags
from ptb_lm.model import frameworks
from ptb_lm.training import run_flags

PROG = cli.command_name("evaluate")
COMMAND = "python -m ptb_lm.evaluate"  # however it was typed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = sys.argv[1:] if argv is None else argv
    return cli.run(PROG, lambda: _evaluate(_parser().parse_args(given), f"{COMMAND} {shlex.join(given)}"))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog=PROG, description="Report the perplexity of a trained run on a text.")
    how = loading.add_run(
        parser, precision="that of the training, or fp32 if this device lacks it or is slow in it"
    )
    how.add_argument(
        "--execution",
        choices=frameworks.EXECUTIONS,
        help="how the operations run (default: the framework's default); torch's compile and jit need "
        "windows of the training's shape, which test, scored as one row, does not have",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--split",
        choices=SPLITS,
        default="test",
        help="the split of the run's data (default: test). It is scored as in training: test as one row, the "
        "others in batch-size rows",
    )
    what.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="a text file, or - for standard input. It is scored as one stream after an <eos>; each line "
        f"follows all lines before it ({cli.command_name('score')} scores each line independently)",
    )
    run_flags.add_column(parser)
    parser.add_argument(
        "--data",
        type=cli.nonempty,
        help="where the run's data are now (default: where they were in training)",
    )
    add_flags(parser)
    return parser


def _evaluate(arguments: argparse.Namespace, command: str) -> int:
    request = read_flags(arguments)
    # What it imports takes longer than --help should, so it waits until the flags are known to be right.
    from ptb_lm.inference import run_evaluation

    run_evaluation.evaluate(arguments, request, command=command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
