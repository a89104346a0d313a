"""Download Penn Treebank and verify it: python -m ptb_lm.download."""

import argparse
import sys
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.common.files import penn_treebank_folder

PROG = cli.command_name("download")


def _add_flags(parser: cli.Parser) -> None:
    parser.add_argument(
        "--to",
        type=Path,
        default=penn_treebank_folder(),
        help="where to put the files (default: %(default)s; PTB_LM_DATA changes it)",
    )
    parser.add_argument(
        "--mirror",
        nargs="+",
        action="extend",
        metavar="URL",
        help="the folders or .tgz archives to try, in this order",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that have other content")


@cli.command(PROG, "Download Penn Treebank and verify it.", _add_flags)
def main(arguments: argparse.Namespace) -> None:
    """Download what is not there yet."""
    # Imported here, because an HTTP client takes longer to import than --help should.
    from ptb_lm.data.penn_treebank import DIGESTS, MIRRORS, fetch

    fetched = fetch(arguments.to, mirrors=arguments.mirror or MIRRORS, overwrite=arguments.overwrite)
    if fetched:
        done = f"fetched {', '.join(fetched)} into"
    else:
        done = f"nothing to fetch: {', '.join(DIGESTS)} are in"
    cli.print_line(
        f"{done} {arguments.to}, verified. Derived from LDC99T42: for research use; do not redistribute."
    )


if __name__ == "__main__":
    sys.exit(main())
