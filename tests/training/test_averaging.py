"""The moving average's weight, as a function of how far training is."""

import math
from typing import Any

import numpy as np
import pytest

from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model.presets import SMALL
from ptb_lm.training.averaging import AVERAGE_EVERY, Averages, interval, weight
from ptb_lm.training.metrics import Progress
from ptb_lm.training.window_plan import WindowPlan


class Recorder:
    """The part of a backend that moves averages: of one weight, which is the step that was done last."""

    def __init__(self) -> None:
        self.steps_done, self.moved = 0, list[tuple[int, float]]()

    def update_averages(self, w: float) -> None:
        self.moved.append((self.steps_done, w))


def moves(horizon: float, *, steps_per_epoch: int, steps: int) -> list[tuple[int, float]]:
    """After which steps the averages move, and how far."""
    backend: Any = Recorder()
    ids = np.zeros(steps_per_epoch + 1, np.int32)  # a row, whose windows have a target each
    data = Corpus(Vocabulary(["<eos>"]), {"train": ids, "valid": np.zeros(9, np.int32), "test": ids})
    config = SMALL.replace(average_epochs=horizon, batch_size=1, num_steps=1)
    averages = Averages(backend, config, WindowPlan(data, config, seed=1))
    if averages.start_step(Progress()) is None:
        return []
    for backend.steps_done in range(1, steps + 1):
        averages.update_if_due(backend.steps_done)
    moved: list[tuple[int, float]] = backend.moved
    return moved


def test_off_there_is_nothing_to_do() -> None:
    assert moves(0, steps_per_epoch=30, steps=1000) == []


@pytest.mark.parametrize(
    ("steps_per_epoch", "expected"),
    [(30, [10, 20, 30, 40]), (10, [10, 20, 30, 40]), (13, [10, 20, 30, 40]), (9, [9, 18, 27, 36, 45])],
)
def test_they_move_every_ten_steps_of_the_whole_run_or_once_a_shorter_epoch(
    steps_per_epoch: int, expected: list[int]
) -> None:
    assert [step for step, _ in moves(0.5, steps_per_epoch=steps_per_epoch, steps=49)] == expected
    assert interval(steps_per_epoch) == min(10, steps_per_epoch)


def test_it_begins_as_a_mean_that_favours_what_came_last() -> None:
    """By the cube of how late it came, or nearly; until the horizon is shorter than that."""
    numbers, average = np.random.default_rng(0).normal(size=30), 0.0
    late = np.arange(1, 31) * np.arange(2, 32) * np.arange(3, 33)
    for update, (_, w) in enumerate(moves(0.5, steps_per_epoch=1000, steps=300), start=1):
        average += w * (numbers[update - 1] - average)
        assert average == pytest.approx(np.average(numbers[:update], weights=late[:update]), rel=1e-12)


@pytest.mark.parametrize("steps_per_epoch", [400, 10, 6])
def test_after_the_horizon_a_step_counts_a_third_as_much(steps_per_epoch: int) -> None:
    """1 / e: after so many epochs of updates, the share of what was before."""
    share = 1.0
    for update in range(1000, 1000 + 3 * steps_per_epoch // min(AVERAGE_EVERY, steps_per_epoch)):
        share *= 1 - weight(3, update=update, steps_per_epoch=steps_per_epoch)
    assert share == pytest.approx(1 / math.e, rel=1e-12)


def test_a_horizon_below_a_step_is_the_weights_themselves() -> None:
    assert weight(1e-9, update=1000, steps_per_epoch=10) == 1.0
