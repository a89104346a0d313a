"""Penalties, weight decay, Adam, windows of many lengths, layers of different widths: against NumPy."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import training_steps
from support import assert_arrays, random_weights
from training_steps import (
    ADAM,
    CASES,
    DECAY,
    LENGTHS_VARY,
    PENALTIES,
    VOCABULARY,
    assert_steps_equal_the_reference,
    cut_random_windows,
    export_all,
    rate_of,
)

from ptb_lm.common.errors import UserError
from ptb_lm.model import reference
from ptb_lm.model.config import Config
from ptb_lm.model.hyperparameter import LARGEST

pytestmark = pytest.mark.slow

# Bounds that clip some steps of each case and not others, with windows of many lengths and of one.
CLIPPED_AT = {True: 1.5, False: 1.1}
LENGTHS = [4, 1] * 10  # of 20 windows; two of them, as each is traced

BOUNDS = {"fp64": 1e-10, "fp32": 2e-5}

build = partial(training_steps.build, framework="tensorflow", model="basic", precision="fp64")
windows_of = partial(cut_random_windows, lengths=LENGTHS)


def every_case() -> Iterator[Any]:
    """Each case by one model; all of them at once in every model and execution.

    The optimisers are outside of the layers.
    """
    for case in CASES:
        yield pytest.param(case, "basic", "fp64", "graph")
    yield pytest.param("awd by adam", "basic", "fp64", "eager")
    yield pytest.param("awd", "block", "fp32", "graph")
    yield pytest.param("awd by adam", "block_fused", "fp32", "graph")
    yield pytest.param("awd", "cudnn", "fp64", "graph")
    yield pytest.param("penalties, decay and adam", "basic", "fp64", "xla")


@pytest.mark.parametrize(
    ("cell", "model", "precision", "execution"),
    [
        ("lstm", "basic", "fp64", "graph"),
        ("lstm", "block", "fp32", "graph"),
        ("mogrifier_lstm", "basic", "fp64", "graph"),
        ("lstm", "basic", "fp64", "xla"),
    ],
)
def test_a_loop_over_time_has_all_regularisers(
    cell: str, model: str, precision: str, execution: str, short_config: Config
) -> None:
    changes = PENALTIES if execution == "xla" else CASES["awd"]
    config = short_config.replace(cell=cell, max_grad_norm=CLIPPED_AT["vary_num_steps" in changes], **changes)
    built = build(config, model=model, precision=precision, execution=execution, unroll="loop")
    assert_steps_equal_the_reference(built, windows_of(config), bound=BOUNDS[precision])


def test_the_largest_bound_of_the_gradient_clips_nothing(short_config: Config) -> None:
    """A window longer than usual has more than this bound, which no float32 can hold."""
    config = short_config.replace(**LENGTHS_VARY, max_grad_norm=LARGEST[float])
    weights, (x_BT, y_BT) = random_weights(config, VOCABULARY, seed=1), windows_of(config)[0]
    built = build(config, model="block_fused", precision="fp32")
    built.train_step(x_BT, y_BT, built.zero_state(config.batch_size), learning_rate=0.3)
    state = reference.zero_state(weights, config.batch_size)
    _, gradients, _ = reference.loss_and_gradients(weights, x_BT, y_BT, state)
    expected = {name: weight - 0.3 * gradients[name] for name, weight in weights.items()}
    assert_arrays(built.export_weights(), expected, atol=BOUNDS["fp32"])


def train_on(built: Any, state: Any, windows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Train on windows, and return the state after the last."""
    for x_BT, y_BT in windows:
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=rate_of(built.config))
    return state


@pytest.mark.parametrize(("case", "model", "precision", "execution"), list(every_case()))
def test_twenty_steps_equal_the_reference(
    case: str, model: str, precision: str, execution: str, short_config: Config
) -> None:
    changes = CASES.get(case, {**PENALTIES, **DECAY, **ADAM, "num_layers": 1})
    config = short_config.replace(max_grad_norm=CLIPPED_AT["vary_num_steps" in changes], **changes)
    built = build(config, model=model, precision=precision, execution=execution)
    assert_steps_equal_the_reference(built, windows_of(config), bound=BOUNDS[precision])


