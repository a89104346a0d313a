"""The learning rate of every step, against torch's schedulers."""

from collections.abc import Callable

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from ptb_lm.model.config import Config
from ptb_lm.model.presets import SMALL

RATE = 0.7
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, int], LRScheduler]] = {
    "one-cycle": lambda optimizer, steps: OneCycleLR(optimizer, RATE, total_steps=steps),
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, T_max=steps),
}


def torch_rates(schedule: str, steps: int) -> list[float]:
    """The rate of each of torch's steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    scheduler, rates = SCHEDULES[schedule](optimizer, steps), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def our_rates(config: Config, steps: int) -> list[float]:
    """The rates of all epochs' steps, in one row."""
    return [
        config.learning_rate_at(epoch, step, steps) for epoch in range(config.epochs) for step in range(steps)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("epochs", "steps"), [(1, 2), (1, 4), (1, 10), (3, 7), (5, 40), (10, 1), (1, 1000)])
def test_every_step_has_the_rate_of_torch_s_scheduler(schedule: str, epochs: int, steps: int) -> None:
    config = SMALL.replace(schedule=schedule, learning_rate=RATE, epochs=epochs)
    expected = torch_rates(schedule, epochs * steps)
    assert our_rates(config, steps) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_one_cycle_rises_from_a_25th_to_its_peak_and_falls_to_next_to_nothing() -> None:
    rates = our_rates(SMALL.replace(schedule="one-cycle", learning_rate=2.5, epochs=10), 100)
    assert rates[0] == pytest.approx(0.1)
    assert rates.index(max(rates)) == 299
    assert max(rates) == pytest.approx(2.5)
    assert rates[-1] == pytest.approx(2.5 / 25e4)
    assert rates[:300] == sorted(rates[:300])
    assert rates[299:] == sorted(rates[299:], reverse=True)


def test_the_exponential_schedule_is_the_same_in_all_steps_of_an_epoch() -> None:
    config = SMALL.replace(epochs=3, decay_after=1, lr_decay=0.5)
    assert our_rates(config, 4) == [1.0] * 4 + [0.5] * 4 + [0.25] * 4
