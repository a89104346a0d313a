"""Measure LSTM implementations.

python -m ptb_lm.bench [run SUITE] | list | check SUITE | report DIR | compare A B
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ptb_lm.bench.checkout import HAS_CHECKOUT
from ptb_lm.bench.suites import DEFAULT_SUITE, SUITES
from ptb_lm.common import cli
from ptb_lm.model import frameworks
from ptb_lm.model.choice import MAX_SEED

PROG = cli.command_name("bench")

Flags: TypeAlias = Mapping[str, Mapping[str, Any]]  # what the parser is told of a flag, by its name


def main(argv: Sequence[cli.Argument] | None = None) -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, lambda: _command(cli.words(argv)))


def _command(given: list[str]) -> int:
    arguments = _parser().parse_args(given or ["run"])
    arguments.command_line = shlex.join(["python", "-m", "ptb_lm.bench", *given])
    # Imported when the flags are known to be right.
    from ptb_lm.bench import commands

    return commands.COMMANDS[arguments.command](arguments)


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG,
        description="Measure how fast each LSTM implementation is on this machine. Without a command: run.",
    )
    commands = parser.add_subparsers(metavar=" | ".join(_COMMANDS), required=True)
    for name, (text, flags) in _COMMANDS.items():
        added = commands.add_parser(name, prog=f"{PROG} {name}", description=text, help=text)
        added.set_defaults(command=name)
        for flag, about in flags.items():
            add = added.add_output if "makes_folder" in about else added.add_argument  # to write a file
            add(flag, **about)
    return parser


def _suite(name: str) -> str:
    if name in SUITES or HAS_CHECKOUT:
        return name  # argparse lists what there is
    known = ", ".join(SUITES)
    raise argparse.ArgumentTypeError(
        f"there is no {name!r}; choose from {known}; a checkout of the repository has more, in benchmarks/"
    )


_SUITE = {"nargs": "?", "type": _suite, "choices": tuple(SUITES), "metavar": "SUITE"}
_BASELINE_OF_ROWS: Flags = {
    "--baseline": {
        "metavar": "VARIANT",
        "help": "the variant to compare with (default: the one that the rows name)",
    }
}


def _choice(verb: str, beside: str) -> Flags:
    """Return the flags that say what is measured, or checked."""
    several: Mapping[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    return {
        "suite": {
            **_SUITE,
            "default": DEFAULT_SUITE,
            "help": f"one of {', '.join(SUITES)} (default: %(default)s)",
        },
        "--workloads": {
            **several,
            "metavar": "PATTERN",
            "help": f"{verb} only these, for example 4x320-*",
        },
        "--variants": {
            **several,
            "metavar": "PATTERN",
            "help": f"{verb} only these{beside}, for example torch/* or torch/*@bf16",
        },
        "--add": {
            **several,
            "dest": "added",
            "metavar": "NAME=MODULE:FUNCTION",
            "help": f"{verb} your own, too: FUNCTION(config, weights, **options) builds it",
        },
        "--batch-size": {
            "type": cli.whole_number(1),
            "metavar": "N",
            "help": "rows of a batch (default: as the workload declares)",
        },
        "--device": {
            "choices": frameworks.DEVICES,
            "default": "auto",
            "help": "where to compute (default: %(default)s)",
        },
        "--precision": {
            "choices": frameworks.PRECISIONS,
            "default": "fp32",
            "help": "precision of the variants whose names give none (default: %(default)s)",
        },
        "--seed": {
            "type": cli.whole_number(0, MAX_SEED),
            "default": 1,
            "metavar": "N",
            "help": "random seed of weights and inputs (default: %(default)s)",
        },
    }


_HOW_IT_IS_MEASURED: Flags = {
    "--baseline": {
        "metavar": "VARIANT[@PRECISION]",
        "help": "the variant to compare with (default: as the workload declares)",
    },
    "--minutes": {
        "type": cli.positive_number,
        "metavar": "N",
        "help": "minutes for each workload: as many processes are measured as fit into this time, or fewer "
        "once there are three ratios, if fewer resolve differences of 5 %% (default: the workload's, which "
        "list SUITE shows)",
    },
    "--rounds": {
        "type": cli.whole_number(1),
        "metavar": "N",
        "help": "blocks of steps per variant, instead of a planned number (default: two per process)",
    },
    "--processes": {
        "type": cli.whole_number(1),
        "metavar": "N",
        "help": "processes per variant, instead of a planned number; they share the rounds",
    },
    "--row-limit": {
        "type": cli.positive_number,
        "default": 600.0,
        "metavar": "SECONDS",
        "help": "time limit for all timed blocks of a variant in a pass, not counting blocks that are "
        "measured again; steps and rounds are cut to keep it (default: %(default)g)",
    },
}

# Name of a command -> its line in --help, and its flags.
_COMMANDS: Mapping[str, tuple[str, Flags]] = {
    "list": (
        "List the suites and what is in them.",
        {"suite": {**_SUITE, "help": "list only this suite, with its variants"}},
    ),
    "run": (
        "Measure a suite, or continue an interrupted measurement, and write the report.",
        {
            "--out": {
                "type": Path,
                "metavar": "DIR",
                "help": "folder for rows and report (default: bench/SUITE)",
            },
            **_choice("measure", beside=" and the baseline"),
            **_HOW_IT_IS_MEASURED,
        },
    ),
    "check": (
        "Compare the variants of a suite with the NumPy reference, and time nothing.",
        {
            "--out": {
                "makes_folder": True,
                "metavar": "FILE",
                "help": "write the result to FILE too, as Markdown",
            },
            **_choice("check", beside=""),
        },
    ),
    "report": (
        "Write the report again from the measured rows.",
        {
            "folder": {
                "type": Path,
                "metavar": "DIR",
                "help": "the folder that run wrote, or a NAME.jsonl.gz, whose report goes to bench/NAME",
            },
            **_BASELINE_OF_ROWS,
            "--runs": {
                "nargs": "+",
                "default": [],
                "type": Path,
                "metavar": "RUN",
                "help": "training runs whose learning curves to show",
            },
        },
    ),
    "compare": (
        "Compare two measurements of a suite: before and after a change, or of two machines.",
        {
            "a": {
                "type": Path,
                "metavar": "A",
                "help": "the folder that run wrote, or a NAME.jsonl.gz",
            },
            "b": {"type": Path, "metavar": "B", "help": "another such folder or file"},
            **_BASELINE_OF_ROWS,
        },
    ),
}


if __name__ == "__main__":
    sys.exit(main())
