"""Sequence classifiers of small sizes that all differ, with random weights and batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import sequence_classifier
from sequence_classifier import Batch, ClassifierConfig, reference

from ptb_lm.model import reference_updates

STEPS, BATCH = 9, 3
LENGTHS = np.array([9, 2, 6], np.int32)


def make_config(**changes: Any) -> ClassifierConfig:
    """Return a configuration in which no two of a tensor's axes have the same size."""
    sizes: dict[str, Any] = {"input_size": 5, "hidden_sizes": (7, 6), "classes": 4, "learning_rate": 0.01}
    return ClassifierConfig(**{**sizes, **changes})


def random_weights(config: ClassifierConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.uniform(-0.5, 0.5, shape) for name, shape in sequence_classifier.shapes(config).items()}


def random_batch(config: ClassifierConfig, *, lengths: bool, seed: int = 2) -> Batch:
    """Return a random batch; with lengths, its padding is NaN."""
    rng = np.random.default_rng(seed)
    x_BTI = rng.normal(size=(BATCH, STEPS, config.input_size)).astype(np.float32)
    labels_B = rng.integers(config.classes, size=BATCH, dtype=np.int32)
    if not lengths:
        return Batch(x_BTI, labels_B)
    x_BTI[np.arange(STEPS) >= LENGTHS[:, None]] = np.nan
    return Batch(x_BTI, labels_B, LENGTHS)


def trained_by_reference(
    config: ClassifierConfig, batches: Sequence[Batch], *, kerass: bool = False
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return losses and weights of a training; Keras's Adam is algorithm 1 with an epsilon that shrinks."""
    weights, losses = random_weights(config), []
    state = reference_updates.adam_zero_state(weights)
    for step, batch in enumerate(batches, start=1):
        loss, gradients = reference.loss_and_gradients(config, weights, batch)
        weights, state = reference_updates.adam(
            weights,
            gradients,
            state,
            learning_rate=config.learning_rate,
            clip_value=config.clip_value,
            epsilon=1e-8 / np.sqrt(1 - 0.999**step) if kerass else 1e-8,
        )
        losses.append(loss)
    return losses, weights
