"""Train a language model: python -m ptb_lm.train --model cudnn --config medium."""

import argparse
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common import cli, flags
from ptb_lm.common.errors import UserError
from ptb_lm.data.preparation import DEFAULT_FRACTION, DEFAULT_MIN_COUNT, TOKENIZERS
from ptb_lm.model import fastest, frameworks
from ptb_lm.model.cells import CELLS
from ptb_lm.model.choice import MAX_SEED
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import PRESETS, RECIPES
from ptb_lm.training import help_tables
from ptb_lm.training.run_flags import INIT_FROM_RATE, add_column

PROG = cli.command_name("train")
# flag -> the flag without which it means nothing
REQUIRED_FLAG = {"overwrite": "run_dir", "extend_vocabulary": "init_from", "jobs": "seeds"}
# The hyper-parameters that --help describes.
DESCRIBED_FLAGS = (
    *("cell", "num_layers", "hidden_size", "tie_weights"),
    *("batch_size", "epochs", "learning_rate", "keep_prob"),
)
# Most runs need none of these: --help names them, --help-all says what they are.
RARE_FLAGS = (
    *(each.name for each in HYPERPARAMETERS if each.name not in DESCRIBED_FLAGS),
    *("text_column", "tokenize", "lowercase", "numbers", "min_count", "valid_fraction", "test_fraction"),
    *("batch_size_per_device", "extend_vocabulary", "jobs", "overwrite", "log_interval"),
    *("execution", "unroll", "reduce_precision"),
)


def main(argv: Sequence[cli.Argument] | None = None) -> int:
    """Run the command; return its exit status."""
    command_start = time.perf_counter()
    return cli.run(PROG, lambda: _train(cli.words(argv), command_start))


def _train(argv: list[str], command_start: float) -> int:
    flag_values = parse_flags(argv)
    # These imports take long, so they wait until the flags are known to be right.
    from ptb_lm.training import processes, run_folders

    run_folders.refuse_demo(flag_values.get("resume"))
    should_start = processes.should_start(flag_values)
    _, size = processes.find_launcher()
    if size == 1:  # of several processes, `join` below lets one alone report it
        _check_required(flag_values)
    if "seeds" in flag_values:
        from ptb_lm.training import seeds

        return seeds.train(flag_values, lambda command: _train(command, time.perf_counter()))
    if should_start:
        return processes.start(flag_values, argv)
    with processes.join(flag_values) as ranks:
        _check_required(flag_values)
        from ptb_lm.training import launch

        return launch.train(flag_values, shlex.join(argv), command_start=command_start, ranks=ranks)


def _check_required(flag_values: dict[str, Any]) -> None:
    for name, other in REQUIRED_FLAG.items():
        if flag_values.get(name) and other not in flag_values:
            raise UserError(f"{flags.flag_name(name)} needs {flags.flag_name(other)}")


