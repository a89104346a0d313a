"""The contract of ptb_lm.backend: one suite for every framework and model."""

import numpy as np
import pytest
from conftest import random_weights, random_windows

from ptb_lm import backend, reference
from ptb_lm.backend import FRAMEWORKS, Backend
from ptb_lm.config import Config

VOCABULARY = 11
STEPS = 20
EVERY_MODEL = [(framework, model) for framework, row in FRAMEWORKS.items() for model in row.models]

# Bounds on the relative difference from reference.py, which computes in float64.
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-11}

every_model = pytest.mark.parametrize(("framework", "model"), EVERY_MODEL)
every_precision = pytest.mark.parametrize("precision", sorted(TOLERANCE))
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def build(config: Config, weights: dict[str, np.ndarray], **choice: str) -> Backend:
    defaults = {"device": "cpu", "precision": "fp32"}
    return backend.build(config, weights, seed=3, **{**defaults, **choice})  # type: ignore[arg-type]


@every_device
@every_precision
@every_model
def test_twenty_training_steps_equal_the_reference(
    framework: str, model: str, precision: str, device: str, tiny_config: Config
) -> None:
    weights = random_weights(tiny_config, VOCABULARY, seed=1)
    # A bound that clips some steps and not others.
    config = tiny_config.replace(max_grad_norm=2.5)
    built = build(config, weights, framework=framework, model=model, precision=precision, device=device)
    state = built.zero_state(config.batch_size)
    expected_state = reference.zero_state(weights, config.batch_size)
    clipped = []
    for step, (x_BT, y_BT) in enumerate(random_windows(config, VOCABULARY, STEPS, seed=2)):
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        (measured,) = built.read([loss])
        expected_loss, gradients, expected_state = reference.loss_and_gradients(
            weights, x_BT, y_BT, expected_state
        )
        weights, norm = reference.sgd_update(
            weights, gradients, learning_rate=0.7, max_grad_norm=config.max_grad_norm
        )
        clipped.append(norm > config.max_grad_norm)
        bound = TOLERANCE[precision]
        assert measured.nll / config.batch_size == pytest.approx(expected_loss, rel=bound), f"step {step}"
        assert measured.gradient_norm == pytest.approx(norm, rel=10 * bound), f"step {step}"
        for name, array in built.export_weights().items():
            np.testing.assert_allclose(
                array, weights[name], rtol=0, atol=10 * bound, err_msg=f"step {step}, {name}"
            )
        carried = built.export_training_state(state)
        for name, array in zip("hc", expected_state, strict=True):
            np.testing.assert_allclose(carried[name], array, rtol=0, atol=10 * bound, err_msg=f"step {step}")
    assert any(clipped)
    assert not all(clipped)
