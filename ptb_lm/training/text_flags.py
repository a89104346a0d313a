"""The flags that say what a run reads and which weights it begins with; imports nothing that takes long."""

import argparse
from pathlib import Path

from ptb_lm import cli
from ptb_lm.data.preparation import LEAST_COUNT, SHARE
from ptb_lm.data.tokens import TOKENIZERS

RATE = 0.5  # of the learning rate of the run whose weights another one begins with


def add_text(group: argparse._ArgumentGroup) -> None:
    """Add the flags of raw text: a file, of which lines are held out, or a folder.

    None has a default, so that a resumed run knows which were given. Without them a folder is read as it is.
    """
    add = group.add_argument
    add(
        "--tokenize",
        choices=TOKENIZERS,
        metavar="NAME",
        help="whitespace (default), words (NLTK's, as in PTB) or characters",
    )
    add("--lowercase", action="store_true", default=None, help="put words into lower case")
    add("--numbers", action="store_true", default=None, help="N for each number, as in Penn Treebank")
    add(
        "--min-count",
        type=cli.whole(1),
        metavar="N",
        help=f"<unk> for words that the training text has less often (default: {LEAST_COUNT})",
    )
    add("--vocab-size", type=cli.whole(3), metavar="N", help="<unk> for all but the most frequent words")
    for split in ("valid", "test"):
        add(
            f"--{split}-fraction",
            type=float,
            metavar="X",
            help=f"part of a file's lines that is held out as {split} (default: {SHARE:g})",
        )


def add_start(group: argparse._ArgumentGroup) -> None:
    """Add the flags of fine-tuning; none has a default either."""
    group.add_argument(
        "--init-from",
        type=Path,
        metavar="RUN",
        help=f"begin with its weights, vocabulary and sizes, at {RATE:g} of its rate",
    )
    group.add_argument(
        "--extend-vocabulary",
        action="store_true",
        default=None,
        help="add the training text's words to that vocabulary",
    )
