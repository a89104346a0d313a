"""Models that adapt to the test text by dynamic evaluation or a neural cache: their settings and flags.

Such a perplexity is of another kind than an ordinary one: the model has learned from the text before a word
when it scores the word.
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.model.hyperparameter import Hyperparameter, hyperparameter, hyperparameters


@dataclass(frozen=True, kw_only=True)
class DynamicEvaluation:
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

    kind: ClassVar[str] = "dynamic"
    rule: str = hyperparameter(
        "sgd",
        "sgd: gradient steps; rms: each divided by the size of a weight's gradients in training",
        choices=("sgd", "rms"),
    )
    segment: int = hyperparameter(10, "words between two steps", minimum=1)
    rate: float = hyperparameter(0.05, "size of a step, for the loss summed over the segment", minimum=0)
    decay: float = hyperparameter(
        0.005,
        "how far each step goes back to the trained weights: 0 not at all, 1 all the way",
        minimum=0,
        maximum=1,
    )
    damping: float = hyperparameter(
        1.0, "for --dynamic-rule rms: the larger it is, the more alike are the steps of all weights", above=0
    )

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        end = f", damping {self.damping:g}" if self.rule == "rms" else ""
        return f"{self.rule}, segments of {self.segment}, rate {self.rate:g}, decay {self.decay:g}{end}"


@dataclass(frozen=True, kw_only=True)
class NeuralCache:
    """A neural cache: words that followed similar hidden states become more likely.

    Grave et al., "Improving Neural Language Models with a Continuous Cache", 2017. Of the last `words` pairs
    of a hidden state h_i and the word after it, the cache makes a distribution in which a word's share is
    the sum of exp(theta h · h_i) over the pairs that have it; it is mixed in with `weight`.

    Raises:
        UserError: A value is impossible.
    """

    kind: ClassVar[str] = "cache"
    # Best for medium on Penn Treebank (results/tables.md).
    words: int = hyperparameter(500, "words that the cache holds", minimum=1)
    theta: float = hyperparameter(
        0.6, "how much more a similar hidden state counts than a different one", minimum=0
    )
    weight: float = hyperparameter(0.1, "share of the cache in a word's probability", minimum=0, maximum=1)

    def __post_init__(self) -> None:
        _check(self)
        if self.weight == 1:  # a word that the cache lacks would be impossible
            raise UserError("--cache-weight must be less than 1")

    def __str__(self) -> str:
        return f"the last {self.words} words, theta {self.theta:g}, weight {self.weight:g}"


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a model adapts to a text. If both are None, it does not adapt."""

    dynamic: DynamicEvaluation | None = None
    cache: NeuralCache | None = None

    @property
    def name(self) -> str:
        """Its name in all output."""
        names = ["dynamic evaluation"] * (self.dynamic is not None) + ["a cache"] * (self.cache is not None)
        return " and ".join(names)


KINDS: dict[str, Any] = {each.kind: each for each in (DynamicEvaluation, NeuralCache)}


def _settings(kind: str) -> Sequence[Hyperparameter]:
    """Return the settings of a kind by the names of their flags, as dynamic_rate."""
    return [replace(each, name=f"{kind}_{each.name}") for each in hyperparameters(KINDS[kind])]


def _check(settings: DynamicEvaluation | NeuralCache) -> None:
    for each, value in zip(_settings(settings.kind), astuple(settings), strict=True):
        each.check(value)


@dataclass(frozen=True, kw_only=True)
class AdaptationRequest:
    """A request for a perplexity that is adapted to the text.

    Attributes:
        adaptation: The settings: as given, or their defaults.
        fixed: Names of the settings that were given, such as dynamic_rate, which tuning leaves alone.
        tune: True to tune the others on the valid split.
        tune_words: The number of its first words to tune on; None: all.
        out: The folder for the result; None: it is only printed.
    """

    adaptation: Adaptation
    fixed: Collection[str]
    tune: bool
    tune_words: int | None
    out: Path | None

    @property
    def needs_corpus(self) -> bool:
        """Whether the run's data are needed for any text: to tune, or for the rule rms."""
        dynamic = self.adaptation.dynamic
        return self.tune or (dynamic is not None and dynamic.rule == "rms")


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
        for each, default in zip(_settings(kind), astuple(settings()), strict=True):
            group.add_argument(each.flag, help=f"{each.help} (default: {default})", **each.argument)
    group.add_argument(
        "--tune",
        action="store_true",
        help="first choose all settings that no flag gives, except the damping, by the perplexity of "
        "the valid split, and print each trial",
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
    fixed = set[str]()
    for kind, settings in KINDS.items():
        given = {
            each.name: value
            for each in hyperparameters(settings)
            if (value := getattr(arguments, f"{kind}_{each.name}")) is not None
        }
        if getattr(arguments, kind):
            chosen[kind] = settings(**given)
            fixed |= {f"{kind}_{name}" for name in given}
        elif given:
            raise UserError(f"--{kind}-{next(iter(given))} needs --{kind}")
    tries_rms = arguments.tune and "dynamic_rule" not in fixed
    if "dynamic_damping" in fixed and chosen["dynamic"].rule != "rms" and not tries_rms:
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
        fixed=fixed,
        tune=arguments.tune,
        tune_words=arguments.tune_words,
        out=arguments.out,
    )
