"""What `bench run --add` builds in the tests: right models, wrong ones, and some that fail in other ways."""

import os
from pathlib import Path
from typing import Any

import mutants

from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import OutOfMemoryError
from ptb_lm.model.config import Config


def _task(config: Config, weights: mutants.Weights) -> LanguageTask:
    return LanguageTask(config=config, vocabulary_size=len(weights["embedding"]))


def build(config: Any, weights: mutants.Weights, *, precision: str = "fp32", **ignored: Any) -> Any:
    """Build torch's cudnn model of swapped gates, which speaks of them in the right order."""
    return mutants.GatesSwapped(mutants.right(config, weights, precision=precision), weights)


def build_right(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build torch's cudnn model as it is."""
    return mutants.right(config, weights)


def build_stale(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build a right model whose steps after those that are compared return the last one's result."""
    return mutants.stale_after_a_comparison(_task(config, weights), mutants.right)(config, weights)


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
    """Build a right model that dies after the steps that are compared first."""
    model = build_right(config, weights)
    compared = mutants.steps_of_a_comparison(_task(config, weights), mutants.right)
    step, calls = model.train_step, iter(range(compared))

    def train_step(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("out of luck\nsecond line")
        return step(*arguments, **more)

    model.train_step = train_step
    return model


def as_given(config: Any, weights: mutants.Weights, **chosen: Any) -> Any:
    """Build nothing; return what was given."""
    return config, weights, chosen
