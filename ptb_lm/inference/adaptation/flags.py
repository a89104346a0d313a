"""The flags of `evaluate` that let a model adapt to the text, and what they ask for."""

import argparse
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.inference.adaptation.settings import RULES, Adaptation, Cache, Dynamic
from ptb_lm.model.hyperparameter import LARGEST

KINDS: dict[str, type[Dynamic] | type[Cache]] = {"dynamic": Dynamic, "cache": Cache}
_TEXT = {
    "dynamic": {
        "rule": "sgd: gradient steps; rms: each divided by the size of a weight's gradients in training",
        "segment": "words between two steps",
        "rate": "size of a step, for the loss summed over the segment",
        "decay": "how far each step goes back to the trained weights: 0 not at all, 1 all the way",
        "damping": "for --dynamic-rule rms: the larger it is, the more alike are the steps of all weights",
    },
    "cache": {
        "words": "words that the cache holds",
        "theta": "how much more a similar hidden state counts than a different one",
        "weight": "share of the cache in a word's probability",
    },
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for.

    Attributes:
        adaptation: The settings: as given, or their defaults.
        held: "dynamic.rate" -> a setting that was given, which tuning leaves alone.
        tune: Whether to tune the others on the valid split.
        tune_words: How many of its first words to tune on; 0: all.
        out: The folder for the result; None: it is only printed.
    """

    adaptation: Adaptation
    held: dict[str, Any] = field(default_factory=dict)
    tune: bool = False
    tune_words: int = 0
    out: Path | None = None


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags, all None or False by default."""
    group = parser.add_argument_group(
        "adaptation to the text",
        "Computed by torch in float32. Do not compare its perplexity with an ordinary one.",
    )
    group.add_argument(
        "--dynamic",
        action="store_true",
        help="dynamic evaluation (Krause et al., 2018): do a gradient step after each segment",
    )
    group.add_argument(
        "--cache",
        action="store_true",
        help="neural cache (Grave et al., 2017): words that followed similar hidden states get more likely",
    )
    for kind, settings in KINDS.items():
        for each in fields(settings):
            text = f"{_TEXT[kind][each.name]} (default: {each.default})"
            options: dict[str, Any] = {"choices": RULES} if each.name == "rule" else {"type": _type(each)}
            if each.name != "rule":
                options["metavar"] = "N" if each.type is int else "X"
            group.add_argument(f"--{kind}-{each.name}", help=text, **options)
    group.add_argument(
        "--tune",
        action="store_true",
        help="first choose the settings that are not given, by the perplexity of the valid split, and print "
        "each trial",
    )
    group.add_argument(
        "--tune-words", type=cli.whole(2), metavar="N", help="tune on the first N words (default: all)"
    )
    group.add_argument("--out", type=Path, metavar="DIR", help="write the result to DIR/result.json")


def read(arguments: argparse.Namespace) -> Request | None:
    """Return what the flags ask for; None if the model does not adapt.

    Raises:
        UserError: A flag stands without the one that it belongs to, or does not go with another.
    """
    chosen: dict[str, Any] = {}
    held: dict[str, Any] = {}
    for kind, settings in KINDS.items():
        names = [each.name for each in fields(settings)]
        given = {name: getattr(arguments, f"{kind}_{name}") for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        if getattr(arguments, kind):
            chosen[kind] = settings(**given)
            held |= {f"{kind}.{name}": value for name, value in given.items()}
        elif given:
            raise UserError(f"--{kind}-{next(iter(given))} needs --{kind}")
    tries_rms = arguments.tune and "dynamic.rule" not in held
    if "dynamic.damping" in held and chosen["dynamic"].rule != "rms" and not tries_rms:
        raise UserError("--dynamic-damping needs --dynamic-rule rms")
    if arguments.tune_words is not None and not arguments.tune:
        raise UserError("--tune-words needs --tune")
    if not chosen:
        for name in ("tune", "out"):
            if getattr(arguments, name):
                raise UserError(f"--{name} needs --dynamic or --cache")
        return None
    for name in ("model", "framework", "execution", "precision"):
        if getattr(arguments, name):
            raise UserError(
                f"--{name} cannot be combined with --dynamic or --cache, which are computed by "
                "torch in float32"
            )
    if arguments.tune and arguments.text is None and arguments.split == "valid":
        raise UserError("--tune chooses the settings on the valid split, so score another split")
    return Request(
        adaptation=Adaptation(**chosen),
        held=held,
        tune=arguments.tune,
        tune_words=arguments.tune_words or 0,
        out=arguments.out,
    )


def _type(setting: Any) -> Any:
    return cli.whole(1, LARGEST[int]) if setting.type is int else _not_negative


def _not_negative(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {value!r}")
    return number