@pytest.mark.parametrize("case", ["awd by adam", "all but ties, by adam"])
def test_stopped_and_resumed_is_bit_identical(case: str, short_config: Config) -> None:
    """The state of Adam, the masks, and what layers of different widths carry."""
    config = short_config.replace(**CASES[case])
    windows = windows_of(config)[:12]
    first, resumed = build(config), build(config, seed=9)
    state = train_on(first, first.zero_state(config.batch_size), windows[:5])
    saved = first.export_training_state(state)
    assert saved["h"].shape == (3, 4, 8)
    resumed.load_weights(first.export_weights())
    expected = export_all(first, train_on(first, state, windows[5:]))
    found = export_all(resumed, train_on(resumed, resumed.load_training_state(saved), windows[5:]))
    assert_arrays(found, expected)


def test_the_state_of_adam_fits_layers_of_another_layout(short_config: Config) -> None:
    """A cudnn layer has two variables on a GPU, as a basic layer has, and three on a CPU."""
    config = short_config.replace(**CASES["all but ties, by adam"])
    windows = windows_of(config)[:8]
    basic, cudnn = build(config, model="basic"), build(config, model="cudnn")
    state = train_on(basic, basic.zero_state(config.batch_size), windows[:4])
    cudnn.load_weights(basic.export_weights())
    saved = basic.export_training_state(state)
    expected = export_all(basic, train_on(basic, state, windows[4:]))
    found = export_all(cudnn, train_on(cudnn, cudnn.load_training_state(saved), windows[4:]))
    assert len([name for name in expected if "adam" in name]) == 1 + 2 * len(basic.export_weights())
    assert_arrays(found, expected, atol=1e-10)
    saved["tensorflow.adam.second.softmax.bias"] = np.zeros(3)
    weights = cudnn.export_weights()
    with pytest.raises(UserError, match=r"'tensorflow\.adam\.second\.softmax\.bias' has shape \(3,\)"):
        cudnn.load_training_state(saved)
    assert_arrays(cudnn.export_weights(), weights)


@pytest.mark.parametrize(
    ("choice", "hint"),
    [
        ({"execution": "xla"}, "--execution xla compiles windows of each length"),
        ({}, "--unroll static traces"),
        ({"unroll": "loop"}, None),
        ({"execution": "eager"}, None),
        ({"model": "block_fused", "precision": "fp32"}, None),
    ],
    ids=str,
)
def test_what_each_length_costs_is_said(
    choice: dict[str, str], hint: str | None, short_config: Config
) -> None:
    hints = build(short_config.replace(**LENGTHS_VARY), **choice).hints
    assert (hint in hints[0]) if hint else hints == []
    usual = build(short_config, **choice).hints
    assert ("signal" in usual[0]) if choice.get("execution") == "xla" else usual == []


def test_masks_are_told_in_advance_in_silence(short_config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """XLA compiles them once. TensorFlow warns of many functions, by default."""
    built = build(short_config.replace(keep_prob=0.5), execution="xla")
    for _ in range(6):
        built.next_masks(2, 3)
    assert caplog.records == []


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_device_trains_without_a_copy_of_its_weights(
    optimizer: str, short_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(short_config.replace(optimizer=optimizer))
    monkeypatch.delattr(type(built.network), "canonical")
    x_BT, y_BT = windows_of(short_config)[0]
    state, _ = built.train_step(x_BT, y_BT, built.zero_state(len(x_BT)), learning_rate=0.1)
    built.load_training_state(built.export_training_state(state))


def test_many_lengths_are_traced_in_silence(short_config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """TensorFlow warns of many traces, by default."""
    built = build(short_config.replace(**LENGTHS_VARY), model="block_fused", precision="fp32")
    state, rng = built.zero_state(4), np.random.default_rng(2)
    for steps in range(1, 12):
        x_BT, y_BT = rng.integers(VOCABULARY, size=(2, 4, steps), dtype=np.int32)
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.1)
    assert caplog.records == []
