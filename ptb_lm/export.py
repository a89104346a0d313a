"""Write a trained model for other programs: python -m ptb_lm.export RUN --format onnx --out model.onnx."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.model.cells import LSTM
from ptb_lm.model.hyperparameter import LARGEST

PROG = cli.command_name("export")
FORMATS = {"onnx": "ONNX, opset 17", "torchscript": "TorchScript", "torch-export": "a torch.export program"}
EPILOG = (
    "The inputs are words [batch, time], int64 (a word's id is its line in vocabulary.txt, from 0), and the "
    "state before them, h and c [layers, batch, hidden], zero where a text begins. The outputs are logits "
    "[batch, time, vocabulary] and the state after the last word. The axis batch is of any length. So is "
    "time, unless --steps fixes it; torch-export always fixes it, to 1 by default. The file holds the "
    "vocabulary as a JSON list (onnx: the metadata vocabulary; the others: the extra file vocabulary.json), "
    "but not how text becomes words (the training's --tokenize, --lowercase and --numbers)."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, lambda: _export(_parser().parse_args(argv)))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog=PROG, description="Write a trained model, in float32, for other programs.")
    parser.epilog = EPILOG
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory, of either framework, or demo")
    parser.add_argument(
        "--format",
        required=True,
        choices=tuple(FORMATS),
        help="onnx: opset 17, standard operators; torchscript: for torch.jit.load, in Python or C++; "
        "torch-export: for torch.export.load",
    )
    parser.add_output(
        "--out",
        required=True,
        metavar="FILE",
        help="the file to write; torch.export.load warns if its name does not end in .pt2",
    )
    parser.add_argument(
        "--steps",
        type=cli.whole_number(1, LARGEST[int]),
        metavar="N",
        help="fix the length of the axis time (default: any length; 1 for torch-export)",
    )
    return parser


def _export(arguments: argparse.Namespace) -> int:
    if arguments.format == "onnx" and importlib.util.find_spec("onnx") is None:
        raise UserError(f"the package onnx is not installed; {how_to_install('export')}")
    if arguments.format == "torchscript" and arguments.steps is not None:
        raise UserError(
            "--steps cannot be combined with --format torchscript: its model takes any number of steps"
        )
    # Imported here, because what they import takes longer than --help should take.
    from ptb_lm.training import run_paths

    directory = run_paths.find(arguments.run)
    run = directory.read_config()
    vocabulary = directory.read_vocabulary()
    weights = directory.read_weights(run, vocabulary)
    if (cell := run.hyperparameters.cell) != LSTM:
        raise UserError(f"only the cell lstm can be exported, but this run has the cell {cell}")
    from ptb_lm.inference.export import write_model

    steps = write_model(
        arguments.out, arguments.format, run.hyperparameters, weights, vocabulary.words, steps=arguments.steps
    )
    time = "time" if steps is None else steps
    layers, hidden, size = run.hyperparameters.num_layers, run.hyperparameters.hidden_size, len(vocabulary)
    cli.say(
        f"wrote {arguments.out}: {FORMATS[arguments.format]}; words [batch, {time}], h and c [{layers}, "
        f"batch, {hidden}] -> logits [batch, {time}, {size}], h and c"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
