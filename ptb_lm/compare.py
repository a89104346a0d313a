"""Compare runs: python -m ptb_lm.compare RUN ... [--picture FILE.svg]."""

import argparse
import sys
from pathlib import Path

from ptb_lm.common import cli, streams
from ptb_lm.pages import plots

PROG = cli.command_name("compare")
FORMATS = ("markdown", "csv", "page")


def _add_flags(parser: cli.Parser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run directory, demo, or a folder that --seeds made",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="markdown", help="default: markdown; page: HTML with the curves"
    )
    parser.add_output(
        "--picture",
        metavar="FILE",
        help="also draw the curves into FILE, which ends in .svg or .png",
    )


@cli.command(
    PROG,
    "Compare the results and settings of runs, or show one run. Runs that differ only in the "
    "seed share a row with mean and standard deviation.",
    _add_flags,
)
def main(arguments: argparse.Namespace) -> None:
    """Show the runs."""
    picture: Path | None = arguments.picture
    if picture is not None:
        plots.check_picture(picture)
    # These imports take long, so they wait until the flags are known to be right.
    from ptb_lm.common import files
    from ptb_lm.comparison import runs, tables

    write = {"markdown": tables.to_text, "csv": tables.to_csv, "page": tables.to_html}[arguments.format]
    groups = runs.read_groups(arguments.runs, command=PROG)
    text = write(groups)
    if picture is not None:
        files.atomic_write(picture, plots.to_file(tables.curves(groups), kind=picture.suffix[1:]))
    print("\n".join(map(streams.escape_for, text.split("\n"))), end="")
    if picture is not None:
        streams.print_to_stderr(f"{PROG}: wrote {picture}")


if __name__ == "__main__":
    sys.exit(main())
