"""Code shared by the commands that use a trained model: which model, and unknown words."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_lm.common import cli, streams
from ptb_lm.model import frameworks

if TYPE_CHECKING:  # what it imports takes longer than --help should
    from ptb_lm.inference.language_model import LanguageModel


def add_run(parser: cli.Parser) -> None:
    """Add the run directory, and how it is computed."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="a run directory, or demo: the small run that the package holds"
    )
    how = parser.add_argument_group("how it is computed")
    how.add_argument(
        "--framework", choices=tuple(frameworks.FRAMEWORKS), help="default: as the run was trained"
    )
    how.add_argument("--model", choices=frameworks.MODELS, help="default: as the run was trained")
    how.add_argument("--device", choices=frameworks.DEVICES, help="default: as the run was trained")
    how.add_argument(
        "--precision",
        choices=(frameworks.AUTO, *frameworks.PRECISIONS),
        help="default: fp32, the type of the stored weights; auto: bf16 if the device multiplies in it",
    )


def load(arguments: argparse.Namespace) -> "LanguageModel":
    """Return the model that a command's flags name.

    Raises:
        UserError: As ptb_lm.load does.
    """
    from ptb_lm.inference import loading

    return loading.load(
        arguments.run,
        framework=arguments.framework,
        model=arguments.model,
        device=arguments.device,
        precision=arguments.precision,
    )


def tell_unknown(prog: str, model: "LanguageModel", text: str) -> None:
    """Say on stderr which words at the beginning of a text are read as `<unk>`."""
    words = model.treatment.prefix_tokens(text)
    unknown = dict.fromkeys(word for word in words if word not in model.vocabulary.ids)
    if unknown and model.vocabulary.unknown is not None:
        streams.tell(f"{prog}: not in the vocabulary, and read as <unk>: {', '.join(unknown)}")
