"""Make a run of a model trained elsewhere: python -m ptb_lm.import_run FILE --vocabulary WORDS."""

import argparse
import sys
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.common.flags import path_word

PROG = cli.command_name("import")


def _add_flags(parser: cli.Parser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        metavar="FILE",
        help="a state_dict that torch saved, safetensors, .npz, .keras or .h5; or a run directory whose "
        "weights.safetensors was changed or replaced",
    )
    parser.add_argument(
        "--vocabulary",
        type=Path,
        metavar="WORDS",
        help="a file with one word per line, in the order of the ids (default: that of the run directory)",
    )
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="the folder to make (default: in checkpoints/)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --run-dir")


@cli.command(
    PROG,
    "Make a run directory of a model that another program trained: an embedding, LSTM or GRU "
    "layers and a softmax, of torch (word_language_model of its examples, AWD-LSTM, modules of your own) "
    "or of Keras. docs/weights.md describes what is recognized.",
    _add_flags,
)
def main(arguments: argparse.Namespace) -> None:
    """Make the run directory."""
    # Imported here, because it imports torch, which takes longer than --help should take.
    from ptb_lm.inference.importing import import_run

    path, sentences = import_run(
        arguments.source,
        vocabulary=arguments.vocabulary,
        run_dir=arguments.run_dir,
        overwrite=arguments.overwrite,
    )
    run = path_word(path)
    cli.print_line(
        "\n".join(
            [
                *sentences,
                f"wrote the run {path}; next: {cli.command_name('evaluate')} {run} --text FILE, "
                f"or {cli.command_name('train')} --init-from {run} --data TEXT",
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
