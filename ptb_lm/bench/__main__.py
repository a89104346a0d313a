"""Measure LSTM implementations.

python -m ptb_lm.bench [run SUITE] | list | check SUITE | report DIR | compare A B
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ptb_lm.bench.suites import DEFAULT_SUITE, HAS_CHECKOUT, SUITES
from ptb_lm.common import cli
from ptb_lm.model import frameworks

PROG = cli.command_name("bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, lambda: _command(list(sys.argv[1:] if argv is None else argv)))


def _command(given: list[str]) -> int:
    arguments = _parser().parse_args(given or ["run"])
    arguments.given = given
    # Imported when the flags are known to be right.
    from ptb_lm.bench import commands

    return commands.COMMANDS[arguments.command](arguments)


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG,
        description="Measure how fast each LSTM implementation is on this machine. Without a command: run.",
    )
    commands = parser.add_subparsers(metavar="list | run | check | report | compare", required=True)

    def command(name: str, text: str) -> cli.Parser:
        added = commands.add_parser(name, prog=f"{PROG} {name}", description=text, help=text)
        added.set_defaults(command=name)
        return added

    listing = command("list", "List the suites and what is in them.")
    listing.add_argument(
        "suite",
        nargs="?",
        type=_suite,
        choices=tuple(SUITES),
        metavar="SUITE",
        help="list only this suite, with its variants",
    )
    run = command("run", "Measure a suite, or continue an interrupted measurement, and write the report.")
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for rows and report (default: bench/SUITE)"
    )
    _add_choice(run, "measure")
    _add_how_it_is_measured(run)
    check = command("check", "Compare the variants of a suite with the NumPy reference, and time nothing.")
    check.add_output("--out", metavar="FILE", help="write the result to FILE too, as Markdown")
    _add_choice(check, "check")
    _add_report(command("report", "Write the report again from the measured rows."))
    comparing = command(
        "compare", "Compare two measurements of a suite: before and after a change, or of two machines."
    )
    comparing.add_argument("a", type=Path, metavar="A", help="the folder that run wrote, or a NAME.jsonl.gz")
    comparing.add_argument("b", type=Path, metavar="B", help="the folder that another run wrote")
    comparing.add_argument(
        "--baseline", metavar="VARIANT", help="the variant to compare with (default: as the rows have it)"
    )
    return parser


def _suite(name: str) -> str:
    if name in SUITES or HAS_CHECKOUT:
        return name  # argparse lists what there is
    known = ", ".join(SUITES)
    raise argparse.ArgumentTypeError(
        f"there is no {name!r}; choose from {known}; a checkout of the repository has more, in benchmarks/"
    )


def _add_choice(parser: cli.Parser, verb: str) -> None:
    """Add the flags that say what is measured, or checked."""
    parser.add_argument(
        "suite",
        nargs="?",
        type=_suite,
        choices=tuple(SUITES),
        default=DEFAULT_SUITE,
        metavar="SUITE",
        help=f"one of {', '.join(SUITES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help=f"{verb} only these, for example 4x320-*",
    )
    beside = " and the baseline" if verb == "measure" else ""
    parser.add_argument(
        "--variants",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help=f"{verb} only these{beside}, for example torch/* or torch/*@bf16",
    )
    parser.add_argument(
        "--add",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help=f"{verb} your own variants too",
    )
    parser.add_argument(
        "--batch-size",
        type=cli.whole_number(1),
        metavar="N",
        help="rows of a batch (default: as the workload declares)",
    )
    parser.add_argument(
        "--device", choices=frameworks.DEVICES, default="auto", help="where to compute (default: %(default)s)"
    )
    parser.add_argument(
        "--precision",
        choices=frameworks.PRECISIONS,
        default="fp32",
        help="precision of the variants whose names give none (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=cli.whole_number(0),
        default=1,
        metavar="N",
        help="random seed of weights and inputs (default: %(default)s)",
    )


def _add_how_it_is_measured(run: cli.Parser) -> None:
    run.add_argument(
        "--baseline",
        metavar="VARIANT[@PRECISION]",
        help="the variant to compare with (default: as the workload declares)",
    )
    run.add_argument(
        "--rounds",
        type=cli.whole_number(1),
        metavar="N",
        help="blocks of steps of each variant (default: as the workload declares; list SUITE)",
    )
    run.add_argument(
        "--processes",
        type=cli.whole_number(1),
        metavar="N",
        help="processes per variant; they share the rounds (default: as the workload declares, which is 5)",
    )
    run.add_argument(
        "--row-limit",
        type=cli.positive_number,
        default=600.0,
        metavar="SECONDS",
        help="how long all timed blocks of a variant in a pass may take, those not counted that are "
        "measured again; steps and rounds beyond are cut "
        "(default: %(default)g)",
    )


def _add_report(reporting: cli.Parser) -> None:
    reporting.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="the folder that run wrote, or a NAME.jsonl.gz of results/bench",
    )
    reporting.add_argument(
        "--baseline",
        metavar="VARIANT",
        help="the variant to compare with (default: as the rows have it)",
    )
    reporting.add_argument(
        "--runs",
        nargs="+",
        default=[],
        type=Path,
        metavar="RUN",
        help="training runs whose learning curves to show",
    )


if __name__ == "__main__":
    sys.exit(main())
