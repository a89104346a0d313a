"""Score a text with a trained run: python -m ptb_lm.evaluate RUN [--split test | --text FILE]."""

import argparse
import dataclasses
import functools
import math
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ptb_lm.common import cli, streams
from ptb_lm.common.errors import UserError
from ptb_lm.data import SPLITS
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.inference.adaptation import AdaptationRequest, add_flags, read_flags
from ptb_lm.model import backend, frameworks
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.training import run_flags
from ptb_lm.training.run_config import RunConfig

# What brings in NumPy or torch is imported when the flags are known to be right: it takes longer than --help
# should take.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ptb_lm.data.corpus import Corpus
    from ptb_lm.data.text import Ids

PROG = cli.command_name("evaluate")
COMMAND = "python -m ptb_lm.evaluate"  # however it was typed
DATA_FLAG_ADVICE = "--data says where the run's splits are, and --text FILE is scored instead of one"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = sys.argv[1:] if argv is None else argv
    return cli.run(PROG, lambda: _evaluate(_parser().parse_args(given), f"{COMMAND} {shlex.join(given)}"))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog=PROG, description="Report the perplexity of a trained run on a text.")
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="a run directory, or demo: the small run that the package holds"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--split",
        choices=SPLITS,
        default="test",
        help="the split of the run's data (default: test). It is scored as in training: test as one row, the "
        "others in batch-size rows",
    )
    what.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="a text file, or - for standard input. It is scored as one stream after an <eos>; each line "
        f"follows all lines before it ({cli.command_name('score')} scores each line independently)",
    )
    run_flags.add_column(parser)
    parser.add_argument("--data", help="where the run's data are now (default: where they were in training)")
    parser.add_argument("--model", choices=frameworks.MODELS, help="score with another LSTM implementation")
    parser.add_argument(
        "--framework", choices=tuple(frameworks.FRAMEWORKS), help="score with another framework"
    )
    parser.add_argument(
        "--execution",
        choices=frameworks.EXECUTIONS,
        help="how the operations run (default: the framework's default)",
    )
    parser.add_argument("--device", choices=frameworks.DEVICES, help="default: as the run was trained")
    parser.add_argument(
        "--precision",
        choices=(frameworks.AUTO, *frameworks.PRECISIONS),
        help="default: as the run was trained, or fp32 if this machine does not have that precision",
    )
    add_flags(parser)
    return parser


def _evaluate(arguments: argparse.Namespace, command: str) -> int:
    if (request := read_flags(arguments)) is not None:
        return _evaluate_adapted(arguments, request, command)
    if arguments.text is not None and arguments.data is not None:
        raise UserError(DATA_FLAG_ADVICE)
    from ptb_lm.data import corpus
    from ptb_lm.training import evaluation, run_folders

    directory = run_folders.find(arguments.run)
    run = directory.read_config()
    vocabulary = directory.read_vocabulary()
    weights = directory.read_weights(run, vocabulary)
    text = _load_text(arguments, run, vocabulary)
    batch_size = evaluation.batch_size(text.split, run.hyperparameters)
    corpus.check_evaluation(text.ids, batch_size=batch_size, split=text.name)
    choice = _choice(arguments, run.choice)
    choice.check_cell(run.hyperparameters.cell, has_weights=True)
    model = backend.build(run.hyperparameters, weights, choice)
    notes = list[str]()
    if text.is_unknown is None:
        found = evaluation.perplexity(
            model, text.ids, run.hyperparameters, batch_size=batch_size, description=text.name
        )
    else:
        found, notes = _text_perplexity(model, text, text.is_unknown, run.hyperparameters)
    perplexity = evaluation.check_finite(found, text.name)
    tokens = len(text.ids) // batch_size * batch_size - batch_size
    unknown = 0 if arguments.text is None else int((text.ids[1:] == vocabulary.unknown).sum())
    unknown_words = f", {unknown:,} of them {UNK}" if unknown else ""
    token_count = f"{tokens:,} token{'s' * (tokens != 1)} scored{unknown_words}"
    cli.say("\n".join([f"{text.name} perplexity {perplexity:.4f} ({token_count})", *notes]))
    cli.say(f"computed by {choice.framework} {choice.model} in {choice.precision}: {model.engine}")
    return 0


def _text_perplexity(
    model: backend.Backend, text: "_Text", is_unknown: "NDArray[np.bool_]", config: Config
) -> tuple[float, list[str]]:
    """Score a text as one row.

    Args:
        model: The model.
        text: The text.
        is_unknown: Flags: true of a word that the vocabulary lacks.
        config: The hyper-parameters.

    Returns:
        (perplexity, sentences on how it was read and on the perplexity without unknown words).
    """
    from ptb_lm.inference.reader import score_in_pieces
    from ptb_lm.inference.scoring import format_perplexity, perplexity

    x_1N, y_1N, window = text.ids[None, :-1], text.ids[None, 1:], config.batch_size * config.num_steps
    with cli.progress_bar(math.ceil(y_1N.size / window), text.name) as bar:
        (log_p_N,), _ = score_in_pieces(
            model, x_1N, y_1N, model.zero_state(1), tokens=window, on_piece=bar.update
        )
    known_N = log_p_N[~is_unknown]
    without = format_perplexity(perplexity(math.fsum(known_N), len(known_N)), digits=4)
    notes = [
        text.note,
        *[f"without the unknown words the perplexity is {without}"] * bool(is_unknown.any()),
        f"{cli.command_name('score')} RUN FILE reads each line by itself instead",
    ]
    return perplexity(math.fsum(log_p_N), len(log_p_N)), notes


