"""Tell which words a trained run has near each other: python -m ptb_lm.neighbours RUN WORD -k 10."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ptb_lm import cli, streams
from ptb_lm.errors import UserError
from ptb_lm.inference import command

PROG = "python -m ptb_lm.neighbours"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, lambda: _neighbours(_parser().parse_args(argv)))


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG, description="Tell the words whose embeddings are nearest to a word's, by their angle."
    )
    command.add_run(parser)
    add = parser.add_argument
    add("word", nargs="?", metavar="WORD", help="a word of the vocabulary")
    add("-k", type=int, default=10, metavar="K", help="how many (default: 10)")
    add("--picture", type=Path, metavar="FILE", help="draw a map of the commonest words, .svg or .png")
    add("--words", type=cli.whole(3), default=300, metavar="N", help="how many it has (default: 300)")
    add("--method", choices=("pca", "tsne"), default="tsne", help="how it is drawn (default: tsne)")
    add("--projector", type=Path, metavar="DIR", help="write what TensorBoard's projector shows")
    return parser


def _neighbours(arguments: argparse.Namespace) -> int:
    if not (arguments.word or arguments.picture or arguments.projector):
        raise UserError("there is nothing to do: give a WORD, --picture FILE or --projector DIR")
    model = command.load(arguments)
    from ptb_lm.inference import neighbours

    if arguments.word:
        for word, similarity in model.nearest(arguments.word, arguments.k):
            print(f"{similarity:.6f}\t{streams.shown(word)}")
    if arguments.picture:
        words = min(arguments.words, len(model.vocabulary))
        neighbours.draw(
            model.embeddings, model.vocabulary, arguments.picture, words=words, method=arguments.method
        )
    if arguments.projector:
        neighbours.write_projector(model.embeddings, model.vocabulary, arguments.projector)
    return 0


if __name__ == "__main__":
    sys.exit(main())
