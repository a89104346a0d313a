"""The hidden Markov model against enumeration, sampling and known entropies."""

import bisect
import itertools
import math

import numpy as np
import pytest
from forward_algorithm import log_likelihood, perplexity

from ptb_lm.data import synthetic
from ptb_lm.data.synthetic import HiddenMarkovModel


def random_model(seed, states=3, words=4):
    rng = np.random.default_rng(seed)
    return HiddenMarkovModel(
        initial=rng.dirichlet(np.ones(states)),
        transition=rng.dirichlet(np.full(states, 0.5), size=states),
        emission=rng.dirichlet(np.full(words, 0.5), size=states),
    )


def enumerated_likelihood(model, ids):
    """p(ids), as the sum over every path of hidden states."""
    total = 0.0
    for path in itertools.product(range(len(model.initial)), repeat=len(ids)):
        p = model.initial[path[0]]
        for state, following in itertools.pairwise(path):
            p *= model.transition[state, following]
        for state, word in zip(path, ids, strict=True):
            p *= model.emission[state, word]
        total += p
    return total


@pytest.mark.parametrize("seed", range(5))
def test_log_likelihood_is_the_sum_over_all_hidden_paths(seed):
    model = random_model(seed)
    for ids in ([], [2], [0, 1], [3, 0, 0, 2, 1], [1, 1, 2, 3, 0, 2]):
        expected = math.log(enumerated_likelihood(model, ids)) if ids else 0.0
        assert log_likelihood(model, ids) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_perplexity_scores_every_word_but_the_first():
    model, ids = random_model(3), [1, 3, 0, 2]
    conditional = enumerated_likelihood(model, ids) / enumerated_likelihood(model, ids[:1])
    assert perplexity(model, ids) == pytest.approx(conditional ** (-1 / 3), rel=1e-12)


def test_log_likelihood_of_what_cannot_be_emitted():
    model = HiddenMarkovModel(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.eye(2))
    assert log_likelihood(model, [0, 1, 0, 1]) == 0.0
    assert log_likelihood(model, [0, 1, 1]) == -math.inf


def test_samples_have_the_frequencies_that_log_likelihood_says():
    model, draws, length = random_model(11, states=2, words=3), 4000, 3
    counts = dict.fromkeys(itertools.product(range(3), repeat=length), 0)
    for seed in range(draws):
        counts[tuple(model.sample(length, seed))] += 1
    expected = {s: draws * math.exp(log_likelihood(model, s)) for s in counts}
    # 26 degrees of freedom; the limit is exceeded with probability below 1e-6. The seeds are fixed.
    assert sum((counts[s] - e) ** 2 / e for s, e in expected.items()) < 80


def test_perplexity_of_a_long_sample_converges_to_the_entropy_rate():
    # With states in plain sight the entropy rate is known: sum_i pi_i H(transition_i).
    transition = np.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.05, 0.05, 0.9]])
    model = HiddenMarkovModel(np.array([0.2, 0.3, 0.5]), transition, np.eye(3))
    stationary = np.linalg.matrix_power(transition, 1000)[0]
    rate = -stationary @ (transition * np.log(transition)).sum(-1)
    for length, tolerance in ((1_000, 0.2), (100_000, 0.02)):  # about four standard errors
        assert math.log(perplexity(model, model.sample(length, seed=5))) == pytest.approx(rate, abs=tolerance)


def test_sample_is_a_function_of_its_seed():
    model = random_model(1)
    assert model.sample(50, seed=4) == model.sample(80, seed=4)[:50]
    assert model.sample(50, seed=4) != model.sample(50, seed=5)
    assert model.sample(0, seed=4) == []


def test_no_draw_falls_beyond_the_last_possible_outcome():
    tenths = np.array([0.1] * 10 + [0.0, 0.0])
    largest_draw = 1 - 2.0**-53
    assert list(itertools.accumulate(tenths.tolist()))[9] <= largest_draw  # rounding has lost it
    assert bisect.bisect_right(synthetic._bounds(tenths), largest_draw) == 9
    assert synthetic._bounds(np.array([0.0, 1.0, 0.0])) == [0.0]
