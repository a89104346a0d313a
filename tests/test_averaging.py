"""The moving average's weight, as a function of how far training is."""

import math

import numpy as np
import pytest

from ptb_lm import averaging
from ptb_lm.averaging import AVERAGE_EVERY
from ptb_lm.config import SMALL
from ptb_lm.errors import UserError

HALF_AN_EPOCH = SMALL.replace(average_epochs=0.5)


def test_off_there_is_nothing_to_do() -> None:
    assert not any(averaging.due(SMALL, step) for step in range(1000))
    assert averaging.updates(SMALL, 1000) == 0


def test_it_is_updated_every_ten_steps_of_the_whole_run() -> None:
    due = [step for step in range(1, 50) if averaging.due(HALF_AN_EPOCH, step)]
    assert due == [10, 20, 30, 40]
    assert [averaging.updates(HALF_AN_EPOCH, step) for step in (0, 9, 10, 39, 40)] == [0, 0, 1, 3, 4]


def test_a_run_that_ends_before_the_first_update_is_refused() -> None:
    """At nine steps in all there is nothing to score, at ten there is."""
    short = HALF_AN_EPOCH.replace(epochs=3)
    with pytest.raises(UserError) as caught:
        averaging.check(short, steps_an_epoch=3)
    assert str(caught.value) == (
        "--average-epochs 0.5: the average moves every 10 steps, and this run has 9; train for more "
        "--epochs, or with --average-epochs 0"
    )
    averaging.check(short.replace(epochs=4), steps_an_epoch=3)
    averaging.check(short.replace(epochs=1), steps_an_epoch=10)
    averaging.check(SMALL.replace(epochs=1), steps_an_epoch=1)


def test_it_begins_as_a_plain_mean() -> None:
    """Until the mean's weight falls below that of the horizon."""
    numbers, average = np.random.default_rng(0).normal(size=30), 0.0
    for update, number in enumerate(numbers, start=1):
        weight = averaging.weight(HALF_AN_EPOCH, update=update, steps_an_epoch=1000)
        average += weight * (number - average)
        assert average == pytest.approx(numbers[:update].mean(), rel=1e-12)


def test_after_the_horizon_a_step_counts_a_third_as_much() -> None:
    """1 / e: after horizon / AVERAGE_EVERY updates, the share of what was before."""
    steps_an_epoch, share = 400, 1.0
    for update in range(1000, 1000 + round(0.5 * steps_an_epoch / AVERAGE_EVERY)):
        share *= 1 - averaging.weight(HALF_AN_EPOCH, update=update, steps_an_epoch=steps_an_epoch)
    assert share == pytest.approx(1 / math.e, rel=1e-12)


def test_a_horizon_below_a_step_is_the_weights_themselves() -> None:
    config = SMALL.replace(average_epochs=1e-9)
    assert averaging.weight(config, update=1000, steps_an_epoch=10) == 1.0
