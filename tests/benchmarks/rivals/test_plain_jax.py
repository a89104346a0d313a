"""The loop that people write in JAX: the reference's numbers, in each of its precisions."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed")

from support import checked_twice, random_weights, random_windows

from benchmarks.rivals import plain_jax
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import LANGUAGE_MODELS, Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.model import reference
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config

pytestmark = pytest.mark.slow

VOCABULARY = 11
TASK = LanguageTask(
    config=Config(hidden_size=40, embedding_size=30, num_steps=20, keep_prob=0.5), vocabulary_size=500
)


def build(config: Config, weights: dict[str, np.ndarray], precision: str = "fp32") -> plain_jax.JaxLoop:
    choice = Choice.create(
        LANGUAGE_MODELS, framework="plain-jax", model="scan", device="cpu", precision=precision, seed=3
    )
    return plain_jax.build(config, weights, choice)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_passes_the_gate(precision: str) -> None:
    builder = Variant("plain-jax/scan", "").builder(
        LANGUAGE_MODELS, device="cpu", precision=precision, seed=1
    )
    found = checked_twice(TASK, builder, precision=precision)
    assert found.errors["rows"] == found.errors["distinct_rows"] == 20


@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 1e-5), ("bf16", 1e-2)])
@pytest.mark.parametrize("bound", [1e9, 0.5], ids=["whole", "clipped"])
def test_ten_steps_are_the_reference_s(
    bound: float, precision: str, rounding: float, tiny_config: Config
) -> None:
    config = tiny_config.replace(max_grad_norm=bound)
    weights = random_weights(config, VOCABULARY, seed=1)
    loop = build(config, weights, precision)
    state, expected_state = loop.zero_state(3), reference.zero_state(weights, 3)
    for x_BT, y_BT in random_windows(config, VOCABULARY, 10, seed=2):
        state, loss = loop.train_step(x_BT, y_BT, state, learning_rate=0.5)
        expected, gradients, expected_state = reference.loss_and_gradients(
            weights, x_BT, y_BT, expected_state
        )
        weights, norm = reference.sgd_update(weights, gradients, learning_rate=0.5, max_grad_norm=bound)
        (found,) = loop.read([loss])
        assert found.nll / 3 == pytest.approx(expected, rel=rounding)
        assert found.gradient_norm == pytest.approx(norm, rel=5 * rounding)
    for name, array in loop.export_weights().items():
        np.testing.assert_allclose(array, weights[name], rtol=0, atol=2 * rounding, err_msg=name)


def test_every_training_step_has_a_mask_of_its_own(tiny_config: Config) -> None:
    config = tiny_config.replace(keep_prob=0.5)
    loop = build(config, random_weights(config, VOCABULARY, seed=1))
    ((x_BT, y_BT),) = random_windows(config, VOCABULARY, 1, seed=2)
    trained = [loop.train_step(x_BT, y_BT, loop.zero_state(3), learning_rate=0.0)[1] for _ in range(6)]
    scored = [loop.evaluate_step(x_BT, y_BT, loop.zero_state(3))[1] for _ in range(2)]
    assert len({loss.nll for loss in loop.read(trained)}) == 6
    assert len(set(loop.read(scored))) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_step_is_compiled_once(precision: str, tiny_config: Config) -> None:
    loop = build(tiny_config, random_weights(tiny_config, VOCABULARY, seed=1), precision)
    state = loop.zero_state(3)
    for step, (x_BT, y_BT) in enumerate(random_windows(tiny_config, VOCABULARY, 4, seed=2)):
        state, _ = loop.train_step(x_BT, y_BT, state, learning_rate=1 / (1 + step))
    assert loop.train_function._cache_size() == 1
    assert loop.engine == "jax.lax.scan on cpu (XLA)"
    assert loop.environment()["jax"]


def test_a_checkout_measures_it_in_small_and_medium() -> None:
    workloads = {workload.name: workload for workload in SUITES["rivals"].workloads}
    assert workloads.keys() == {"small", "medium"}
    for workload in workloads.values():
        assert {"plain-jax/scan", "plain-jax/scan@bf16"} <= {variant.name for variant in workload.variants}


@pytest.mark.parametrize(
    ("changes", "flag"), [({"variational": True}, "--variational"), ({"cell": "gru"}, "--cell")]
)
def test_the_loop_refuses_what_it_does_not_do(
    changes: dict[str, Any], flag: str, tiny_config: Config
) -> None:
    config = tiny_config.replace(**changes)
    with pytest.raises(UserError, match=flag):
        build(config, random_weights(config, VOCABULARY, seed=1))
