"""Write a trained model for other programs: python -m ptb_lm.export RUN --format onnx --out model.onnx."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.common.files import atomic_write
from ptb_lm.model.backend import Arrays
from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config
from ptb_lm.model.hyperparameter import LARGEST

PROG = cli.command_name("export")
FORMATS = {"onnx": "ONNX, opset 17", "torchscript": "TorchScript", "torch-export": "a torch.export program"}
EPILOG = (
    "The inputs are words [batch, time], int64 (a word's id is its line in vocabulary.txt, from 0), and the "
    "state before them, h and c [layers, batch, units of the widest layer], zero where a text begins. The "
    "outputs are logits [batch, time, vocabulary] and the state after the last word. In onnx h and c are "
    "two inputs and two outputs; in the others they are one tuple (h, c), which torchscript may be called "
    "without. The axis batch is of any length. So is time, unless --steps fixes it; torch-export always "
    "fixes it, to 1 by default. The file holds the vocabulary as a JSON list (onnx: the metadata vocabulary; "
    "the others: the extra file vocabulary.json), but not how text becomes words (the training's --tokenize, "
    "--lowercase and --numbers)."
)


def _add_flags(parser: cli.Parser) -> None:
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


@cli.command(PROG, "Write a trained model, in float32, for other programs.", _add_flags)
def main(arguments: argparse.Namespace) -> None:
    """Write the model."""
    if arguments.format == "onnx" and importlib.util.find_spec("onnx") is None:
        raise UserError(f"the package onnx is not installed; {how_to_install('export')}")
    if arguments.format == "torchscript" and arguments.steps is not None:
        raise UserError(
            "--steps cannot be combined with --format torchscript: its model takes any number of steps"
        )
    # Imported here, because what they import takes longer than --help should take.
    from ptb_lm.training import run_folders

    run, vocabulary, weights = run_folders.find(arguments.run).read_model()
    if (cell := run.hyperparameters.cell) != LSTM:
        raise UserError(f"only the cell lstm can be exported, but this run has the cell {cell}")
    steps = write_model(
        arguments.out, arguments.format, run.hyperparameters, weights, vocabulary.words, steps=arguments.steps
    )
    time = "time" if steps is None else steps
    units, size = run.hyperparameters.hidden_sizes, len(vocabulary)
    wider = "; all layers have the units of the widest, by weights of zero" if len({*units}) > 1 else ""
    state = "h and c" if arguments.format == "onnx" else "(h, c)"
    cli.print_line(
        f"wrote {arguments.out}: {FORMATS[arguments.format]}; words [batch, {time}], {state} [{len(units)}, "
        f"batch, {max(units)}] -> logits [batch, {time}, {size}], {state}{wider}"
    )


def write_model(
    path: Path,
    format_name: str,
    config: Config,
    weights: Arrays,
    words: Sequence[str],
    *,
    steps: int | None,
) -> int | None:
    """Write a model.

    Args:
        path: The file; it is written completely or not at all.
        format_name: A key of FORMATS.
        config: The hyper-parameters, of the cell lstm.
        weights: Canonical parameters (model/parameters.py).
        words: The vocabulary, in the order of the ids; each format keeps it, too.
        steps: The length of the time axis. None: any, or 1 for "torch-export".

    Returns:
        The length of the time axis in the file; None if it is any.

    Raises:
        UserError: The format holds no model of this size.
        OutOfMemoryError: There is not enough memory.
        OSError: The folder is not writable, or the disk is full.
    """
    # Each format imports its library alone.
    if format_name == "onnx":
        from ptb_lm.inference import onnx_graph

        atomic_write(path, onnx_graph.model(config, weights, words, steps=steps).SerializeToString())
        return steps
    from ptb_lm.inference import torch_module

    module = torch_module.to_torch(config, weights)
    if format_name == "torchscript":
        atomic_write(path, torch_module.to_torchscript(module, words))
        return None
    atomic_write(path, torch_module.to_program(module, words, steps=steps or 1))
    return steps or 1


if __name__ == "__main__":
    sys.exit(main())
