"""Penalties, weight decay, Adam, windows of many lengths, layers of different widths: against NumPy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import random_weights

from ptb_lm.data import corpus
from ptb_lm.model import backend, reference, reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import places

pytestmark = pytest.mark.slow

VOCABULARY = 11
# Bounds that clip some steps of each case and not others, with windows of many lengths and of one.
CLIPPED_AT = {True: 1.5, False: 1.1}
LENGTHS = [3, 2, 4, 1] * 5  # of 20 windows; few of them, as each is traced

PENALTIES = {"activation_penalty": 2.0, "slowness_penalty": 15.0}
DECAY = {"weight_decay": 3e-2}
ADAM = {"optimizer": "adam"}
LENGTHS_VARY = {"vary_num_steps": True}
# As many probabilities as places, and as many widths as layers, that none is taken for another.
AWD = {
    "num_layers": 3,
    "layer_sizes": (8, 5, 6),
    "input_keep_prob": 0.8,
    "between_keep_prob": 0.7,
    "output_keep_prob": 0.6,
    "embedding_keep_prob": 0.9,
    "recurrent_keep_prob": 0.75,
    "variational": True,
    "tie_weights": True,
    **PENALTIES,
    **DECAY,
    **LENGTHS_VARY,
}
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
BOUNDS = {"fp64": 1e-10, "fp32": 2e-5}


def every_case() -> Iterator[Any]:
    """Each case by one model; all of them at once in every model and execution."""
    for case in CASES:
        yield pytest.param(case, "basic", "fp64", "graph")
    for case in ("awd", "awd by adam"):
        yield pytest.param(case, "basic", "fp64", "eager")
        yield pytest.param(case, "block", "fp32", "graph")
        yield pytest.param(case, "block_fused", "fp32", "graph")
        yield pytest.param(case, "cudnn", "fp64", "graph")
    yield pytest.param("penalties, decay and adam", "basic", "fp64", "xla")


def build(config: Config, *, seed: int = 3, **choice: str) -> Any:
    weights = random_weights(config, VOCABULARY, seed=1)
    chosen = {"framework": "tensorflow", "model": "basic", "device": "cpu", "precision": "fp64", **choice}
    return backend.build(config, weights, Choice.create(seed=seed, **chosen))


def windows_of(config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    lengths = LENGTHS if config.vary_num_steps else [config.num_steps] * len(LENGTHS)
    rng = np.random.default_rng(2)
    rows_BL = rng.integers(VOCABULARY, size=(config.batch_size, sum(lengths) + 1), dtype=np.int32)
    return list(corpus.cut_windows(rows_BL, np.cumsum(lengths).tolist()))


def next_masks(built: Any, steps: int) -> dict[str, Any]:
    """The masks of a model's next window, as the reference takes them."""
    config = built.config
    kept = built.next_masks(config.batch_size, steps)
    place = places(config, VOCABULARY, batch=config.batch_size, steps=steps)
    units = [mask / each.keep_prob for mask, each in zip(kept.units, place.units, strict=True)]
    weights = {name: kept.weights[name] / each.keep_prob for name, each in place.weights.items()}
    return {"masks": units or None, "weight_masks": weights}


def rate_of(config: Config) -> float:
    return 0.02 if config.optimizer == "adam" else 0.3


@pytest.mark.parametrize(("case", "model", "precision", "execution"), list(every_case()))
def test_twenty_steps_equal_the_reference(
    case: str, model: str, precision: str, execution: str, short_config: Config
) -> None:
    """Loss, norm, and every weight, with the masks that the model says it will draw."""
    changes = CASES.get(case, {**PENALTIES, **DECAY, **ADAM, "num_layers": 1})
    bound_of_norm = CLIPPED_AT["vary_num_steps" in changes]
    config = short_config.replace(max_grad_norm=bound_of_norm, **changes)
    built, bound, rate = (
        build(config, model=model, precision=precision, execution=execution),
        BOUNDS[precision],
        rate_of(config),
    )
    weights, batch = random_weights(config, VOCABULARY, seed=1), config.batch_size
    state, expected_state = built.zero_state(batch), reference.zero_state(weights, batch)
    adam, clipped = reference_updates.adam_zero_state(weights), []
    for step, (x_BT, y_BT) in enumerate(windows_of(config)):
        steps = x_BT.shape[1]
        masks = next_masks(built, steps)
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=rate)
        expected, gradients, expected_state = reference.loss_and_gradients(
            weights,
            x_BT,
            y_BT,
            expected_state,
            activation_penalty=config.activation_penalty,
            slowness_penalty=config.slowness_penalty,
            **masks,
        )
        factor = steps / config.num_steps if config.vary_num_steps else 1.0
        max_grad_norm, decay = config.max_grad_norm, steps * config.weight_decay
        if config.optimizer == "adam":
            weights, adam, norm = reference_updates.adam_update(
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
    assert any(clipped)
    assert not all(clipped)


@pytest.mark.parametrize("case", ["awd", "awd by adam", "all but ties, by adam"])
def test_stopped_and_resumed_is_bit_identical(case: str, short_config: Config) -> None:
    """The state of Adam, the masks, and what layers of different widths carry."""
    config = short_config.replace(**CASES[case])
    windows, rate = windows_of(config)[:12], rate_of(config)
    first, resumed = build(config), build(config, seed=9)
    state = first.zero_state(config.batch_size)
    for x_BT, y_BT in windows[:5]:
        state, _ = first.train_step(x_BT, y_BT, state, learning_rate=rate)
    weights, saved = first.export_weights(), first.export_training_state(state)
    assert saved["h"].shape == (3, 4, 8)
    found = []
    resumed.load_weights(weights)
    for built, begin in ((first, state), (resumed, resumed.load_training_state(saved))):
        carried = begin
        for x_BT, y_BT in windows[5:]:
            carried, _ = built.train_step(x_BT, y_BT, carried, learning_rate=rate)
        found.append({**built.export_weights(), **built.export_training_state(carried)})
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)
    adam = [name for name in saved if "adam" in name]
    assert len(adam) == (1 + 2 * len(first.network.variables) if config.optimizer == "adam" else 0)


def test_many_lengths_are_traced_in_silence(short_config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """TensorFlow warns of many traces, by default."""
    built = build(short_config.replace(**LENGTHS_VARY))
    state, rng = built.zero_state(4), np.random.default_rng(2)
    for steps in range(1, 12):
        x_BT, y_BT = rng.integers(VOCABULARY, size=(2, 4, steps), dtype=np.int32)
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.1)
    assert caplog.records == []
