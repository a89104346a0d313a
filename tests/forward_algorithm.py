"""The likelihood of a text by a hidden Markov model, which says how well any model can predict it."""

import math
from collections.abc import Sequence

from ptb_lm.data.synthetic import HiddenMarkovModel


def log_likelihood(model: HiddenMarkovModel, ids: Sequence[int]) -> float:
    """log p(ids) in nats, by the forward algorithm; -inf if the model cannot emit them."""
    total, predicted_S = 0.0, model.initial
    for word in ids:
        joint_S = predicted_S * model.emission[:, word]
        probability = float(joint_S.sum())  # of this word given all before it
        if probability == 0:
            return -math.inf
        total += math.log(probability)
        predicted_S = joint_S / probability @ model.transition
    return total


def perplexity(model: HiddenMarkovModel, ids: Sequence[int]) -> float:
    """exp(-log p(w_2..w_n | w_1) / (n - 1)), n > 1: as in a test, all but the first are scored."""
    return math.exp((log_likelihood(model, ids[:1]) - log_likelihood(model, ids)) / (len(ids) - 1))
