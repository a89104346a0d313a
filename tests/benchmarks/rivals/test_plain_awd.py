"""The plain AWD-LSTM: its own formulas in NumPy, the torch backend in float64, and torch's averaged SGD."""

import itertools
from typing import Any

import numpy as np
import pytest
from support import assert_gradients, random_weights

from benchmarks.rivals import plain_awd
from benchmarks.rivals.plain_awd import AWDLoop
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import dropout_places, reference
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import PRESETS, Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.training.window_plan import WindowPlan

VOCABULARY, ROWS = 11, 3
CLIP_EPSILON = 1e-6  # torch's clip_grad_norm_ adds it to the norm
# As it was published, but for the sizes; the penalties and the weight decay are large enough to be seen.
AWD = PRESETS["awd"].replace(
    layer_sizes=(6, 5, 4),
    num_steps=10,
    batch_size=ROWS,
    learning_rate=0.1,
    max_grad_norm=2.0,
    weight_decay=0.01,
)


def build(config: Config, weights: dict[str, np.ndarray]) -> AWDLoop:
    """Return the loop in float64."""
    return plain_awd.build(
        config, weights, Choice.create(model="cudnn", device="cpu", precision="fp64", seed=3)
    )


def windows(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return consecutive windows of random words, each of a length of its own, as a run has them."""
    ids = np.random.default_rng(0).integers(VOCABULARY, size=3000).astype(np.int32)
    splits = dict.fromkeys(("train", "valid", "test"), ids)
    plan = WindowPlan(Corpus(Vocabulary([f"w{i}" for i in range(VOCABULARY)]), splits), AWD, seed=1)
    found = list(itertools.islice(plan.windows(corpus.rows(ids, ROWS), 0), count))
    assert len({x_BT.shape[1] for x_BT, _ in found}) >= min(count, 5)
    return found


def numpy_loss(
    config: Config, weights: dict[str, np.ndarray], window: Any, state: Any, masks: dict[str, Any]
) -> tuple[float, float, Any]:
    """Return the mean loss of a word, the same with both penalties, and the state, by published formulas."""
    x_BT, y_BT = window
    *inner, last = masks["masks"]
    dropped = {**weights, **{name: weights[name] * mask for name, mask in masks["weight_masks"].items()}}
    raw_TBH, after, _ = reference.stack_forward(
        dropped, dropped["embedding"][x_BT.T], state, masks=[*inner, np.ones_like(last)]
    )
    output_TBH = raw_TBH * last
    log_p_TBV = reference.log_softmax(output_TBH @ weights["embedding"].T + weights["softmax.bias"])
    mean = -float(np.take_along_axis(log_p_TBV, y_BT.T[..., None], axis=-1).mean())
    activation = config.activation_penalty * np.square(output_TBH).mean()
    slowness = config.slowness_penalty * np.square(np.diff(raw_TBH, axis=0)).mean()
    return mean, mean + activation + slowness, after


def scaled(config: Config, kept: Masks[np.ndarray], steps: int) -> dict[str, Any]:
    """Return masks as the reference takes them."""
    place = dropout_places.places(config, VOCABULARY, batch=ROWS, steps=steps)
    units = [mask / each.keep_prob for mask, each in zip(kept.units, place.units, strict=True)]
    weights = {name: kept.weights[name] / each.keep_prob for name, each in place.weights.items()}
    return {"masks": units, "weight_masks": weights}


@pytest.mark.parametrize("max_grad_norm", [2.0, 1e3], ids=["clipped", "not clipped"])
def test_a_step_is_that_of_the_published_formulas(max_grad_norm: float) -> None:
    """Its gradient, by finite differences of the loss of a word, in windows of different lengths."""
    config = AWD.replace(max_grad_norm=max_grad_norm)
    weights = random_weights(config, VOCABULARY, seed=1)
    loop = build(config, weights)
    state, numpy_state = loop.zero_state(ROWS), reference.stack_zero_state(weights, ROWS)
    for window in windows(3):
        steps = window[0].shape[1]
        masks = scaled(config, loop.next_masks(ROWS, steps), steps)
        mean, _, next_state = numpy_loss(config, weights, window, numpy_state, masks)
        state, loss = loop.train_step(*window, state, learning_rate=config.learning_rate)
        (measured,) = loop.read([loss])
        assert measured.nll == pytest.approx(mean * steps * ROWS, rel=1e-12)
        # The published rate is 30 for a window of 70 steps; the norm is bounded by 0.25.
        rate, bound = config.learning_rate * steps, max_grad_norm / config.num_steps
        moved, norm = loop.export_weights(), measured.gradient_norm / steps
        assert (norm > bound) == (max_grad_norm == 2.0)
        gradients = {
            name: ((weights[name] - moved[name]) / rate - config.weight_decay * weights[name])
            / min(1, bound / (norm + CLIP_EPSILON))
            for name in weights
        }
        assert norm == pytest.approx(np.sqrt(sum(np.square(each).sum() for each in gradients.values())))
        assert_gradients(
            lambda given=(config, weights, window, numpy_state, masks): numpy_loss(*given)[1],
            weights,
            gradients,
            atol=1e-8,
        )
        weights, numpy_state = moved, next_state


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cell": "gru"}, "--cell"),
        ({"optimizer": "adam"}, "--optimizer"),
        ({"variational": False}, "--variational"),
    ],
)
def test_the_loop_refuses_what_it_lacks(changes: dict[str, Any], what: str) -> None:
    config = AWD.replace(**changes)
    with pytest.raises(UserError, match=what):
        build(config, random_weights(config, VOCABULARY, seed=1))
