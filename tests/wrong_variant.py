"""What `bench run --add` builds in the tests: right models, wrong ones, and some that fail in other ways."""

import os
from pathlib import Path
from typing import Any

import mutants

from ptb_lm.bench.check import problem
from ptb_lm.common.errors import OutOfMemoryError


def build(config: Any, weights: mutants.Weights, *, precision: str = "fp32", **ignored: Any) -> Any:
    """Build torch's cudnn model of swapped gates, which speaks of them in the right order."""
    return mutants.GatesSwapped(mutants.right(config, weights, precision=precision), weights)


def build_right(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build torch's cudnn model as it is."""
    return mutants.right(config, weights)


def build_stale(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build a right model whose steps after those that are compared return the last one's result."""
    return mutants.wrapped(mutants.Stale)(config, weights)


def build_in_turn(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build a right model for the first that asks, and one of swapped gates for all others."""
    asked = Path(os.environ["WRONG_VARIANT_ASKED"])  # a letter for each
    first = not asked.exists()
    with asked.open("a") as file:
        file.write("x")
    return (build_right if first else build)(config, weights)


def build_greedy(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build nothing, for want of memory."""
    raise OutOfMemoryError


def build_failing(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build a right model that dies when it is timed, after the steps that are compared."""
    model = build_right(config, weights)
    step, calls = model.train_step, iter(range(problem.STEPS))

    def train_step(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("out of luck\nsecond line")
        return step(*arguments, **more)

    model.train_step = train_step
    return model


def as_given(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build nothing; return what was given."""
    return config, weights, chosen
