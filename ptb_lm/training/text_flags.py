"""The flags that say what a run reads and which weights it begins with; imports nothing that takes long."""

from pathlib import Path

from ptb_lm import cli
from ptb_lm.data.preparation import LEAST_COUNT, SHARE
from ptb_lm.data.tokens import TOKENIZERS

RATE = 0.25  # of the learning rate of the run whose weights another one begins with


def add(parser: cli.Parser) -> None:
    """Add them; none has a default, so that a resumed run knows which were given."""
    text = parser.add_argument_group(
        "raw text",
        "--data names a file, of which lines are held out, or a folder. Without these flags a folder is read "
        "as it is. A run keeps them, and other text is treated in the same way.",
    )
    add = text.add_argument
    add(
        "--tokenize",
        choices=TOKENIZERS,
        help="how words are found (default: whitespace). words: as in Penn Treebank, by NLTK; characters: "
        "each character is a word",
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
            help=f"the part of a file's lines that is held out as {split} (default: {SHARE:g})",
        )
    weights = parser.add_argument_group("fine-tuning")
    weights.add_argument(
        "--init-from",
        type=Path,
        metavar="RUN",
        help="begin with this run's best weights, its vocabulary, sizes and all else but for the learning "
        f"rate, which is {RATE:g} of its own",
    )
    weights.add_argument(
        "--extend-vocabulary",
        action="store_true",
        default=None,
        help="add the words of the training text to that vocabulary; their weights are drawn",
    )
