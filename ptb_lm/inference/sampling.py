"""The next word: the likeliest, and one that is drawn.

V = vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.inference.inputs import check_count, check_whole, is_finite


class Prediction(NamedTuple):
    """A word that may come next."""

    word: str
    probability: float

    def __repr__(self) -> str:
        return f"Prediction(word={self.word!r}, probability={self.probability:.4g})"


def likeliest(log_p_V: NDArray[np.floating], vocabulary: Vocabulary, k: int) -> list[Prediction]:
    """Return the k likeliest words by their log-probabilities, the likeliest first."""
    return [Prediction(vocabulary.words[i], float(np.exp(log_p_V[i]))) for i in _order(log_p_V)[:k]]


def _order(log_p_V: NDArray[np.floating]) -> NDArray[np.intp]:
    """Return the words [V], the likeliest first; equally likely ones are in the order of the vocabulary."""
    return np.argsort(-log_p_V, kind="stable")


class Sampler:
    """Draws words from distributions, which it may sharpen and cut first.

    Args:
        vocabulary_size: V.
        temperature: A divisor of log-probabilities. 0: the likeliest word.
        top_k: The number of likeliest words that may be drawn. None: all.
        top_p: A probability: of those words, only the fewest likeliest that have it together may be drawn.
            None: all.
        forbidden: Words that are never drawn.
        seed: The seed of the random numbers, or their generator; None: other ones each time.

    Raises:
        UserError: A value is impossible.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        forbidden: Sequence[int] = (),
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if not (is_finite(temperature) and temperature >= 0):
            raise UserError(f"the temperature must be a finite number of at least 0, not {temperature!r}")
        if top_k is not None:
            check_count(top_k, vocabulary_size, name="top-k")
        if top_p is not None and not (is_finite(top_p) and 0 < top_p <= 1):
            raise UserError(f"top-p must be above 0 and at most 1, not {top_p!r}")
        if seed is not None and not isinstance(seed, np.random.Generator):
            check_whole(seed, least=0, name="the seed")
        self.temperature, self.top_k, self.top_p = float(temperature), top_k, top_p
        self.forbidden = list(forbidden)
        self.generator = np.random.default_rng(seed)

    def __call__(self, log_p_V: NDArray[np.floating]) -> int:
        """Return a word, drawn from its log-probabilities."""
        if self.temperature == 0:
            return int(np.argmax(self._without_forbidden(log_p_V)))
        cumulative_V = np.cumsum(self.distribution(log_p_V))
        # The first word beyond the number drawn; one of probability 0 never is.
        return int(np.searchsorted(cumulative_V, self.generator.random() * cumulative_V[-1], side="right"))

    def distribution(self, log_p_V: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the probabilities [V] that words are drawn with, at a temperature above 0."""
        log_p_V = self._without_forbidden(log_p_V)
        with np.errstate(over="ignore", under="ignore"):  # at one near 0: exp(-inf) is meant
            p_V = np.exp((log_p_V - log_p_V.max()) / self.temperature)
        if self.top_k is not None or self.top_p is not None:
            order_V = _order(log_p_V)  # not by p_V: at a very high temperature all p are 1
            if self.top_k is not None:
                p_V[order_V[self.top_k :]] = 0
            if self.top_p is not None:
                before_V = np.cumsum(p_V[order_V]) - p_V[order_V]
                p_V[order_V[before_V >= self.top_p * p_V.sum()]] = 0
        return np.asarray(p_V / p_V.sum())

    def _without_forbidden(self, log_p_V: NDArray[np.floating]) -> NDArray[np.float64]:
        allowed_V = log_p_V.astype(np.float64)
        allowed_V[self.forbidden] = -np.inf
        return allowed_V
