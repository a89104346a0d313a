"""Score a text with a trained run: python -m ptb_lm.evaluate RUN [--split test | --text FILE]."""

import argparse
import sys
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.data import SPLITS
from ptb_lm.inference import adaptation, loading
from ptb_lm.model import frameworks
from ptb_lm.training import run_flags

PROG = cli.command_name("evaluate")
COMMAND = "python -m ptb_lm.evaluate"  # however it was typed


def _add_flags(parser: cli.Parser) -> None:
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
    adaptation.add_flags(parser)


@cli.command(PROG, "Report the perplexity of a trained run on a text.", _add_flags)
def main(arguments: argparse.Namespace) -> None:
    """Score the text, and print its perplexity."""
    request = adaptation.read_flags(arguments)
    # What it imports takes longer than --help should, so it waits until the flags are known to be right.
    from ptb_lm.inference import run_evaluation

    run_evaluation.evaluate(arguments, request, command=f"{COMMAND} {arguments.typed_flags}")


if __name__ == "__main__":
    sys.exit(main())
