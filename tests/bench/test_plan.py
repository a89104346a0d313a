"""How many steps are timed: long enough blocks, short enough rows, and what is said of a cut."""

import dataclasses

import pytest

from ptb_lm.bench.plan import Plan, plan
from ptb_lm.bench.process import WarmUp
from ptb_lm.bench.rows import Row
from ptb_lm.bench.suites import SUITES

(SMALL,) = SUITES["quick"].workloads  # 5 rounds of at least 5 steps, 3 to warm up


def warm(step_seconds: float, *, steps: int = 3) -> WarmUp:
    return WarmUp(first_step_seconds=1.0, warm_up_seconds=2.0, warm_up_steps=steps, step_seconds=step_seconds)


@pytest.mark.parametrize(
    ("step_seconds", "limit", "steps"),
    [
        (0.0625, 600, 16),  # a second at least
        (0.3, 600, 5),  # the workload's own number, which takes longer
        (1.0, 15, 3),  # five rounds of three seconds
        (100.0, 15, 1),  # one step is done whatever it takes
    ],
)
def test_a_block_is_a_second_at_least_and_five_fit_the_limit(
    step_seconds: float, limit: float, steps: int
) -> None:
    assert plan(SMALL, warm(step_seconds), limit=limit, done=[]).steps == steps


def test_a_run_that_goes_on_keeps_its_blocks_and_what_they_took() -> None:
    done = [
        Row(
            suite="quick",
            workload="small",
            pass_name="train",
            variant="torch/basic",
            baseline="torch/basic",
            status="measured",
            steps=7,
            seconds=seconds,
        )
        for seconds in (2.0, 3.0)
    ]
    planned = plan(SMALL, warm(0.001), limit=600, done=done)
    assert planned == Plan(steps=7, spent=5.0, limit=600)


def test_the_limit_is_spent_when_another_block_would_exceed_it_but_never_before_the_first() -> None:
    assert not Plan(steps=1, spent=0.0, limit=1e-6).is_spent
    assert not Plan(steps=1, spent=8.9, limit=10).is_spent
    assert Plan(steps=1, spent=9.1, limit=10).is_spent


def test_a_cut_is_said_and_nothing_else() -> None:
    whole = Plan(steps=5, spent=0.0, limit=60)
    assert whole.note(warm(0.1), SMALL) is None
    cut = dataclasses.replace(whole, steps=2)
    assert cut.note(warm(0.1), SMALL) == "2 of 5 steps a round, to keep within 60 s"
    more = dataclasses.replace(SMALL, warm_up=9)
    assert whole.note(warm(0.1), more) == "3 of 9 steps to warm up, to keep within 60 s"
