"""reference.py against finite differences and against facts known without it."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support import assert_gradients, random_weights, random_windows
from training_steps import adam_update

from ptb_lm.model import parameters, reference, reference_updates
from ptb_lm.model.cells.lstm import LSTM
from ptb_lm.model.config import Config

VOCABULARY = 11


@pytest.mark.parametrize("changes", [{}, {"tie_weights": True}], ids=["own", "tied"])
def test_log_probabilities_are_distributions_and_sum_to_the_loss(
    changes: dict[str, bool], tiny_config: Config
) -> None:
    weights = random_weights(tiny_config.replace(**changes), VOCABULARY, seed=1)
    state = other = reference.zero_state(weights, 3)
    for x_BT, y_BT in random_windows(tiny_config, VOCABULARY, 3, seed=2):
        state, log_p_BTV = reference.log_probabilities(weights, x_BT, state)
        loss, _, other = reference.loss_and_gradients(weights, x_BT, y_BT, other)
        np.testing.assert_allclose(np.exp(log_p_BTV).sum(axis=-1), 1, rtol=1e-12)
        assert -np.take_along_axis(log_p_BTV, y_BT[..., None], axis=-1).sum() / 3 == pytest.approx(loss)
        np.testing.assert_array_equal(state, other)


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        *((sizes, what) for sizes in ((7, 7, 7), (5, 7, 4)) for what in ("plain", "masks of steps")),
        ((5, 7, 4), "masks of a window"),
        ((5, 7, 4), "masks of weights"),
        ((6, 7, 6), "tied"),
        ((6, 7, 6), "masks of a window, masks of weights, tied"),
    ],
)
def test_gradients_equal_finite_differences(sizes: tuple[int, ...], what: str) -> None:
    """Sizes are the embedding's width, then the units of each layer."""
    rng, batch, steps = np.random.default_rng(0), 3, 5
    shapes = {
        "embedding": (VOCABULARY, sizes[0]),
        **parameters.stack_shapes(sizes[0], sizes[1:]),
        **({} if "tied" in what else {"softmax.kernel": (sizes[-1], VOCABULARY)}),
        "softmax.bias": (VOCABULARY,),
    }
    weights = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    by_kind = [[rng.uniform(-1, 1, (batch, hidden)) for hidden in sizes[1:]] for _ in "hc"]
    state = list(zip(*by_kind, strict=True))
    words = rng.integers(VOCABULARY, size=(batch, steps + 1))
    masks: dict[str, Any] = {"masks": None, "weight_masks": None}
    for kind, length in (("masks of steps", steps), ("masks of a window", 1)):
        if kind in what:
            masks["masks"] = [rng.integers(2, size=(length, batch, width)) / 0.5 for width in sizes]
    if "masks of weights" in what:
        masked = {"embedding": (VOCABULARY, 1)}
        masked |= {name: shape for name, shape in shapes.items() if name.endswith("recurrent_kernel")}
        masks["weight_masks"] = {name: rng.integers(2, size=shape) / 0.5 for name, shape in masked.items()}

    def compute() -> Any:
        return reference.loss_and_gradients(weights, words[:, :-1], words[:, 1:], state, **masks)

    gradients = compute()[1]
    assert_gradients(lambda: float(compute()[0]), weights, gradients, atol=1e-8)
    # A dropped weight has no gradient, but that a tied softmax uses all words.
    for name, mask in (masks["weight_masks"] or {}).items():
        if name.endswith("recurrent_kernel"):
            np.testing.assert_array_equal(gradients[name][mask == 0], 0)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_the_penalties_gradients_equal_finite_differences(masked: bool, steps: int) -> None:
    """Of the loss with AR and TAR as they are defined, from the outputs of the stack; its loss is without."""
    rng, batch, sizes = np.random.default_rng(0), 3, (6, 7, 6)
    shapes = {
        "embedding": (VOCABULARY, 6),
        **parameters.stack_shapes(6, (7, 6)),
        "softmax.bias": (VOCABULARY,),
    }
    weights = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    by_kind = [[rng.uniform(-1, 1, (batch, hidden)) for hidden in sizes[1:]] for _ in "hc"]
    state = list(zip(*by_kind, strict=True))
    words = rng.integers(VOCABULARY, size=(batch, steps + 1))
    masks = [rng.integers(2, size=(steps, batch, width)) / 0.5 for width in sizes] if masked else None

    def compute(**penalties: float) -> Any:
        return reference.loss_and_gradients(
            weights, words[:, :-1], words[:, 1:], state, masks=masks, **penalties
        )

    def penalised_loss() -> float:
        x_TBE = weights["embedding"][words[:, :-1].T]
        inner = None if masks is None else [*masks[:-1], np.ones(masks[-1].shape)]
        raw_TBH, _, _ = reference.stack_forward(weights, x_TBE, state, masks=inner)
        output_TBH = raw_TBH if masks is None else raw_TBH * masks[-1]
        changes = [np.square(after - one).mean() for one, after in itertools.pairwise(raw_TBH)]
        slowness = sum(changes) / len(changes) if changes else 0.0
        return float(compute()[0] + steps * (2.0 * np.square(output_TBH).mean() + 1.5 * slowness))

    loss, gradients, _ = compute(activation_penalty=2.0, slowness_penalty=1.5)
    assert loss == compute()[0]
    assert_gradients(penalised_loss, weights, gradients, atol=1e-8)


