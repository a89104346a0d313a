"""Write text with a trained run: python -m ptb_lm.generate RUN [--prompt TEXT]."""

import argparse
import sys
from collections.abc import Iterable

from ptb_lm.common import cli, flags, streams
from ptb_lm.common.errors import UserError
from ptb_lm.data.preparation import Tokenizer
from ptb_lm.data.vocabulary import UNK
from ptb_lm.inference import loading

PROG = cli.command_name("generate")


def _add_flags(parser: cli.Parser) -> None:
    loading.add_run(parser)
    parser.add_argument(
        "--prompt",
        default="",
        metavar="TEXT",
        help="the beginning of the text; each newline is an <eos> (default: empty)",
    )
    parser.add_argument(
        "--length",
        type=cli.whole_number(1),
        metavar="N",
        help="number of words, over several sentences (default: one sentence, of 10,000 words at most)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="X",
        help="below 1: likely words become more likely; 0: always the most likely word (default: 1)",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw only from the K most likely words")
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="draw only from the smallest set of words with total probability P",
    )
    parser.add_argument(
        "--seed",
        type=cli.whole_number(0),
        metavar="N",
        help="the same seed gives the same text (default: a new text each time)",
    )
    parser.add_argument("--unk", action="store_true", help="allow <unk> in the text")
    parser.add_argument(
        "--count",
        type=cli.whole_number(1),
        default=1,
        metavar="N",
        help="number of texts, with an empty line between them (default: 1)",
    )


@cli.command(PROG, "Generate text word by word. It begins after an <eos> and the prompt.", _add_flags)
def main(arguments: argparse.Namespace) -> None:
    """Print the texts."""
    idle = [name for name in ("top_k", "top_p", "seed") if getattr(arguments, name) is not None]
    if arguments.temperature == 0 and idle:
        raise UserError(f"{flags.flag_list(idle)} would change nothing with --temperature 0")
    import numpy as np  # takes longer than --help should

    model = loading.load_from_flags(arguments)
    if arguments.unk and model.vocabulary.unknown is None:
        raise UserError(f"--unk would change nothing: the vocabulary has no {UNK}")
    generator = np.random.default_rng(arguments.seed)
    for number in range(arguments.count):
        words = model.generate(
            arguments.prompt,
            arguments.length,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            seed=generator,
            unk=arguments.unk,
        )
        if number == 0:
            loading.warn_of_unknown_words(PROG, model, arguments.prompt)
        else:
            print()
        _print(arguments.prompt, words, model.tokenizer)


def _print(prompt: str, words: Iterable[str], tokenizer: Tokenizer) -> None:
    """Print a text as it comes, a sentence a line."""
    print("\n".join(map(streams.escape_for, prompt.split("\n"))), end="", flush=True)
    piece = ""
    for piece in tokenizer.detokenize(words, after=prompt):
        print(piece if piece == "\n" else streams.escape_for(piece), end="", flush=True)
    if piece != "\n":
        print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
