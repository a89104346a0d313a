"""Training steps with all kinds of regularisers, and what they must compute: for the backends' tests."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from support import random_weights

from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.model import backend, cells, reference, reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import mask_specs

VOCABULARY = 11

PENALTIES = {"activation_penalty": 2.0, "slowness_penalty": 15.0}
DECAY = {"weight_decay": 3e-2}
ADAM = {"optimizer": "adam"}
# As many probabilities as places, and as many widths as layers, that none is taken for another.
DROPOUT = {
    "input_keep_prob": 0.8,
    "between_keep_prob": 0.7,
    "output_keep_prob": 0.6,
    "embedding_keep_prob": 0.9,
    "recurrent_keep_prob": 0.75,
}
SIZES = {"num_layers": 3, "layer_sizes": (8, 5, 6)}
LENGTHS_VARY = {"vary_num_steps": True}
AWD = {**SIZES, **DROPOUT, **PENALTIES, **DECAY, **LENGTHS_VARY, "variational": True, "tie_weights": True}
# Those that each framework computes.
CASES: dict[str, dict[str, Any]] = {
    "activation penalty": {"activation_penalty": 2.0},
    "slowness penalty": {"slowness_penalty": 15.0},
    "penalties behind masks": {**PENALTIES, "keep_prob": 0.6},
    "weight decay": DECAY,
    "lengths": LENGTHS_VARY,
    "adam": ADAM,
    "adam, tied": {**ADAM, "tie_weights": True},
    "awd": AWD,
    "awd by adam": {**AWD, **ADAM},
    "all but ties, by adam": {**AWD, **ADAM, "tie_weights": False, "variational": False},
}

# Every way to compute a cell.
COMPUTED = [
    (framework, model, cell)
    for cell, row in cells.CELLS.items()
    for framework, models in row.layers.items()
    for model in models
]


def build(config: Config, *, vocabulary: int = VOCABULARY, seed: int = 3, **choice: str | None) -> Any:
    """Build a model, on a CPU by default, with the weights of `random_weights` with the seed 1."""
    weights = random_weights(config, vocabulary, seed=1)
    return backend.build(config, weights, Choice.create(seed=seed, **{"device": "cpu", **choice}))


def export_all(built: Any, state: Any) -> dict[str, np.ndarray]:
    """Return all that a model holds after training, but for averages: weights and training state."""
    return {**built.export_weights(), **built.export_training_state(state)}


@contextlib.contextmanager
def skip_what_a_gpu_refuses(device: str) -> Iterator[None]:
    """Skip, with the reason, what is built on a GPU that cannot compute it."""
    try:
        yield
    except UserError as error:
        if device == "cuda":
            pytest.skip(str(error))
        raise


def record_executed_windows(built: Any) -> list[tuple[int, ...]]:
    """Return a list to which each window is added, by its steps and rows, that runs as --execution says."""
    windows, stack = list[tuple[int, ...]](), built.network.executed_stack

    def note_shape(x_TBE: Any, state: Any, **more: Any) -> Any:
        windows.append(tuple(x_TBE.shape[:2]))
        return stack(x_TBE, state, **more)

    built.network.executed_stack = note_shape
    return windows


def cut_random_windows(config: Config, lengths: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return consecutive windows of random words: of these lengths, if they vary."""
    if not config.vary_num_steps:
        lengths = [config.num_steps] * len(lengths)
    rng = np.random.default_rng(2)
    rows_BL = rng.integers(VOCABULARY, size=(config.batch_size, sum(lengths) + 1), dtype=np.int32)
    return list(corpus.cut_windows(rows_BL, itertools.accumulate(lengths, initial=0)))


def next_masks(built: Any, steps: int) -> dict[str, Any]:
    """The masks of a model's next window, as the reference takes them."""
    config = built.config
    kept = built.next_masks(config.batch_size, steps)
    words = len(built.export_weights()["softmax.bias"])
    specs = mask_specs(config, words, batch=config.batch_size, steps=steps)
    units = [mask / spec.keep_prob for mask, spec in zip(kept.units, specs.units, strict=True)]
    weights = {name: kept.weights[name] / spec.keep_prob for name, spec in specs.weights.items()}
    return {"masks": units or None, "weight_masks": weights}


