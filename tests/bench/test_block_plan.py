"""How many steps are timed: long enough blocks, short enough rows, and what is said of a cut."""

import dataclasses

import pytest

from ptb_lm.bench.run.timed_steps import Plan, WarmUp, plan_blocks
from ptb_lm.bench.suites import SUITES

# 5 rounds of at least 5 steps and a second, 3 to warm up
SMALL = dataclasses.replace(*SUITES["quick"].workloads, rounds=5, min_steps=5, min_seconds=1.0)


def warm(step_seconds: float, *, steps: int = 3) -> WarmUp:
    return WarmUp(first_step_seconds=1.0, warm_up_seconds=2.0, warm_up_steps=steps, step_seconds=step_seconds)


@pytest.mark.parametrize(
    ("step_seconds", "limit", "steps", "rounds"),
    [
        (0.0625, 600, 24, 400),  # a second and a half
        (0.3, 600, 5, 400),  # the workload's own number, which takes longer
        (1.0, 15, 3, 5),  # five rounds of three seconds
        (4.0, 15, 1, 3),  # three rounds of a step
        (100.0, 15, 1, 1),  # one step is done whatever it takes
    ],
)
def test_a_block_is_more_than_a_second_and_all_fit_the_limit(
    step_seconds: float, limit: float, steps: int, rounds: int
) -> None:
    planned = plan_blocks(SMALL, step_seconds=step_seconds, limit=limit)
    assert (planned.steps, planned.most_rounds, planned.limit) == (steps, rounds, limit)


def test_a_run_that_goes_on_keeps_the_length_of_its_blocks() -> None:
    planned = plan_blocks(SMALL, step_seconds=0.001, limit=600, steps=7)
    assert planned == Plan(steps=7, full_steps=1500, most_rounds=85_714, limit=600)


def test_no_limit_is_too_long_to_plan_by() -> None:
    assert plan_blocks(SMALL, step_seconds=0.001, limit=1e308).steps == 1500


def test_a_cut_is_said_and_nothing_else() -> None:
    whole = Plan(steps=5, full_steps=5, most_rounds=5, limit=60)
    assert whole.note(warm(0.1), SMALL) is None
    cut = dataclasses.replace(whole, steps=2)
    fewer = dataclasses.replace(whole, most_rounds=4)
    assert fewer.note(warm(0.1), SMALL) == "4 of 5 rounds (limit: 60 s)"
    assert cut.note(warm(0.1), SMALL) == "2 of 5 steps a round (limit: 60 s)"
    short = plan_blocks(SMALL, step_seconds=0.0625, limit=3)  # more than the workload's 5, but not a second
    assert short.note(warm(0.0625), SMALL) == "9 of 24 steps a round (limit: 3 s)"
    more = dataclasses.replace(SMALL, warm_up_steps=9)
    assert whole.note(warm(0.1), more) == "3 of 9 steps to warm up (limit: 12 s)"
