"""A hidden Markov model: sampling, and the exact likelihood of a text.

Shapes: S = states, V = words.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class HiddenMarkovModel:
    """A chain of hidden states, each of which emits one word.

    Attributes:
        initial: [S], the distribution of the first state.
        transition: [S, S], a row per state: the distribution of the next state.
        emission: [S, V], a row per state: the distribution of its word.

    Raises:
        ValueError: The shapes do not fit together, or a row is not a distribution.
    """

    initial: NDArray[np.float64]
    transition: NDArray[np.float64]
    emission: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.transition.shape != self.initial.shape * 2 or self.emission.shape[:-1] != self.initial.shape:
            raise ValueError("initial, transition and emission must have shapes [S], [S, S] and [S, V]")
        for rows in (self.initial, self.transition, self.emission):
            if not (np.all(rows >= 0) and np.allclose(rows.sum(-1), 1.0, rtol=0, atol=1e-9)):
                raise ValueError("every row must be a distribution: no negative number, and the sum 1")

    def sample(self, length: int, seed: int) -> list[int]:
        """Return `length` word ids, drawn from the start; the same on every platform and NumPy version."""
        # NumPy guarantees the raw stream of a bit generator, not that of choice(). A double holds 53 bits.
        uniforms = (np.random.PCG64(seed).random_raw(2 * length) >> np.uint64(11)) * 2.0**-53
        transition, emission = [*map(_bounds, self.transition)], [*map(_bounds, self.emission)]
        bounds = _bounds(self.initial)
        ids = []
        for to_state, to_word in uniforms.reshape(length, 2).tolist():
            state = bisect_right(bounds, to_state)
            ids.append(bisect_right(emission[state], to_word))
            bounds = transition[state]
        return ids

    def log_likelihood(self, ids: Sequence[int]) -> float:
        """Return log p(ids) in nats, by the forward algorithm; -inf if the model cannot emit them."""
        total, predicted_S = 0.0, self.initial
        for word in ids:
            joint_S = predicted_S * self.emission[:, word]
            probability = float(joint_S.sum())  # of this word given all before it
            if probability == 0:
                return -math.inf
            total += math.log(probability)
            predicted_S = joint_S / probability @ self.transition
        return total

    def perplexity(self, ids: Sequence[int]) -> float:
        """Return exp(-log p(w_2..w_n | w_1) / (n - 1)), n > 1: as in a test, all but the first are scored."""
        return math.exp((self.log_likelihood(ids[:1]) - self.log_likelihood(ids)) / (len(ids) - 1))


def _bounds(probabilities: NDArray[np.float64]) -> list[float]:
    """Return where the outcomes' intervals in [0, 1) end, for inverse transform sampling by bisection."""
    # The last possible outcome gets no end, so that a rounded sum cannot send a draw beyond it.
    return list(accumulate(np.trim_zeros(probabilities, "b").tolist()[:-1]))