def parse_flags(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags that were given, by name. `auto` counts as not given.

    A new run then takes the fastest that was measured; a resumed run keeps what it has.
    """
    values = vars(_parser().parse_args(argv))
    autos = {name for name in fastest.AUTO_CHOICES if values[name] == frameworks.AUTO}
    return {name: value for name, value in values.items() if value is not None and name not in autos}


def _parser() -> cli.Parser:
    parser = _described_parser()
    flags.list_names_only(parser, RARE_FLAGS, described_by="--help-all")
    return parser


def _described_parser() -> cli.Parser:
    about = "Train an LSTM language model and report its perplexity."
    parser = cli.Parser(prog=PROG, description=f"{about} Without flags: small, on Penn Treebank.")
    parser.usage = f"{PROG} [FLAG ...]"
    for flag, text, meaning in (
        ("--help-all", lambda: _described_parser().format_help().rstrip(), "describe all flags"),
        ("--help-presets", help_tables.list_presets, "show the hyper-parameters of each preset"),
        ("--help-models", help_tables.list_models, "describe each model"),
    ):
        parser.add_argument(flag, action=flags.ShowText, nargs=0, const=text, help=meaning)
    # No defaults here: a resumed run must know which flags were given.
    for title, add_flags in (
        ("data", _add_data),
        ("model (a flag replaces the preset's value)", _add_model),
        ("training (a flag replaces the preset's value)", _add_training),
        ("run", _add_run),
        ("speed (same network; --precision changes rounding, --devices dropout masks)", _add_speed),
    ):
        add_flags(parser.add_argument_group(title))
    return parser


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        type=cli.nonempty,
        help="ptb (default), synthetic (preset: demo), a folder, a file or hf:NAME",
    )
    add_column(group)
    # Of raw text: a file, some lines of which are held out, or a folder. Without these flags a folder is read
    # as prepared text.
    group.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        metavar="NAME",
        help="whitespace (default), words (NLTK, as in Penn Treebank) or characters",
    )
    group.add_argument("--lowercase", action="store_true", default=None, help="change words to lower case")
    group.add_argument(
        "--numbers", action="store_true", default=None, help="replace each number by N, as in Penn Treebank"
    )
    group.add_argument(
        "--min-count",
        type=cli.whole_number(1),
        metavar="N",
        help=(
            f"replace words that occur fewer times by <unk> (default: {DEFAULT_MIN_COUNT}); "
            "not with --vocab-size"
        ),
    )
    group.add_argument(
        "--vocab-size",
        type=cli.whole_number(3),
        metavar="N",
        help="keep the N most frequent words, <eos> and <unk> included",
    )
    for split in ("valid", "test"):
        group.add_argument(
            f"--{split}-fraction",
            type=float,
            metavar="X",
            help=f"fraction of a file's lines that is held out as {split} (default: {DEFAULT_FRACTION:g})",
        )


def _add_model(group: argparse._ArgumentGroup) -> None:
    _add_choice(group, "--config", PRESETS, f"the preset: {_one_of(PRESETS, 'small')}")
    for each in HYPERPARAMETERS:
        if each.structural:
            group.add_argument(each.flag, help=each.help, **each.argument)


def _add_training(group: argparse._ArgumentGroup) -> None:
    _add_choice(
        group, "--recipe", RECIPES, "default (lower perplexity) or tutorial (as TensorFlow's tutorial)"
    )
    for each in HYPERPARAMETERS:
        if not each.structural:
            group.add_argument(each.flag, help=each.help, **each.argument)
        if each.name == "batch_size":
            group.add_argument(
                "--batch-size-per-device",
                type=cli.whole_number(1),
                metavar="N",
                help="rows of each of --devices, instead of --batch-size",
            )
    group.add_argument(
        "--init-from",
        type=Path,
        metavar="RUN",
        help=f"start from this run's weights (and text), at {INIT_FROM_RATE:g} of its learning rate",
    )
    group.add_argument(
        "--extend-vocabulary",
        action="store_true",
        default=None,
        help="add words of the training text to the vocabulary of --init-from",
    )
    seed = group.add_mutually_exclusive_group()
    seed.add_argument(
        "--seed",
        type=cli.whole_number(0, MAX_SEED),
        metavar="N",
        help="seed of the initial weights, dropout and --vary-num-steps (default: 1)",
    )
    seed.add_argument(
        "--seeds",
        type=cli.whole_number(0, MAX_SEED),
        nargs="+",
        metavar="N",
        help="train one run per seed, in DIR/seed-N, and print their mean",
    )
    group.add_argument(
        "--jobs",
        type=cli.whole_number(1),
        metavar="N",
        help="number of --seeds to train at a time (default: 1)",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="folder of the run (default: a new one in checkpoints/)",
    )
    where.add_argument("--resume", type=Path, metavar="RUN", help="continue exactly where this run stopped")
    group.add_argument("--overwrite", action="store_true", help="replace the run in --run-dir")
    group.add_argument(
        "--log-interval",
        type=cli.positive_number,
        metavar="SECONDS",
        help="time between progress lines if there is no terminal (default: 30)",
    )


def _add_speed(group: argparse._ArgumentGroup) -> None:
    fastest_or = f"{frameworks.AUTO} (default: the fastest),"
    _add_choice(group, "--framework", FRAMEWORKS, _one_of(FRAMEWORKS, "torch"))
    group.add_argument(
        "--model",
        choices=(frameworks.AUTO, *frameworks.MODELS),
        type=_check_model_name,
        metavar="NAME",
        help=f"{fastest_or} {_one_of(frameworks.MODELS, '')}",
    )
    executions = _one_of(frameworks.EXECUTIONS, "")
    _add_choice(group, "--execution", frameworks.EXECUTIONS, f"{executions} (defaults: see --help-models)")
    _add_choice(
        group,
        "--unroll",
        frameworks.UNROLLS,
        "static (default): a graph of all time steps; loop: a graph of one, repeated",
    )
    _add_choice(group, "--device", frameworks.DEVICES, "auto (default: a GPU if there is one), cpu or cuda")
    _add_choice(
        group,
        "--precision",
        (frameworks.AUTO, *frameworks.PRECISIONS),
        f"{fastest_or} {_one_of(frameworks.PRECISIONS, '')}",
    )
    group.add_argument(
        "--devices",
        type=cli.whole_number(1),
        metavar="N",
        help="devices of this machine to train on (default: 1)",
    )
    _add_choice(
        group,
        "--reduce-precision",
        frameworks.REDUCE_PRECISIONS,
        "precision of gradients sent between devices: fp32 (default) or bf16",
    )


def _check_model_name(name: str) -> str:
    """Return the name of a model, unless it is what other programs give --model: a preset or a cell."""
    for what, flag, names in (("preset", "--config", PRESETS), ("cell", "--cell", CELLS)):
        if (ours := name.lower()) in names:
            raise argparse.ArgumentTypeError(f"{name} is a {what}: {flag} {ours}")
    return name


def _add_choice(group: argparse._ArgumentGroup, flag: str, choices: Iterable[str], text: str) -> None:
    group.add_argument(flag, choices=tuple(choices), metavar="NAME", help=text)


def _one_of(names: Iterable[str], default: str) -> str:
    """Return names as in a sentence, with a note at the default: `lstm (default), gru or elman`."""
    *others, last = (f"{name} (default)" if name == default else name for name in names)
    return f"{', '.join(others)} or {last}" if others else last


if __name__ == "__main__":
    sys.exit(main())
