"""Score sentences with a trained run: python -m ptb_lm.score RUN [FILE|-]."""

import argparse
import io
import sys
from collections.abc import Mapping
from pathlib import Path

from ptb_lm.common import cli, streams
from ptb_lm.common.errors import LineError, UserError
from ptb_lm.data import text_file
from ptb_lm.inference import loading
from ptb_lm.training import run_flags

PROG = cli.command_name("score")
# How the sentences were scored, with --carry-state or without.
HOW_READ = {
    False: f"each sentence was scored independently; {cli.command_name('evaluate')} --text FILE scores them "
    "as one text, and so does --carry-state",
    True: f"the sentences were scored as one text, as by {cli.command_name('evaluate')} --text FILE; without "
    "--carry-state each is scored independently",
}


def _add_flags(parser: cli.Parser) -> None:
    loading.add_run(parser)
    add = parser.add_argument
    add("file", type=Path, nargs="?", default=Path("-"), metavar="FILE", help="default: - (standard input)")
    run_flags.add_column(parser)
    add("--format", choices=("tsv", "jsonl"), default="tsv", help="default: tsv, with a header line")
    add("--per-word", action="store_true", help="print each word's log-probability, and if it is unknown")
    add("--bits", action="store_true", help="print bits instead of nats; --lm-weight then weights bits")
    add(
        "--carry-state",
        action="store_true",
        help="let each sentence follow those before it, as evaluate --text does (default: score each "
        "independently)",
    )
    add(
        "--line-buffered",
        action="store_true",
        help="print each score as soon as its line is read, which is slower (default: only if lines are "
        "typed in a terminal; others are read some thousand at a time, and scored together)",
    )
    lists = parser.add_argument_group(
        "n-best lists", "Lines are ID ||| HYPOTHESIS ||| SCORE; other fields before SCORE are ignored."
    )
    lists.add_argument("--n-best", action="store_true", help="print the best hypothesis of each ID")
    lists.add_argument(
        "--all", action="store_true", help="print all hypotheses, in their order, with their new scores"
    )
    # The default None shows that the flag was not given.
    for flag, text in (
        ("--score-weight", "weight of SCORE (default: 1)"),
        ("--lm-weight", "weight of the model's log-probability (default: 1)"),
        ("--word-bonus", "added to the total for each word (default: 0)"),
    ):
        lists.add_argument(flag, type=_finite, metavar="W", help=text)


@cli.command(
    PROG,
    "Print the log-probability of each sentence, one per line. It covers the words and the "
    "<eos> at the end, and the model starts after an <eos>. The text's perplexity goes to stderr.",
    _add_flags,
)
def main(arguments: argparse.Namespace) -> None:
    """Print the scores, and sentences about them."""
    weights = {
        name: value
        for name in ("score_weight", "lm_weight", "word_bonus")
        if (value := getattr(arguments, name)) is not None
    }
    if not arguments.n_best and (weights or arguments.all):
        raise UserError("--all, --score-weight, --lm-weight and --word-bonus need --n-best")
    if arguments.n_best and (arguments.per_word or arguments.carry_state or arguments.line_buffered):
        raise UserError("--n-best cannot be combined with --per-word, --carry-state or --line-buffered")
    text = text_file.TextSlice(arguments.file, column=arguments.text_column)
    try:
        sentences = _print_scores(arguments, text, weights)
    except LineError as error:
        raise UserError(f"{text_file.locate(text, error.number)}: {error.problem}") from None
    for sentence in sentences:
        streams.print_to_stderr(f"{PROG}: {sentence}")


def _print_scores(
    arguments: argparse.Namespace, text: text_file.TextSlice, weights: Mapping[str, float]
) -> list[str]:
    """Print the scores; return sentences about them."""
    # These imports take long, so they wait until the flags are known to be right.
    from ptb_lm.inference import n_best
    from ptb_lm.inference.reader import CHUNK_SENTENCES
    from ptb_lm.inference.scoring import Unit, write_scores

    model, lines = loading.load_from_flags(arguments), text_file.lines(text)
    unit: Unit = "bits" if arguments.bits else "nats"
    as_json = arguments.format == "jsonl"
    computed = f"computed by {model.choice.framework} {model.choice.model} in {model.choice.precision}"
    if arguments.n_best:
        hypotheses = n_best.rescore(model, lines, unit=unit, **weights)
        sentence = n_best.write(sys.stdout, hypotheses, every=arguments.all, as_json=as_json)
        return [sentence, *text.notes.sentences(), computed]
    is_typed = arguments.file == text_file.STDIN and streams.is_terminal(sys.stdin)
    ahead = CHUNK_SENTENCES
    if arguments.line_buffered or is_typed:
        ahead = 1
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
    scores = model.score_each(lines, unit=unit, carry_state=arguments.carry_state, ahead=ahead)
    summary = write_scores(sys.stdout, scores, unit=unit, per_word=arguments.per_word, as_json=as_json)
    return [*summary, *text.notes.sentences(), HOW_READ[arguments.carry_state], computed]


def _finite(value: str) -> float:
    number = cli.parse_finite(value)
    if number is None:
        raise argparse.ArgumentTypeError(f"must be a finite number, not {value!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
