"""The loops that people write with Keras's layers and in JAX: the reference's numbers, in each precision."""

from typing import Any

import numpy as np
import pytest
from support import checked_twice, installed, random_weights, random_windows

from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import REGISTRY, Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.model import reference, reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config

pytestmark = pytest.mark.slow

VOCABULARY = 11
TASK = LanguageTask(
    config=Config(hidden_size=40, embedding_size=30, num_steps=20, keep_prob=0.5), vocabulary_size=500
)
MODELS = {"plain-tensorflow": "keras", "plain-jax": "scan"}
every_loop = pytest.mark.parametrize(
    "framework",
    [
        pytest.param("plain-tensorflow", marks=installed("tensorflow")),
        pytest.param("plain-jax", marks=installed("jax")),
    ],
)


def build(framework: str, config: Config, precision: str = "fp32") -> tuple[Any, dict[str, np.ndarray]]:
    """Return a loop and its random weights."""
    weights = random_weights(config, VOCABULARY, seed=1)
    model = {"framework": framework, "model": MODELS[framework]}
    choice = Choice.create(REGISTRY, **model, device="cpu", precision=precision, seed=3)
    return choice.builder()(config, weights, choice), weights


@every_loop
@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_ten_steps_are_the_reference_s_of_one_program(
    precision: str, rounding: float, framework: str, tiny_config: Config
) -> None:
    """Words repeat within a window: the norm is of each word's sum, as it is of a dense gradient."""
    bound = 1.35  # some steps are clipped, and others not
    config = tiny_config.replace(max_grad_norm=bound)
    loop, weights = build(framework, config, precision)
    state, expected_state = loop.zero_state(3), reference.zero_state(weights, 3)
    clipped = set()
    for step, (x_BT, y_BT) in enumerate(random_windows(config, VOCABULARY, 10, seed=2)):
        rate = 0.7 + 0.01 * step
        assert len(np.unique(x_BT)) < x_BT.size
        state, loss = loop.train_step(x_BT, y_BT, state, learning_rate=rate)
        expected, gradients, expected_state = reference.loss_and_gradients(
            weights, x_BT, y_BT, expected_state
        )
        weights, norm = reference_updates.sgd_update(
            weights, gradients, learning_rate=rate, max_grad_norm=bound
        )
        clipped.add(bool(norm > bound))
        (measured,) = loop.read([loss])
        assert measured.nll / 3 == pytest.approx(expected, rel=rounding)
        assert measured.gradient_norm == pytest.approx(norm, rel=5 * rounding)
    assert clipped == {True, False}
    for name, array in loop.export_weights().items():
        np.testing.assert_allclose(array, weights[name], rtol=0, atol=2 * rounding, err_msg=name)
    traced = loop.train_function
    if framework == "plain-jax":
        engine, count = "jax.lax.scan on cpu (XLA)", traced._cache_size()
    else:
        engine, count = "Keras layers on cpu (graph)", traced.experimental_get_tracing_count()
    assert (loop.engine, count) == (engine, 1), "a step is traced once"
    assert {"keras", "jax"} & loop.environment().keys()


@installed("tensorflow")
def test_keras_s_embedding_moves_at_the_window_s_words_alone(tiny_config: Config) -> None:
    """What a tape gives for a lookup is a row for each token, and SGD moves no others."""
    loop, _ = build("plain-tensorflow", tiny_config)
    before = loop.export_weights()["embedding"]
    x_BT = np.full((3, 5), 4, np.int32)
    loop.train_step(x_BT, x_BT, loop.zero_state(3), learning_rate=1.0)
    moved = (loop.export_weights()["embedding"] != before).any(axis=1)
    assert np.flatnonzero(moved).tolist() == [4]


@every_loop
def test_dropout_has_a_mask_of_its_own_each_time(framework: str, tiny_config: Config) -> None:
    loop, _ = build(framework, tiny_config.replace(keep_prob=0.5))
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    trained = [loop.train_step(x_BT, y_BT, loop.zero_state(3), learning_rate=0.0)[1] for _ in range(6)]
    assert len({measured.nll for measured in loop.read(trained)}) == 6


@every_loop
@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"variational": True}, "--variational"),
        ({"cell": "gru"}, "--cell"),
        (
            {"tie_weights": True, "embedding_keep_prob": 0.9, "recurrent_keep_prob": 0.9},
            "--tie-weights, --embedding-keep-prob, --recurrent-keep-prob",
        ),
    ],
)
def test_a_loop_refuses_the_flags_that_it_lacks(
    changes: dict[str, Any], flags: str, framework: str, tiny_config: Config
) -> None:
    """In silence it would be fast."""
    with pytest.raises(UserError, match=f"has no {flags}$"):
        build(framework, tiny_config.replace(**changes))


@installed("jax")
def test_jax_s_loop_passes_the_gate() -> None:
    """Keras's does in test_check.py."""
    builder = Variant("plain-jax/scan").builder(REGISTRY, device="cpu", precision="fp32", seed=1)
    found = checked_twice(TASK, builder, precision="fp32")
    assert found.errors["rows"] == found.errors["distinct_rows"] == 20


def test_a_checkout_measures_jax_s_loop_in_small_and_medium() -> None:
    workloads = {workload.name: workload for workload in SUITES["rivals"].workloads}
    assert workloads.keys() == {"small", "medium"}
    for workload in workloads.values():
        assert {"plain-jax/scan", "plain-jax/scan@bf16"} <= {variant.name for variant in workload.variants}
