"""Numbers as people read them."""

import math

import pytest

from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.reporting import formats


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.994, "0.99"),
        (0.9958, "0.996"),
        (0.99962, "0.9996"),
        (1.0, "1.00"),
        (math.exp(1e-16), "1.00"),
        (1.0023, "1.002"),
        (1.0052, "1.01"),
        (0.0123, "0.012"),
    ],
)
def test_an_end_of_an_interval_is_on_the_right_side_of_1(value: float, shown: str) -> None:
    assert formats.end(value) == shown


@pytest.mark.parametrize(
    ("mean", "error", "shown"),
    [
        (0.1, 0.1, "1.11 (0.84–1.46)~"),
        (0.1, 0.01, "1.11 (1.07–1.14)"),
        (0.1, None, "1.11"),
        (-1, 0.1, "0.37 (0.28–0.49)"),
    ],
)
def test_a_ratio_that_does_not_differ_from_1_is_marked(mean: float, error: float | None, shown: str) -> None:
    assert formats.marked_ratio(LogMean(mean=mean, error=error, freedom=4)) == shown
    assert formats.marked_ratio(None) == "–"


@pytest.mark.parametrize(
    ("bound", "least", "most"),
    [
        (0.0497, "4.9 %", "5.0 %"),
        (0.0504, "5.0 %", "5.1 %"),
        (1.05 - 1, "5.0 %", "5.0 %"),
        (0.00999, "0.99 %", "1.0 %"),
        (0.000123, "0.012 %", "0.013 %"),
        (3.21, "321.0 %", "321.0 %"),
        (0, "0 %", "0 %"),
    ],
)
def test_a_bound_is_rounded_so_that_it_holds(bound: float, least: str, most: str) -> None:
    assert formats.bound_percent(bound, up=False) == least
    assert formats.bound_percent(bound, up=True) == most
