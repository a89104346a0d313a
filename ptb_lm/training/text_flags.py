"""The flags for the text of a run and for its first weights; this imports nothing slow."""

import argparse
from pathlib import Path

from ptb_lm.common import cli
from ptb_lm.data.preparation import DEFAULT_FRACTION, DEFAULT_MIN_COUNT
from ptb_lm.data.tokens import TOKENIZERS

RATE = 0.5  # a run with --init-from has this part of the other run's learning rate


def add_text(group: argparse._ArgumentGroup) -> None:
    """Add the flags for raw text: a file, some lines of which are held out, or a folder.

    No flag has a default, so that a resumed run knows which were given. Without them a folder is read as
    prepared text.
    """
    add_column(group)
    add = group.add_argument
    add(
        "--tokenize",
        choices=TOKENIZERS,
        metavar="NAME",
        help="whitespace (default), words (NLTK, as in Penn Treebank) or characters",
    )
    add("--lowercase", action="store_true", default=None, help="put words into lower case")
    add("--numbers", action="store_true", default=None, help="replace each number by N, as in Penn Treebank")
    add(
        "--min-count",
        type=cli.whole_number(1),
        metavar="N",
        help=(
            f"replace words that occur fewer times by <unk> (default: {DEFAULT_MIN_COUNT}); "
            "not with --vocab-size"
        ),
    )
    add(
        "--vocab-size",
        type=cli.whole_number(3),
        metavar="N",
        help="keep the N most frequent words, <eos> and <unk> included",
    )
    for split in ("valid", "test"):
        add(
            f"--{split}-fraction",
            type=float,
            metavar="X",
            help=f"fraction of a file's lines that is held out as {split} (default: {DEFAULT_FRACTION:g})",
        )


def add_column(group: argparse._ActionsContainer) -> None:
    """Add the flag for a text that is a column of a table."""
    group.add_argument(
        "--text-column",
        metavar="NAME",
        help="the column of a JSONL, CSV, TSV or Parquet file that has the text (default: text, sentence, or "
        "the only one with text)",
    )


def add_start(group: argparse._ArgumentGroup) -> None:
    """Add the flags for fine-tuning. They have no defaults either."""
    group.add_argument(
        "--init-from",
        type=Path,
        metavar="RUN",
        help=f"start from this run's weights (and text), at {RATE:g} of its learning rate",
    )
    group.add_argument(
        "--extend-vocabulary",
        action="store_true",
        default=None,
        help="add words of the training text to the vocabulary of --init-from",
    )
