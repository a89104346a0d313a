"""Train a language model: python -m ptb_lm.train --model cudnn --config medium."""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm import cli
from ptb_lm.model import backend
from ptb_lm.model.cells import CELLS, LSTM
from ptb_lm.model.config import HYPERPARAMETERS, PRESETS, RECIPES
from ptb_lm.training import text_flags

PROG = cli.TRAIN


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    started = time.perf_counter()
    arguments = list(sys.argv[1:] if argv is None else argv)
    return cli.run(PROG, lambda: _train(arguments, started))


def _train(arguments: list[str], started: float) -> int:
    parsed = _parser().parse_args(arguments)
    # Imported when the flags are known to be right.
    from ptb_lm.training import launch

    return launch.train(parsed, shlex.join(arguments), started=started)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog=PROG, description="Train an LSTM language model and report its perplexity.")
    models = "; ".join(
        f"{model}: {text} ({name})"
        for name, row in backend.FRAMEWORKS.items()
        for model, text in row.models.items()
    )
    # No defaults here: a resumed run must know which flags were given.
    add = parser.add_argument
    add("--model", choices=backend.MODELS, help=f"how the cell is computed (default: cudnn). {models}")
    every_cell = "; ".join(f"{name}: {row.about}" for name, row in CELLS.items())
    add("--cell", choices=tuple(CELLS), help=f"the recurrent cell (default: {LSTM}). {every_cell}")
    add("--config", choices=tuple(PRESETS), help="the preset (default: small; demo for --data synthetic)")
    add(
        "--recipe",
        choices=tuple(RECIPES),
        help="default: to a lower perplexity (small, medium, large); tutorial: as in TensorFlow's tutorial",
    )
    add("--framework", choices=tuple(backend.FRAMEWORKS), help="default: torch")
    add(
        "--execution",
        choices=backend.EXECUTIONS,
        help="how the operations are run (default: the first of its framework). "
        + "; ".join(f"{name}: {', '.join(row.executions)}" for name, row in backend.FRAMEWORKS.items()),
    )
    add(
        "--unroll",
        choices=backend.UNROLLS,
        help="static (default): the graph holds every time step; loop: the graph holds one, and loops",
    )
    add(
        "--data",
        help="ptb (default), synthetic, a folder with train.txt, valid.txt and test.txt, or a file",
    )
    add("--seed", type=int, help="of the initial weights and of dropout (default: 1)")
    add("--device", choices=backend.DEVICES, help="default: auto, a GPU if there is one")
    add(
        "--precision",
        choices=(backend.AUTO, *backend.PRECISIONS),
        help="default: fp32. auto: bf16 on a CPU or GPU that multiplies in it, else fp32",
    )
    runs = parser.add_argument_group("the run directory")
    where = runs.add_mutually_exclusive_group()
    where.add_argument("--run-dir", type=Path, help="default: a new one in checkpoints/")
    where.add_argument("--resume", type=Path, metavar="RUN", help="go on exactly where this run stopped")
    runs.add_argument(
        "--log-interval",
        type=cli.positive,
        metavar="SECONDS",
        help="where there is no terminal, a line so often says how far the run is (default: 30)",
    )
    runs.add_argument("--overwrite", action="store_true", help="replace the run in --run-dir")
    text_flags.add(parser)
    overrides = parser.add_argument_group("hyper-parameters, in place of the preset's")
    for each in HYPERPARAMETERS:
        if each.name == "cell":  # above, beside --model
            continue
        how: dict[str, Any] = {"type": each.kind, "metavar": "N"}
        if each.kind is bool:
            how = {"action": argparse.BooleanOptionalAction, "default": None}
        elif each.kind is str:
            how = {"choices": each.choices or None}
        overrides.add_argument(each.flag, help=f"{each.help} ({_preset_values(each.name)})", **how)
    return parser


def _preset_values(field: str) -> str:
    """Return a hyper-parameter's value in each preset: the default recipe's, the tutorial's if another."""
    shown = []
    for name in PRESETS:
        by_default, tutorial = (_shown(getattr(RECIPES[r][name], field)) for r in ("default", "tutorial"))
        note = "" if by_default == tutorial else f" [tutorial {tutorial}]"
        shown.append(f"{name} {by_default}{note}")
    return ", ".join(shown)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
