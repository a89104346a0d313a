"""The search for the best setting: it finds a known optimum far beyond its grid, and ends."""

import math

import pytest

from ptb_lm.inference.adaptation.tuning import MAX_EXTENSIONS, minimize_on_grid


def search(optimum: float, values: tuple[float, ...], *, below: float = math.inf) -> list[float]:
    """Return what is measured on the way to an optimum: a parabola over the logarithm."""
    measured = []

    def distance(value: float) -> float:
        measured.append(value)
        return (math.log2(value) - math.log2(optimum)) ** 2 if value else 1e9

    found = minimize_on_grid(distance, values, limit=below)
    assert found == min((math.log2(value) - math.log2(optimum)) ** 2 for value in measured if value)
    return measured


@pytest.mark.parametrize(
    ("optimum", "values", "beyond"),
    [
        (2, (1, 2, 4), []),
        (16, (1, 2, 4), [8, 16, 32]),
        (0.25, (1.0, 2.0, 4.0), [0.5, 0.25, 0.125]),
        (100, (500, 1000), [250, 125, 62]),  # whole numbers stay whole
        (0.02, (0.0, 0.002, 0.005), [0.01, 0.02, 0.04]),
    ],
)
def test_the_best_value_lies_inside_of_what_was_measured(
    optimum: float, values: tuple[float, ...], beyond: list[float]
) -> None:
    measured = search(optimum, values)
    assert measured == [*values, *beyond]
    assert [type(value) for value in measured[len(values) :]] == [type(values[0])] * len(beyond)


def test_it_ends() -> None:
    far = search(1e9, (1.0, 2.0))
    assert far == [2.0**n for n in range(MAX_EXTENSIONS + 2)]
    assert search(1e9, (0.1, 0.4), below=1) == [0.1, 0.4, 0.8]  # and not 1.6
    assert search(0.01, (1, 2)) == [1, 2]  # half of 1 is no whole number
    assert minimize_on_grid(lambda value: value, (0.0, 1.0)) == 0  # nothing lies below zero
    assert search(7, (3.0,)) == [3.0]  # a value that was given stays


def test_equal_values_end_the_search() -> None:
    measured: list[int] = []
    minimize_on_grid(lambda words: measured.append(words) or 1.0, (500, 1000))  # type: ignore[func-returns-value]
    assert measured == [500, 1000, 250]
