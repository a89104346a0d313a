"""Print the most likely next words with a trained run: python -m ptb_lm.predict RUN "no it was" -k 5."""

import argparse
import sys

from ptb_lm.common import cli, streams
from ptb_lm.inference import loading

PROG = cli.command_name("predict")


def _add_flags(parser: cli.Parser) -> None:
    loading.add_run(parser)
    parser.add_argument(
        "prefix", nargs="*", metavar="WORD", help="the first words (default: none, the sentence begins)"
    )
    parser.add_argument(
        "-k",
        type=cli.whole_number(1),
        metavar="K",
        help="number of words to print (default: 5, or all if there are fewer)",
    )


@cli.command(PROG, "Print the most likely next words after the first words of a sentence.", _add_flags)
def main(arguments: argparse.Namespace) -> None:
    """Print the predictions."""
    model = loading.load_from_flags(arguments)
    prefix = " ".join(arguments.prefix)
    predictions = model.predict(prefix, arguments.k)
    loading.warn_of_unknown_words(PROG, model, prefix)
    for word, probability in predictions:
        print(f"{probability:.6f}\t{streams.escape_for(word)}")


if __name__ == "__main__":
    sys.exit(main())