def rate_of(config: Config) -> float:
    return 0.02 if config.optimizer == "adam" else 0.3


def assert_steps_equal_the_reference(
    built: Any,
    windows: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    bound: float,
    rate: float | None = None,
) -> None:
    """Loss, norm, every weight and the carried state, with the masks that the model says it will draw.

    The model has the weights of `random_weights` with the seed 1. Some steps are clipped, and others are not.
    """
    config, rate = built.config, rate or rate_of(built.config)
    words, batch = len(built.export_weights()["softmax.bias"]), config.batch_size
    weights = random_weights(config, words, seed=1)
    state, expected_state = built.zero_state(batch), reference.zero_state(weights, batch)
    adam, clipped = reference_updates.adam_zero_state(weights), []
    for step, (x_BT, y_BT) in enumerate(windows):
        steps = x_BT.shape[1]
        masks = next_masks(built, steps)
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=rate)
        expected, gradients, expected_state = reference.loss_and_gradients(
            weights,
            x_BT,
            y_BT,
            expected_state,
            **reference.settings(config),
            **masks,
        )
        factor = steps / config.num_steps if config.vary_num_steps else 1.0
        max_grad_norm, decay = config.max_grad_norm, steps * config.weight_decay
        if config.optimizer == "adam":
            weights, adam, norm = adam_update(
                weights,
                {name: gradient / factor for name, gradient in gradients.items()},
                adam,
                learning_rate=rate * factor,
                max_grad_norm=max_grad_norm,
                weight_decay=decay / factor,
            )
            norm *= factor
        else:
            weights, norm = reference_updates.sgd_update(
                weights,
                gradients,
                learning_rate=rate,
                max_grad_norm=max_grad_norm * factor,
                weight_decay=decay,
            )
        clipped.append(norm > max_grad_norm * factor)
        (measured,) = built.read([loss])
        assert measured.nll / batch == pytest.approx(expected, rel=bound), f"step {step}"
        assert measured.gradient_norm == pytest.approx(norm, rel=10 * bound), f"step {step}"
        for name, array in built.export_weights().items():
            np.testing.assert_allclose(
                array, weights[name], rtol=0, atol=10 * bound, err_msg=f"step {step}, {name}"
            )
        carried = built.export_training_state(state)
        by_name = zip(*expected_state, strict=True)
        for name, layers in zip(cells.get(config.cell).state_names, by_name, strict=True):
            for found_BH, state_BH in zip(carried[name], layers, strict=True):
                used_BH = found_BH[:, : state_BH.shape[1]]  # kept as wide as the widest layer's
                np.testing.assert_allclose(used_BH, state_BH, rtol=0, atol=10 * bound, err_msg=f"step {step}")
    assert any(clipped), "no step is clipped: give the case a smaller max_grad_norm"
    assert not all(clipped), "every step is clipped: give the case a larger max_grad_norm"


def adam_update(
    weights: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    state: reference_updates.AdamState,
    *,
    learning_rate: float,
    max_grad_norm: float,
    weight_decay: float = 0.0,
) -> tuple[dict[str, np.ndarray], reference_updates.AdamState, float]:
    """Return the weights after one step of Adam with global-norm clipping, its state, and the norm.

    Args:
        weights: Parameters.
        gradients: Gradient with respect to each of them.
        state: State before the step.
        learning_rate: Learning rate.
        max_grad_norm: Upper bound on the norm of all gradients together.
        weight_decay: Factor of the weights that is added to the gradients after clipping.
    """
    norm = reference_updates.global_norm(gradients)
    scale = max_grad_norm / max(norm, max_grad_norm)
    clipped = {name: scale * gradients[name] + weight_decay * w for name, w in weights.items()}
    return (*reference_updates.adam(weights, clipped, state, learning_rate=learning_rate), norm)
