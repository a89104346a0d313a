"""Words are drawn with the probabilities that they are said to be drawn with."""

from fractions import Fraction

import numpy as np
import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.inference.sampling import Sampler

P = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOG_P = np.log(P)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2),
        ({"temperature": 2.0}, P**0.5),
        ({"top_k": 2}, [0, 0.4, 0, 0.25, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 5}, P),
        # The fewest that have so much together: one more than is below it.
        ({"top_p": 0.39}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.41}, [0, 0.4, 0, 0.25, 0]),
        ({"top_p": 0.8}, [0, 0.4, 0, 0.25, 0.2]),
        ({"top_p": 1.0}, P),
        # After the temperature, and after top_k: of what is left.
        ({"top_k": 3, "top_p": 0.7}, [0, 0.4, 0, 0.25, 0]),
        ({"temperature": 0.5, "top_p": 0.58}, [0, 1, 0, 0, 0]),
        ({"forbidden": [1]}, [0.05, 0, 0.1, 0.25, 0.2]),
        ({"forbidden": [1, 3], "top_k": 1}, [0, 0, 0, 0, 1]),
        ({"temperature": 1e-300}, [0, 1, 0, 0, 0]),
        ({"temperature": Fraction(1, 2)}, P**2),
        ({"temperature": 1e300, "top_k": 2}, [0, 1, 0, 1, 0]),
    ],
    ids=str,
)
def test_the_distribution_is_sharpened_and_cut(choice: dict[str, float], expected: list[float]) -> None:
    sampler = Sampler(5, seed=1, **choice)
    wanted = np.array(expected) / np.sum(expected)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(sampler.distribution(LOG_P), wanted, rtol=1e-12)
    # Drawn as often, within five standard deviations, and what may not be drawn never.
    draws = 2_000
    counts = np.bincount([sampler(LOG_P) for _ in range(draws)], minlength=5)
    assert (np.abs(counts - draws * wanted) <= 5 * np.sqrt(draws * wanted * (1 - wanted)) + 1e-9).all()


def test_words_that_have_just_as_much_together_are_enough() -> None:
    drawn = Sampler(4, top_p=0.5).distribution(np.log(np.full(4, 0.25)))
    assert drawn.tolist() == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize("temperature", [-1, float("nan"), 10**400, True])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(UserError, match="temperature"):
        Sampler(5, temperature=temperature)


def test_temperature_0_is_the_likeliest_word_that_may_be_drawn() -> None:
    assert Sampler(5, temperature=0)(LOG_P) == 1
    assert Sampler(5, temperature=0, forbidden=[1])(LOG_P) == 3


def test_a_seed_gives_the_same_words_and_a_generator_goes_on() -> None:
    def draw(seed: int | np.random.Generator | None) -> list[int]:
        sampler = Sampler(5, seed=seed)
        return [sampler(LOG_P) for _ in range(50)]

    assert draw(1) == draw(1) != draw(2)
    assert draw(None) != draw(None)
    generator = np.random.default_rng(1)
    assert draw(generator) == draw(1)
    assert draw(generator) != draw(1)


@pytest.mark.parametrize("choice", [{"top_k": 0}, {"top_k": 6}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_impossible_values_are_refused(choice: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must be"):
        Sampler(5, **choice)
