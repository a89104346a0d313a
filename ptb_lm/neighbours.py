"""Print words with similar embeddings in a trained run: python -m ptb_lm.neighbours RUN WORD -k 10."""

import argparse
import sys
from pathlib import Path

from ptb_lm.common import cli, streams
from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import path_word

PROG = cli.command_name("neighbours")
WORDS, METHOD = 300, "tsne"  # of a map


def _add_flags(parser: cli.Parser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run directory, of either framework, or demo")
    add("word", nargs="?", metavar="WORD", help="a word of the vocabulary")
    add(
        "-k",
        type=cli.whole_number(1),
        metavar="K",
        help="number of words to print (default: 10, or all if there are fewer)",
    )
    parser.add_output(
        "--picture",
        replaced="the file that --picture names, and those in the folder of --projector",
        metavar="FILE",
        help="draw a map of the first words of the vocabulary, which are the most frequent unless it was "
        "imported or extended, into FILE (.svg or .png)",
    )
    add(
        "--words",
        type=cli.whole_number(3),
        metavar="N",
        help=f"number of words in the map (default: {WORDS})",
    )
    add("--method", choices=("pca", "tsne"), help=f"method to draw the map (default: {METHOD})")
    add("--projector", type=Path, metavar="DIR", help="write the files for TensorBoard's projector")


@cli.command(
    PROG, "Print the words whose embeddings are most similar to a word's, by cosine similarity.", _add_flags
)
def main(arguments: argparse.Namespace) -> None:
    """Print or draw similar words."""
    if not (arguments.word or arguments.picture or arguments.projector):
        raise UserError("there is nothing to do: give a WORD, --picture FILE or --projector DIR")
    if arguments.k is not None and not arguments.word:
        raise UserError("-k needs a WORD")
    if not arguments.picture and (arguments.words or arguments.method):
        raise UserError("--words and --method need --picture")
    if arguments.overwrite and not (arguments.picture or arguments.projector):
        raise UserError("--overwrite would change nothing without --picture or --projector")
    # What it imports takes longer than --help should.
    from ptb_lm.inference import neighbours
    from ptb_lm.pages import plots
    from ptb_lm.training import run_folders

    if arguments.picture:
        plots.check_picture(arguments.picture)
    if (folder := arguments.projector) is not None:  # before the picture is drawn
        neighbours.check_projector(folder, overwrite=arguments.overwrite)
    config, vocabulary, weights = run_folders.find(arguments.run).read_model()
    vectors_VE = weights["embedding"]
    if arguments.word:
        found = neighbours.find_nearest(
            vectors_VE, vocabulary, arguments.word, arguments.k, tokenizer=config.tokenizer
        )
        for word, similarity in found:
            print(f"{similarity:.6f}\t{streams.escape_for(word)}")
    if arguments.picture:
        words = min(arguments.words or WORDS, len(vocabulary))
        method = arguments.method or METHOD
        neighbours.draw(vectors_VE, vocabulary, arguments.picture, words=words, method=method)
        streams.print_to_stderr(f"{PROG}: wrote {arguments.picture}, a map of {words:,} words")
    if folder is not None:
        neighbours.write_projector(vectors_VE, vocabulary, folder, overwrite=arguments.overwrite)
        streams.print_to_stderr(f"{PROG}: tensorboard --logdir {path_word(folder)} shows the words")


if __name__ == "__main__":
    sys.exit(main())
