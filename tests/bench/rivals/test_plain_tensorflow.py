"""The loop that people write with Keras's layers: the reference's numbers, whatever words repeat."""

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

from support import random_weights, random_windows  # noqa: E402

from ptb_lm.bench.rivals import plain_tensorflow as plain  # noqa: E402
from ptb_lm.bench.variants import LANGUAGE_MODELS  # noqa: E402
from ptb_lm.common.errors import UserError  # noqa: E402
from ptb_lm.model import reference  # noqa: E402
from ptb_lm.model.choice import Choice  # noqa: E402
from ptb_lm.model.config import Config  # noqa: E402

VOCABULARY = 11


def built(config: Config, weights: dict[str, np.ndarray], precision: str = "fp32") -> plain.PlainLoop:
    choice = Choice.create(
        LANGUAGE_MODELS,
        framework="plain-tensorflow",
        model="keras",
        device="cpu",
        precision=precision,
        seed=3,
    )
    return plain.build(config, weights, choice)


@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 1e-5), ("bf16", 1e-2)])
@pytest.mark.parametrize("bound", [1e9, 0.5], ids=["whole", "clipped"])
def test_ten_steps_are_the_reference_s(
    bound: float, precision: str, rounding: float, tiny_config: Config
) -> None:
    """Words repeat within a window: the norm is of each word's sum, as it is of a dense gradient."""
    config = tiny_config.replace(max_grad_norm=bound)
    weights = random_weights(config, VOCABULARY, seed=1)
    loop = built(config, weights, precision)
    state, expected_state = loop.zero_state(3), reference.zero_state(weights, 3)
    for x_BT, y_BT in random_windows(config, VOCABULARY, 10, seed=2):
        assert len(np.unique(x_BT)) < x_BT.size
        state, loss = loop.train_step(x_BT, y_BT, state, learning_rate=0.7)
        expected, gradients, expected_state = reference.loss_and_gradients(
            weights, x_BT, y_BT, expected_state
        )
        weights, norm = reference.sgd_update(weights, gradients, learning_rate=0.7, max_grad_norm=bound)
        (measured,) = loop.read([loss])
        assert measured.nll / 3 == pytest.approx(expected, rel=rounding)
        assert measured.gradient_norm == pytest.approx(norm, rel=5 * rounding)
    for name, array in loop.export_weights().items():
        np.testing.assert_allclose(array, weights[name], rtol=0, atol=2 * rounding, err_msg=name)


def test_the_embedding_moves_at_the_window_s_words_alone(tiny_config: Config) -> None:
    """What a tape gives for a lookup is a row for each token, and SGD moves no others."""
    weights = random_weights(tiny_config, VOCABULARY, seed=1)
    loop = built(tiny_config, weights)
    before = loop.export_weights()["embedding"]
    x_BT = np.full((3, 5), 4, np.int32)
    loop.train_step(x_BT, x_BT, loop.zero_state(3), learning_rate=1.0)
    moved = (loop.export_weights()["embedding"] != before).any(axis=1)
    assert np.flatnonzero(moved).tolist() == [4]


def test_dropout_is_of_training_alone_with_a_mask_of_its_own_each_time(tiny_config: Config) -> None:
    config = tiny_config.replace(keep_prob=0.5)
    loop = built(config, random_weights(config, VOCABULARY, seed=1))
    ((x_BT, y_BT),) = random_windows(config, VOCABULARY, 1, seed=2)
    trained = [loop.train_step(x_BT, y_BT, loop.zero_state(3), learning_rate=0.0)[1] for _ in range(6)]
    scored = [loop.evaluate_step(x_BT, y_BT, loop.zero_state(3))[1] for _ in range(2)]
    assert len({measured.nll for measured in loop.read(trained)}) == 6
    assert len(set(loop.read(scored))) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_step_is_traced_once(precision: str, tiny_config: Config) -> None:
    loop = built(tiny_config, random_weights(tiny_config, VOCABULARY, seed=1), precision)
    state = loop.zero_state(3)
    for step, (x_BT, y_BT) in enumerate(random_windows(tiny_config, VOCABULARY, 4, seed=2)):
        state, _ = loop.train_step(x_BT, y_BT, state, learning_rate=1 / (1 + step))
    assert loop.train_function.experimental_get_tracing_count() == 1
    assert loop.engine == "Keras layers on cpu (graph)"
    assert loop.environment()["keras"]


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
def test_what_the_plain_loop_does_not_do_is_refused(
    changes: dict[str, Any], flags: str, tiny_config: Config
) -> None:
    """In silence it would be fast."""
    config = tiny_config.replace(**changes)
    with pytest.raises(UserError) as caught:
        built(config, random_weights(config, VOCABULARY, seed=1))
    assert str(caught.value) == f"the plain loop of Keras's layers has no {flags}"