def test_tied_weights_are_untied_ones_that_are_equal() -> None:
    """The same loss, and the two gradients add up."""
    rng = np.random.default_rng(0)
    shapes = {"embedding": (VOCABULARY, 6), **parameters.stack_shapes(6, (6,)), "softmax.bias": (VOCABULARY,)}
    tied = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    untied = {**tied, "softmax.kernel": tied["embedding"].T.copy()}
    words = rng.integers(VOCABULARY, size=(3, 6))
    zero = reference.zero_state(tied, 3)
    loss, gradients, _ = reference.loss_and_gradients(tied, words[:, :-1], words[:, 1:], zero)
    expected, by_part, _ = reference.loss_and_gradients(untied, words[:, :-1], words[:, 1:], zero)
    assert loss == pytest.approx(expected, rel=1e-14)
    by_part["embedding"] += by_part.pop("softmax.kernel").T
    for name, gradient in by_part.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=1e-13, err_msg=name)


def test_one_unit_by_hand() -> None:
    """One layer of one unit, one step, every gate with another weight: the equations written out."""
    kernel, recurrent, bias = ([0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.05, 0.15, 0.25, 0.35])
    weights = {
        "embedding": np.array([[2.0], [3.0]]),
        "lstm.0.kernel": np.array([kernel]),
        "lstm.0.recurrent_kernel": np.array([recurrent]),
        "lstm.0.bias": np.array(bias),
        "softmax.kernel": np.array([[1.0, -1.0]]),
        "softmax.bias": np.array([0.1, 0.2]),
    }
    h, c = 0.3, -0.4
    i, f, g, o = (3.0 * k + h * r + b for k, r, b in zip(kernel, recurrent, bias, strict=True))
    c = c / (1 + math.exp(-f)) + math.tanh(g) / (1 + math.exp(-i))
    h = math.tanh(c) / (1 + math.exp(-o))
    logits = (h + 0.1, -h + 0.2)
    expected = math.log(sum(math.exp(logit) for logit in logits)) - logits[0]
    state = [(np.array([[0.3]]), np.array([[-0.4]]))]
    loss, _, ((h_after, c_after),) = reference.loss_and_gradients(
        weights, np.array([[1]]), np.array([[0]]), state
    )
    assert loss == pytest.approx(expected, rel=1e-14)
    assert h_after.item() == pytest.approx(h, rel=1e-14)
    assert c_after.item() == pytest.approx(c, rel=1e-14)


def test_the_loss_is_summed_over_time_and_averaged_over_the_batch(tiny_config: Config) -> None:
    """With all-zero weights every word is equally likely."""
    weights = {n: np.zeros_like(w) for n, w in random_weights(tiny_config, VOCABULARY, seed=0).items()}
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    state = reference.zero_state(weights, tiny_config.batch_size)
    loss, _, _ = reference.loss_and_gradients(weights, x_BT, y_BT, state)
    assert loss == pytest.approx(tiny_config.num_steps * math.log(VOCABULARY), rel=1e-12)


