"""Studies that are no suite: python -m benchmarks.studies profile, contention, divergence and so on."""

import argparse
import importlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import PRESETS, RECIPES

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
    try:
        study = importlib.import_module(f"benchmarks.studies.{arguments.study}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("benchmarks", "ptb_lm"):
            raise
        raise UserError(f"{error.name} is not installed; {how_to_install('bench')}") from None
    return int(study.run(arguments))


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG, description="Study training, scoring and the benchmark in ways that no suite does."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for study, (text, flags) in _STUDIES.items():
        added = commands.add_parser(study, prog=f"{PROG} {study}", description=text, help=text)
        added.set_defaults(study=study)
        for flag, about in flags.items():
            added.add_argument(flag, **{**_FLAGS.get(flag, {}), **about})
    return parser


Flags: TypeAlias = Mapping[str, Mapping[str, Any]]  # what argparse is told of a flag, by its name

# What several studies have, but for its default.
_FLAGS: Flags = {
    "--config": {"choices": tuple(PRESETS), "help": "default: %(default)s"},
    "--model": {"choices": tuple(FRAMEWORKS["torch"].models), "default": "block_fused"},
    "--precision": {
        "choices": FRAMEWORKS["torch"].precisions,
        "default": "fp32",
        "help": "default: %(default)s",
    },
    "--steps": {"type": cli.whole_number(1), "help": "default: %(default)s"},
    "--rounds": {"type": cli.whole_number(1), "help": "default: %(default)s"},
    "--out": {"type": Path},
}

# Name of a command -> its line in --help, and its flags; a module of that name has the function `run`.
_STUDIES: Mapping[str, tuple[str, Flags]] = {
    "profile": (
        "Where the time of a torch training step goes, operation by operation.",
        {
            "variant": {"metavar": "VARIANT", "help": "for example torch/cudnn or plain-torch/cudnn"},
            "--config": {"default": "small"},
            "--recipe": {"choices": tuple(RECIPES), "default": "default", "help": "default: %(default)s"},
            "--device": {"choices": ("auto", "cpu", "cuda"), "default": "auto"},
            "--precision": {},
            "--steps": {"default": 5, "help": "steps to profile (default: 5)"},
            "--out": {"help": "keep what is printed in OUT/profile.txt and OUT/rows.jsonl"},
            "--trace": {"action": "store_true", "help": "write OUT/trace.json too, for Perfetto"},
        },
    ),
    "contention": (
        "How much a busy process slows down a training, by how torch's threads wait for each other.",
        {
            "--config": {"default": "medium"},
            "--model": {},
            "--precision": {},
            "--seconds": {
                "type": cli.positive_number,
                "default": 4.0,
                "help": "seconds that a block is timed (default: %(default)g)",
            },
            "--rounds": {"default": 3},
            "--out": {"help": "keep what is printed in OUT/table.md and OUT/rows.jsonl"},
            "--step": {"action": "store_true", "help": argparse.SUPPRESS},  # what it starts itself
        },
    ),
    "divergence": (
        "How fast runs that differ only in rounding drift apart, loss by loss, on a CPU.",
        {
            "variants": {
                "nargs": "+",
                "metavar": "VARIANT",
                "help": "MODEL/PRECISION; with /nudged one weight is changed a little",
            },
            "--config": {"default": "small"},
            "--data": {"default": "ptb", "help": "ptb, synthetic, hf:NAME or a folder of splits"},
            "--steps": {"default": 151},
            "--out": {"help": "keep what is printed in OUT/rows.jsonl"},
        },
    ),
    "scoring": (
        "How much faster sentences are scored side by side than one after the other, on a CPU.",
        {
            "--config": {"default": "medium"},
            "--model": {},
            "--precision": {},
            "--rounds": {"default": 5},
            "--out": {"help": "keep what is printed in OUT/table.md and OUT/rows.jsonl"},
        },
    ),
    "coverage": (
        "How many of a program's intervals against itself contain 1.",
        {
            "folder": {
                "type": Path,
                "metavar": "FOLDER",
                "help": "folder with the rows of a program and its #again",
            },
            "--repetitions": {
                "type": cli.whole_number(1),
                "default": 40,
                "help": "studies that the rounds are divided into (default: %(default)s)",
            },
            "--measure": {
                "action": "store_true",
                "help": "measure a small model twice into FOLDER, or continue that; some 20 minutes on two "
                "cores",
            },
        },
    ),
}


if __name__ == "__main__":
    sys.exit(main())
