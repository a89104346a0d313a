"""Whether a variant computes what it should: compared with the NumPy reference before the clock starts.

The comparison is on a cut of the workload, with its layers but few steps and words, so that the reference,
which is slow, can follow.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm import classifier
from ptb_lm.bench.bounds import BOUNDS
from ptb_lm.bench.workloads import ClassifierTask, LanguageTask, Task
from ptb_lm.classifier import Classifier
from ptb_lm.classifier import reference as reference_classifier
from ptb_lm.data import corpus
from ptb_lm.model import parameters, reference
from ptb_lm.model.backend import Backend

# Of the losses after steps of Adam, at least: libraries put its epsilon in one of two places, which moves a
# weight whose gradient is as small as that by another step. A missing step shows many times over.
TRAINING_BOUND = 1e-3

TRAINING_STEPS = 3  # of a classifier
TRAINED = "loss after"

Build = Callable[[Any, Mapping[str, NDArray[Any]]], Any]


class WrongError(Exception):
    """A variant computes something else than the reference."""


def check(task: Task, build: Build, *, precision: str, seed: int) -> dict[str, float]:
    """Compare a variant's losses and gradients with the reference's; return the errors.

    Args:
        task: What the variant is to do.
        build: Builds the variant, from a configuration and canonical weights.
        precision: A name in BOUNDS.
        seed: Of weights and inputs.

    Returns:
        loss_error: relative, of the initial weights; gradient_error: the largest of all parameters', each
        relative to the norm of its gradient; bound: that neither exceeds; training_error: that of the losses
        after a classifier's training steps.

    Raises:
        WrongError: One of them does, and which.
    """
    if isinstance(task, LanguageTask):
        errors = _language(task, build, seed=seed)
    else:
        errors = _classifier(task, build, seed=seed)
    for what, error in errors.items():
        bound = BOUNDS[precision].cut
        if what.startswith(TRAINED):
            bound = max(bound, TRAINING_BOUND)
        if not error <= bound:  # NaN is wrong, too
            raise WrongError(
                f"its {what} is off by {error:.1e} from the NumPy reference's, more than {bound:.0e}"
            )
    return {
        "loss_error": max(error for what, error in errors.items() if what.startswith("loss in")),
        "training_error": max((e for what, e in errors.items() if what.startswith(TRAINED)), default=0.0),
        "gradient_error": max(error for what, error in errors.items() if what.startswith("gradient")),
        "bound": BOUNDS[precision].cut,
    }


def random_weights(shapes: parameters.Shapes, seed: int, dtype: type[np.floating]) -> dict[str, NDArray[Any]]:
    """Draw weights that make gates, state and outputs of order one whatever the widths, biases too.

    What is left out or swapped then shows. In values that float32 holds, so that the reference starts from
    the same.
    """
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        inputs = shape[0] if name.endswith("kernel") else 1
        weights[name] = rng.normal(0, 1 / np.sqrt(inputs), shape).astype(np.float32).astype(dtype)
    return weights


def _language(task: LanguageTask, build: Build, *, seed: int) -> dict[str, float]:
    # The gradient is read off a step of SGD, clipped to half its norm. A rate well above 1 keeps the rounding
    # of the weights out of it.
    rate, vocabulary, batch, steps = 64.0, 31, 3, 4
    config = task.config.replace(batch_size=batch, num_steps=steps, keep_prob=1.0)
    weights = random_weights(parameters.shapes(config, vocabulary), seed, np.float64)
    rng = np.random.default_rng(seed)
    ids_BL = rng.integers(vocabulary, size=(batch, 2 * steps + 1), dtype=np.int32)
    windows = list(corpus.windows(ids_BL, steps))
    x_BT, y_BT = windows[0]
    zero = reference.zero_state(weights, batch)
    expected, gradients, _ = reference.loss_and_gradients(weights, x_BT, y_BT, zero)
    _, norm = reference.sgd_update(weights, gradients, learning_rate=1.0, max_grad_norm=1.0)
    backend: Backend = build(config.replace(max_grad_norm=norm / 2), weights)
    # As they are timed: from where the model wants the text kept.
    placed = list(corpus.windows(backend.place(ids_BL), steps))

    errors: dict[str, float] = {}
    state, expected_state = backend.zero_state(batch), zero
    for index, (words, (x_next_BT, y_next_BT)) in enumerate(zip(placed, windows, strict=True)):
        state, loss = backend.evaluate_step(*words, state)
        nll = backend.read([loss])[0].nll / batch
        score, _, expected_state = reference.loss_and_gradients(weights, x_next_BT, y_next_BT, expected_state)
        errors[f"loss in window {index}"] = abs(nll - score) / score

    # Steps that move nothing, one after the other: what a step may keep for the next (a state, a captured
    # graph) must not show.
    state, expected_state = backend.zero_state(batch), zero
    for index, (words, (x_next_BT, y_next_BT)) in enumerate(zip(placed, windows, strict=True)):
        state, loss = backend.train_step(*words, state, learning_rate=0.0)
        nll = backend.read([loss])[0].nll / batch
        score, _, expected_state = reference.loss_and_gradients(weights, x_next_BT, y_next_BT, expected_state)
        errors[f"loss in training window {index}"] = abs(nll - score) / score

    _, loss = backend.train_step(*placed[0], backend.zero_state(batch), learning_rate=rate)
    errors["loss in training"] = abs(backend.read([loss])[0].nll / batch - expected) / expected
    after = backend.export_weights()
    return errors | _gradient_errors({n: 2 * (w - after[n]) / rate for n, w in weights.items()}, gradients)


def _classifier(task: ClassifierTask, build: Build, *, seed: int) -> dict[str, float]:
    cut = dataclasses.replace(
        task,
        batch_size=3,
        steps=12,
        shortest=None if task.shortest is None else 9,
        labels=min(task.labels, 4),
        config=dataclasses.replace(task.config, keep_prob=1.0),
    )
    weights = random_weights(classifier.shapes(cut.config), seed, np.float64)
    batch = cut.batch(seed=seed)
    if batch.lengths_B is not None:
        # The padding must not count, whatever it holds.
        batch.x_BTI[np.arange(cut.steps) >= batch.lengths_B[:, None]] = np.nan
    model: Classifier = build(cut.config, weights)
    expected, gradients = reference_classifier.loss_and_gradients(cut.config, weights, batch)
    loss, found = model.loss_and_gradients(batch)
    errors = {"loss in a gradient": abs(loss - expected) / expected, **_gradient_errors(found, gradients)}
    (loss,) = model.read([model.forward_step(batch)])
    errors["loss in a forward step"] = abs(loss - expected) / expected
    # Whether a step clips and moves the weights as it should shows in the losses that follow.
    adam = reference_classifier.adam_start(weights)
    trained: Mapping[str, NDArray[Any]] = weights
    for step in range(TRAINING_STEPS):
        expected, gradients = reference_classifier.loss_and_gradients(cut.config, trained, batch)
        trained, adam = reference_classifier.adam(
            trained,
            gradients,
            adam,
            learning_rate=cut.config.learning_rate,
            clip_value=cut.config.clip_value,
        )
        (loss,) = model.read([model.train_step(batch)])
        what = f"{TRAINED} {step} training steps" if step else "loss in training"
        errors[what] = abs(loss - expected) / expected
    return errors


def _gradient_errors(
    found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]
) -> dict[str, float]:
    whole = np.sqrt(sum(np.square(gradient).sum() for gradient in expected.values()))
    errors = {}
    for name, gradient in expected.items():
        # A gradient far smaller than the others is known less well, relative to itself.
        norm = max(np.linalg.norm(gradient), whole / 100)
        error = np.linalg.norm(found[name].astype(np.float64) - gradient)
        errors[f"gradient of {name}"] = float(error / norm)
    return errors
