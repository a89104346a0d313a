"""Run a command, or list all of them: ptb-lm COMMAND, which is python -m ptb_lm COMMAND."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ptb_lm.common import cli, flags
from ptb_lm.common.errors import UserError
from ptb_lm.common.program import NAME, module_name, version

PROG = cli.command_name("").rstrip(" .")
COMMANDS = {
    "train": "train a language model and report its perplexity",
    "evaluate": "report the perplexity of a trained run on a text",
    "score": "print the log-probability of sentences, or rescore n-best lists",
    "generate": "write text with a trained run",
    "predict": "print the most likely next words",
    "neighbours": "print or draw words with similar embeddings",
    "export": "write a trained model for ONNX, TorchScript or torch.export",
    "import": "make a run of a model trained elsewhere",
    "play": "try a trained run in a browser",
    "compare": "compare the settings and results of runs",
    "bench": "measure how fast each LSTM implementation is on this machine",
    "download": "download Penn Treebank and verify it",
}
OPTIONS = {"--help": "show this list; after a command: show its flags", "--version": "show the version"}


def main(argv: Sequence[cli.Argument] | None = None) -> int:
    """Run the command that the first argument names; return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in COMMANDS:
        return import_command(given[0]).main(given[1:])
    return cli.run(PROG, lambda: _answer(cli.words(given)))


def import_command(name: str) -> Any:
    """Return the module that python -m ptb_lm.COMMAND runs; its `main` takes the arguments."""
    path = f"{__package__}.{module_name(name)}"
    module = importlib.import_module(path)
    return importlib.import_module(f"{path}.__main__") if hasattr(module, "__path__") else module


def _answer(given: list[str]) -> int:
    """Answer a line that names no command."""
    if not given or given[0] in ("-h", "--help"):
        print(_listing())
    elif given[0] == "--version":
        print(NAME, version())
    else:
        kind, known = ("flag", OPTIONS) if given[0].startswith("-") else ("command", COMMANDS)
        raise UserError(f"unknown {kind} {given[0]}{flags.did_you_mean(given[0], known)} (see --help)")
    return 0


def _listing() -> str:
    rows = [f"  {name:<12}{text}" for name, text in {**COMMANDS, **OPTIONS}.items()]
    rows.insert(len(COMMANDS), "")
    modules = "python -m ptb_lm.COMMAND (import: import_run)"
    usage = f"usage: {PROG} COMMAND [FLAG ...]    also: {modules}"
    return "\n".join([usage, "", *rows])


if __name__ == "__main__":
    sys.exit(main())
