"""Settings of models that adapt to the test text: dynamic evaluation and the neural cache.

Such a perplexity is of another kind than an ordinary one: the model has learned from the text before a word
when it scores the word.
"""

from dataclasses import dataclass

from ptb_lm.common.errors import UserError

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
        damping = f", damping {self.damping:g}" if self.rule == "rms" else ""
        return f"{self.rule}, segments of {self.segment}, rate {self.rate:g}, decay {self.decay:g}{damping}"


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


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise UserError(problem)
