"""Score a text with a trained run: python -m ptb_lm.evaluate RUN [--split test | --text FILE]."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ptb_lm import cli
from ptb_lm.data import corpus, datasets, text
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.errors import UserError
from ptb_lm.model import backend
from ptb_lm.model.choice import Choice
from ptb_lm.training import scoring
from ptb_lm.training.run_directory import RunDirectory

PROG = "python -m ptb_lm.evaluate"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, lambda: _evaluate(_parser().parse_args(argv)))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog=PROG, description="Report the perplexity of a trained run on a text.")
    parser.add_argument("run", type=Path, help="a run directory")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--split",
        choices=corpus.SPLITS,
        default="test",
        help="a split of the run's data (default: test); scored as in training: test as one row, the others "
        "in as many rows as the batch has",
    )
    what.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="a text file, or - for standard input, scored as one stream after an <eos>: each line after all "
        "before it (python -m ptb_lm.score scores each line for itself)",
    )
    parser.add_argument("--data", help="where the run's data are now (default: as the run was trained)")
    parser.add_argument("--model", choices=backend.MODELS, help="score with another LSTM implementation")
    parser.add_argument("--framework", choices=tuple(backend.FRAMEWORKS), help="score with another framework")
    parser.add_argument(
        "--execution", choices=backend.EXECUTIONS, help="how it is run (default: the framework's own)"
    )
    parser.add_argument("--device", choices=backend.DEVICES, help="default: as the run was trained")
    parser.add_argument(
        "--precision",
        choices=backend.PRECISIONS,
        help="default: as the run was trained, or fp32 where that cannot be had",
    )
    return parser


def _evaluate(arguments: argparse.Namespace) -> int:
    if arguments.text is not None and arguments.data is not None:
        raise UserError("--data says where the run's splits are, and --text FILE is scored instead of one")
    directory = RunDirectory(arguments.run)
    run = directory.read_config()
    vocabulary = Vocabulary.load(directory.vocabulary)
    weights = directory.read_weights(run, vocabulary)
    missed = 0
    if arguments.text is not None:
        ids, missed = text.encode_and_count(arguments.text, vocabulary)
        # What stands before the first word of a text, which is then scored too.
        ids = np.concatenate([[vocabulary.ids[EOS]], ids]).astype(np.int32)
        split, name = "test", "standard input" if arguments.text == text.STDIN else str(arguments.text)
    else:
        data = datasets.load(arguments.data or run.data)
        if data.vocabulary.sha256 != vocabulary.sha256:
            raise UserError(f"the data {arguments.data or run.data} have another vocabulary than the run")
        ids, split, name = data.splits[arguments.split], arguments.split, arguments.split
    batch_size = scoring.batch_size(split, run.hyperparameters)
    corpus.check_evaluation(ids, batch_size=batch_size, split=name)
    choice = _choice(arguments, run.choice)
    model = backend.build(run.hyperparameters, weights, choice)
    perplexity = scoring.perplexity(model, ids, run.hyperparameters, batch_size=batch_size, description=name)
    scored = len(ids) // batch_size * batch_size - batch_size
    unknown = 0 if arguments.text is None else int((ids[1:] == vocabulary.unknown).sum())
    of_them = f", {unknown:,} of them {UNK}" if unknown else ""
    print(f"{name} perplexity {perplexity:.4f} ({scored:,} token{'s' * (scored != 1)} scored{of_them})")
    if arguments.text is not None:
        print(f"the text is one stream after {EOS}{_missed(missed)}")
    print(f"computed by {choice.framework} {choice.model} in {choice.precision}: {model.engine}")
    return 0


def _missed(words: int) -> str:
    """Return what is said of the words of a text that the vocabulary lacks."""
    if not words:
        return "; the vocabulary has all of its words"
    verb = "is" if words == 1 else "are"
    return f"; {words:,} of its words {verb} not in the vocabulary, and read as {UNK}"


def _choice(arguments: argparse.Namespace, trained: Choice) -> Choice:
    """Return what scores a run: what trained it, but for the flags, and run as its framework does by default.

    The weights are kept in float32 whatever they were trained in, so that they can be scored in fp32 where
    the run's precision cannot be had.
    """
    framework, model = arguments.framework or trained.framework, arguments.model or trained.model
    row = backend.FRAMEWORKS[framework]
    anywhere = set(row.options(model)["precision"]) - set(row.needs_cuda)
    return Choice.of(
        framework=framework,
        model=model,
        execution=arguments.execution,
        device=arguments.device or trained.device,
        precision=arguments.precision or (trained.precision if trained.precision in anywhere else "fp32"),
        seed=trained.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
