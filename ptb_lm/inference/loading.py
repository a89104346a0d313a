"""Load a trained model from a run: ptb_lm.load(RUN), and the flags of the commands that use one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_lm.common import cli, streams
from ptb_lm.common.errors import UserError
from ptb_lm.model import fastest, frameworks
from ptb_lm.model.choice import Choice
from ptb_lm.model.rules import SAFE_PRECISION

if TYPE_CHECKING:
    from ptb_lm.inference.language_model import LanguageModel
    from ptb_lm.training.run_config import RunConfig


def load(
    run: str | Path,
    *,
    framework: str | None = None,
    model: str | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> "LanguageModel":
    """Load a trained run, to score, predict, continue and compare text with it.

    For example, with the small run that the package holds:

        model = ptb_lm.load("demo")
        model.score("the judge sues the court").perplexity
        model.predict("these judges", k=5)
        print(*model.generate("the judge", seed=1))

    Any number of threads may use the model at once, and each gets the numbers that it would get alone. If
    several readers use `carry_state`, give each a `copy.copy` of the model. Each call restores torch's
    settings. But without a C++ compiler, threads that torch started for the call still treat denormal numbers
    as zero. The model can be pickled. A process that is forked after this one has loaded a
    model cannot compute, and says so: start it by "spawn" or "forkserver" of multiprocessing.

    Args:
        run: The run directory. "demo": the package's own run, unless a folder of this name is a run.
        framework: The framework that computes; None: that of the training. The numbers are the same.
        model: The way to compute the LSTM; None, or "auto": the fastest that was measured in the precision.
        device: The device; None: that of the training.
        precision: The precision; None: float32, in which the weights are kept, whatever they were trained in.
            "auto": the fastest that was measured on the device. bfloat16 moved perplexities of runs on Penn
            Treebank by up to 5e-4, relatively (results/notes.md), and of small texts by more.

    Returns:
        The model: score, perplexity, predict, generate, nearest, embeddings, to_torch; help(model) describes
        each.

    Raises:
        UserError: It is not a run directory, has no weights, or cannot be computed so here.
    """
    # What these import takes longer than --help of a command should.
    from ptb_lm.inference.language_model import LanguageModel
    from ptb_lm.training import run_folders

    config, vocabulary, weights = run_folders.find(run).read_model()
    choice = choose(
        config,
        framework=framework,
        model=model,
        device=device,
        precision=precision or SAFE_PRECISION,
    )
    return LanguageModel(config.hyperparameters, weights, choice, vocabulary, config.tokenizer, run)


def choose(config: "RunConfig", *, precision: str, **given: str | None) -> Choice:
    """Return the choices by which a trained run computes: those of a user, and the fastest for the rest.

    Args:
        config: Configuration of the run.
        precision: Precision, or "auto".
        given: Other choices by name; None counts as not given. The run has its own framework and device.

    Raises:
        UserError: The run cannot be computed so, or the framework is not installed.
    """
    own = {"framework": config.choice.framework, "device": config.choice.device, "seed": config.choice.seed}
    wanted = {
        name: value
        for name, value in {**given, "precision": precision}.items()
        if value is not None and not (name in fastest.AUTO_CHOICES and value == frameworks.AUTO)
    }
    choice = fastest.choose_safe({**own, **wanted}, cell=config.hyperparameters.cell)
    choice.check_cell(config.hyperparameters.cell, has_weights=True)
    if choice.framework != "torch" and "framework" not in wanted:
        try:
            choice.builder()
        except UserError as error:
            raise UserError(f"{error}; or give --framework torch, which computes the same") from None
    return fastest.choose(choice, config.hyperparameters, fixed=wanted).choice


def add_run(
    parser: cli.Parser,
    *,
    precision: str = "fp32, as the weights are stored; auto: the fastest measured one, even bf16 or fp16",
) -> argparse._ArgumentGroup:
    """Add the run directory, and how it is computed.

    Args:
        parser: The parser of a command.
        precision: The help on the default precision.

    Returns:
        The group of the flags about how it is computed.
    """
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="a run directory, or demo: the small run that the package holds"
    )
    how = parser.add_argument_group("how it is computed")
    how.add_argument(
        "--framework", choices=tuple(frameworks.FRAMEWORKS), help="default: as the run was trained"
    )
    how.add_argument(
        "--model",
        choices=(frameworks.AUTO, *frameworks.MODELS),
        help="default: auto, the fastest that was measured in the precision",
    )
    how.add_argument("--device", choices=frameworks.DEVICES, help="default: as the run was trained")
    how.add_argument(
        "--precision",
        choices=(frameworks.AUTO, *frameworks.PRECISIONS),
        help=f"default: {precision}",
    )
    return how


def load_from_flags(arguments: argparse.Namespace) -> "LanguageModel":
    """Return the model that a command's flags name.

    Raises:
        UserError: As `load` does.
    """
    return load(
        arguments.run,
        framework=arguments.framework,
        model=arguments.model,
        device=arguments.device,
        precision=arguments.precision,
    )


def warn_of_unknown_words(prog: str, model: "LanguageModel", text: str) -> None:
    """Say on stderr which words at the beginning of a text are read as `<unk>`."""
    words = model.tokenizer.prefix_tokens(text)
    unknown = dict.fromkeys(word for word in words if word not in model.vocabulary.ids)
    if unknown and model.vocabulary.unknown is not None:
        streams.print_to_stderr(f"{prog}: not in the vocabulary, and read as <unk>: {', '.join(unknown)}")