def test_two_windows_with_carried_state_equal_one(tiny_config: Config) -> None:
    weights = random_weights(tiny_config, VOCABULARY, seed=0)
    (x1, y1), (x2, y2) = random_windows(tiny_config, VOCABULARY, 2, seed=2)
    zero = reference.zero_state(weights, tiny_config.batch_size)
    first, _, carried = reference.loss_and_gradients(weights, x1, y1, zero)
    second, _, after = reference.loss_and_gradients(weights, x2, y2, carried)
    whole, _, expected = reference.loss_and_gradients(weights, np.hstack([x1, x2]), np.hstack([y1, y2]), zero)
    assert first + second == pytest.approx(whole, rel=1e-12)
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("max_grad_norm", [0.5, 50.0])
def test_the_update_moves_by_at_most_the_clipped_norm(max_grad_norm: float) -> None:
    weights = {"a": np.array([1.0, 2.0]), "b": np.array([[3.0]])}
    gradients = {"a": np.array([2.0, 3.0]), "b": np.array([[6.0]])}  # norm 7
    updated, norm = reference_updates.sgd_update(
        weights, gradients, learning_rate=0.1, max_grad_norm=max_grad_norm
    )
    assert norm == pytest.approx(7)
    factor = 0.1 * min(1, max_grad_norm / 7)
    np.testing.assert_allclose(updated["a"], weights["a"] - factor * gradients["a"])
    np.testing.assert_allclose(updated["b"], weights["b"] - factor * gradients["b"])


def test_weight_decay_is_added_after_clipping() -> None:
    weights, gradients = {"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 4.0])}
    updated, norm = reference_updates.sgd_update(
        weights, gradients, learning_rate=0.1, max_grad_norm=1.0, weight_decay=0.5
    )
    assert norm == 5
    np.testing.assert_allclose(updated["a"], [1 - 0.1 * (0.6 + 0.5), 2 - 0.1 * (0.8 + 1.0)], rtol=1e-14)


def test_adam_equals_torch_s() -> None:
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)}
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    optimizer = torch.optim.Adam(theirs.values(), lr=0.1, weight_decay=0.02)
    state, clipped = reference_updates.adam_zero_state(weights), []
    for _ in range(20):
        gradients = {name: rng.normal(size=array.shape) for name, array in weights.items()}
        weights, state, norm = adam_update(
            weights, gradients, state, learning_rate=0.1, max_grad_norm=4.0, weight_decay=0.02
        )
        clipped.append(norm > 4)
        for name, tensor in theirs.items():
            tensor.grad = torch.from_numpy(gradients[name]) * min(1.0, 4.0 / norm)
        optimizer.step()
        for name, tensor in theirs.items():
            np.testing.assert_allclose(weights[name], tensor.detach().numpy(), rtol=0, atol=1e-12)
    assert any(clipped)
    assert not all(clipped)
    assert state.steps == 20


def test_single_precision_stays_single(tiny_config: Config) -> None:
    weights = {n: w.astype(np.float32) for n, w in random_weights(tiny_config, VOCABULARY, seed=0).items()}
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    state = reference.zero_state(weights, tiny_config.batch_size)
    _, gradients, after = reference.loss_and_gradients(weights, x_BT, y_BT, state)
    updated, _ = reference_updates.sgd_update(weights, gradients, learning_rate=1.0, max_grad_norm=1.0)
    for array in (*gradients.values(), *after[0], *after[1], *updated.values()):
        assert array.dtype == np.float32


def test_a_cell_that_is_given_has_options_that_no_shape_tells(tiny_config: Config) -> None:
    """One whose input is halved does what another does whose kernel is halved."""

    class HalfLSTM(LSTM):
        def step(self, weights: Any, x_BI: Any, state: Any) -> Any:
            return super().step(weights, x_BI / 2, state)

        def step_back(self, weights: Any, tape: Any, d_state: Any) -> Any:
            d_x_BI, d_before, gradients = super().step_back(weights, tape, d_state)
            return d_x_BI / 2, d_before, gradients

    weights = random_weights(tiny_config, VOCABULARY, seed=1)
    ((x_BT, y_BT), *_) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    zero = reference.zero_state(weights, len(x_BT))
    halved = {
        name: array / 2 if name.endswith(".kernel") and name != "softmax.kernel" else array
        for name, array in weights.items()
    }
    loss, gradients, state = reference.loss_and_gradients(weights, x_BT, y_BT, zero, cell=HalfLSTM())
    expected, expected_gradients, expected_state = reference.loss_and_gradients(halved, x_BT, y_BT, zero)
    assert loss == pytest.approx(expected, rel=1e-14)
    assert loss != reference.loss_and_gradients(weights, x_BT, y_BT, zero)[0]
    np.testing.assert_allclose(state, expected_state, rtol=1e-13)
    for name, gradient in gradients.items():
        factor = 0.5 if halved[name] is not weights[name] else 1.0
        np.testing.assert_allclose(gradient, factor * expected_gradients[name], rtol=1e-12, atol=1e-15)
    _, log_p_BTV = reference.log_probabilities(weights, x_BT, zero, cell=HalfLSTM())
    np.testing.assert_allclose(log_p_BTV, reference.log_probabilities(halved, x_BT, zero)[1], rtol=1e-13)
