"""A language model and a classifier with two gates swapped: what the benchmark must refuse to time."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptb_lm import classifier
from ptb_lm.bench.check import language_question
from ptb_lm.errors import OutOfMemoryError
from ptb_lm.model import backend
from ptb_lm.model.choice import Choice


def swapped(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Swap input and forget gate wherever there are gates."""

    def swap(array: np.ndarray) -> np.ndarray:
        i, f, g, o = np.split(array, 4, axis=-1)
        return np.concatenate([f, i, g, o], axis=-1)

    return {name: swap(array) if name.startswith("lstm.") else array for name, array in weights.items()}


def build(config: Any, weights: Mapping[str, np.ndarray], *, precision: str = "fp32", **ignored: Any) -> Any:
    """Build torch's cudnn model of swapped gates, which speaks of them in the right order."""
    if hasattr(config, "num_steps"):
        model: Any = backend.build(config, swapped(weights), Choice.of(device="cpu", precision=precision))
    else:
        choice = Choice.of(classifier.CLASSIFIERS, device="cpu", precision=precision)
        model = classifier.build(config, swapped(weights), choice)
    export = model.export_weights
    model.export_weights = lambda: swapped(export())
    return model


def build_right(config: Any, weights: Mapping[str, np.ndarray], **chosen: Any) -> Any:
    """Build torch's cudnn model as it is."""
    return backend.build(config, weights, Choice.of(model="cudnn", device="cpu", seed=1))


def build_in_turn(config: Any, weights: Mapping[str, np.ndarray], **chosen: Any) -> Any:
    """Build a right model for the first that asks, and one of swapped gates for all others."""
    asked = Path(os.environ["WRONG_VARIANT_ASKED"])  # a letter for each
    first = not asked.exists()
    with asked.open("a") as file:
        file.write("x")
    return (build_right if first else build)(config, weights)


def build_greedy(config: Any, weights: Mapping[str, np.ndarray], **chosen: Any) -> Any:
    """Build nothing, for want of memory."""
    raise OutOfMemoryError


def build_failing(config: Any, weights: Mapping[str, np.ndarray], **chosen: Any) -> Any:
    """Build a right model that dies when it is timed, after the steps that are compared."""
    model = build_right(config, weights)
    step, calls = model.train_step, iter(range(language_question.STEPS))

    def train_step(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("out of luck\nsecond line")
        return step(*arguments, **more)

    model.train_step = train_step
    return model


def build_stale(config: Any, weights: Mapping[str, np.ndarray], **chosen: Any) -> Any:
    """Build a right model whose steps after those that are compared return the last one's result."""
    model = build_right(config, weights)
    step, calls, kept = model.train_step, iter(range(language_question.STEPS)), []

    def train_step(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is not None:
            kept[:] = [step(*arguments, **more)]
        return kept[0]

    model.train_step = train_step
    return model


def as_given(config: Any, weights: Mapping[str, np.ndarray], **chosen: Any) -> Any:
    """Build nothing; return what was given."""
    return config, weights, chosen
