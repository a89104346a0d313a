"""Models that adapt to the test text by dynamic evaluation or a neural cache: their settings and flags.

Such a perplexity is of another kind than an ordinary one: the model has learned from the text before a word
when it scores the word.
"""

import argparse
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.model.hyperparameter import LARGEST

RULES = ("sgd", "rms")


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Dynamic evaluation: the weights follow the text by gradient steps, and decay back to the trained ones.

    Krause et al., "Dynamic Evaluation of Neural Sequence Models", 2018. W0 are the trained weights. G is the
    gradient of a segment's negative log likelihood, summed over its words. R is the root of the mean of G²
    over segments of the training text, divided by the mean of all weights' roots. A segment changes the
    weights by

        sgd:  W += decay (W0 - W) - rate G
        rms:  W += min(decay R, 1) (W0 - W) - rate G / (R + damping)

    The default settings are those that were best for medium on Penn Treebank (results/tables.md).

    Raises:
        UserError: A value is impossible.
    """

    rule: str = "sgd"
    segment: int = 10  # words
    rate: float = 0.05
    decay: float = 0.005
    damping: float = 1.0

    def __post_init__(self) -> None:
        _check(self.rule in RULES, f"the rule of dynamic evaluation must be one of {', '.join(RULES)}")
        _check(self.segment >= 1, "a segment must have at least one word")
        _check(self.rate >= 0, "the rate of dynamic evaluation must be at least 0")
        _check(0 <= self.decay <= 1, "the decay of dynamic evaluation must be from 0 to 1")
        _check(self.damping > 0, "the damping of dynamic evaluation must be greater than 0")

    def __str__(self) -> str:
        end = f", damping {self.damping:g}" if self.rule == "rms" else ""
        return f"{self.rule}, segments of {self.segment}, rate {self.rate:g}, decay {self.decay:g}{end}"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A neural cache: words that followed similar hidden states become more likely.

    Grave et al., "Improving Neural Language Models with a Continuous Cache", 2017. Of the last `words` pairs
    of a hidden state h_i and the word after it, the cache makes a distribution in which a word's share is
    the sum of exp(theta h · h_i) over the pairs that have it; it is mixed in with `weight`.

    Raises:
        UserError: A value is impossible.
    """

    # Best for medium on Penn Treebank (results/tables.md).
    words: int = 500
    theta: float = 0.6
    weight: float = 0.1

    def __post_init__(self) -> None:
        _check(self.words >= 1, "the cache must hold at least one word")
        _check(self.theta >= 0, "the cache's theta must be at least 0")
        _check(0 <= self.weight < 1, "the cache's weight must be at least 0 and less than 1")

    def __str__(self) -> str:
        return f"the last {self.words} words, theta {self.theta:g}, weight {self.weight:g}"


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a model adapts to a text. If both are None, it does not adapt."""

    dynamic: Dynamic | None = None
    cache: Cache | None = None

    @property
    def name(self) -> str:
        """Its name in all output."""
        names = ["dynamic evaluation"] * (self.dynamic is not None) + ["a cache"] * (self.cache is not None)
        return " and ".join(names)


def _check(is_possible: bool, problem: str) -> None:
    if not is_possible:
        raise UserError(problem)


KINDS: dict[str, type[Dynamic] | type[Cache]] = {"dynamic": Dynamic, "cache": Cache}
_HELP = {
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
class AdaptationRequest:
    """A request for a perplexity that is adapted to the text.

    Attributes:
        adaptation: The settings: as given, or their defaults.
        held: "dynamic.rate" -> a setting that was given, which tuning leaves alone.
        tune: True to tune the others on the valid split.
        tune_words: The number of its first words to tune on; 0: all.
        out: The folder for the result; None: it is only printed.
    """

    adaptation: Adaptation
    held: dict[str, Any] = field(default_factory=dict)
    tune: bool = False
    tune_words: int = 0
    out: Path | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
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
            text = f"{_HELP[kind][each.name]} (default: {each.default})"
            options: dict[str, Any] = {"choices": RULES}
            if each.name != "rule":
                options = {"type": _value_parser(each), "metavar": "N" if each.type is int else "X"}
            group.add_argument(f"--{kind}-{each.name}", help=text, **options)
    group.add_argument(
        "--tune",
        action="store_true",
        help="first choose the settings that are not given, by the perplexity of the valid split, and print "
        "each trial",
    )
    group.add_argument(
        "--tune-words", type=cli.whole_number(2), metavar="N", help="tune on the first N words (default: all)"
    )
    group.add_argument("--out", type=Path, metavar="DIR", help="write the result to DIR/result.json")


def read_flags(arguments: argparse.Namespace) -> AdaptationRequest | None:
    """Return the request that flags make; None if the model does not adapt.

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
    return AdaptationRequest(
        adaptation=Adaptation(**chosen),
        held=held,
        tune=arguments.tune,
        tune_words=arguments.tune_words or 0,
        out=arguments.out,
    )


def _value_parser(setting: Any) -> Any:
    return cli.whole_number(1, LARGEST[int]) if setting.type is int else _parse_not_negative


def _parse_not_negative(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {value!r}")
    return number