def _evaluate_adapted(arguments: argparse.Namespace, request: AdaptationRequest, command: str) -> int:
    from ptb_lm.data import corpus
    from ptb_lm.inference.adaptation import evaluation as adapted_evaluation
    from ptb_lm.training import run_folders

    directory = run_folders.find(arguments.run)
    run = directory.read_config()
    vocabulary = directory.read_vocabulary()
    weights = directory.read_weights(run, vocabulary)
    needs_corpus = adapted_evaluation.needs_corpus(request)
    if arguments.text is not None and arguments.data is not None and not needs_corpus:
        raise UserError(DATA_FLAG_ADVICE)
    text = _load_text(arguments, run, vocabulary, data=needs_corpus)
    corpus.check_evaluation(text.ids, batch_size=1, split=text.name)
    subject = adapted_evaluation.Subject(
        run=run,
        weights=weights,
        ids=text.ids,
        name=text.name,
        note=text.note,
        corpus=text.data,
        run_result=directory.read_result() or {},
        device=arguments.device or run.choice.device,
    )
    adapted_evaluation.evaluate(subject, request, command=command)
    return 0


class _Text(NamedTuple):
    """A text to score.

    Attributes:
        ids: The words, after an `<eos>` if it is no split.
        split: The split that it is scored as.
        name: The name of the split or file.
        note: A sentence on how it is read; "" for a split.
        data: The run's data.
        is_unknown: Flags of a text's words, without the first `<eos>`: true of one that the vocabulary
            lacks. None for a split.
    """

    ids: "Ids"
    split: str
    name: str
    note: str
    data: "Corpus | None"
    is_unknown: "NDArray[np.bool_] | None" = None


def _load_text(
    arguments: argparse.Namespace, run: RunConfig, vocabulary: Vocabulary, *, data: bool = False
) -> _Text:
    """Return the text to score; the run's data come with a split, and with a text if they are asked for."""
    import numpy as np

    from ptb_lm.data import text, text_file

    if arguments.text is None and arguments.text_column is not None:
        run = dataclasses.replace(run, text_column=arguments.text_column)
    corpus = _data(run, vocabulary, arguments.data) if data or arguments.text is None else None
    if arguments.text is None:
        assert corpus is not None
        return _Text(corpus.splits[arguments.split], arguments.split, arguments.split, "", corpus)
    marks = Counter[str]()
    part = text_file.Part(arguments.text, treatment=run.treatment, column=arguments.text_column, marks=marks)
    ids, is_unknown = text.encode(part, vocabulary)
    # What stands before the first word of a text, which is then scored too.
    ids = np.concatenate([[vocabulary.ids[EOS]], ids]).astype(np.int32)
    name = text_file.display_name(arguments.text)
    notes = [
        f"the text is one stream after {EOS}{_count_unknown(int(is_unknown.sum()))}",
        text_file.describe_marks(marks),
    ]
    return _Text(ids, "test", name, "\n".join(filter(None, notes)), corpus, is_unknown)


def _data(run: RunConfig, vocabulary: Vocabulary, folder: str | None) -> "Corpus":
    from ptb_lm.training import run_data

    data = run_data.load_with_its_words(run, vocabulary, moved_to=folder)
    if difference := run_data.difference(run, data):
        streams.tell(f"{PROG}: {difference}")
    return data


def _count_unknown(words: int) -> str:
    """Return a sentence about the unknown words of a text."""
    if not words:
        return "; the vocabulary has all of its words"
    verb = "is" if words == 1 else "are"
    return f"; {words:,} of its words {verb} not in the vocabulary, and read as {UNK}"


def _choice(arguments: argparse.Namespace, default: Choice) -> Choice:
    """Return the choices for scoring: those of training, changed by the flags, with the default execution.

    The weights are always stored in float32. So they can be scored in fp32 if this machine does not have
    the run's precision.
    """
    choose = functools.partial(
        Choice.create,
        framework=arguments.framework or default.framework,
        model=arguments.model or default.model,
        execution=arguments.execution,
        device=arguments.device or default.device,
        seed=default.seed,
    )
    if arguments.precision:
        return choose(precision=arguments.precision)
    in_float32 = choose(precision="fp32")
    if not in_float32.can_have(default.precision):
        return in_float32
    return dataclasses.replace(in_float32, precision=default.precision)


if __name__ == "__main__":
    sys.exit(main())
