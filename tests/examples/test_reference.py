"""reference.py against finite differences, all paths of CTC, torch, and closed forms."""

import itertools
import math

import numpy as np
import pytest
import sequence_classifier
import torch
from sequence_classifier import LOSSES, Batch, ClassifierConfig, reference
from support import assert_gradients, numeric_gradient

from ptb_lm.common.errors import UserError
from ptb_lm.model import reference_updates
from ptb_lm.model.reference import log_softmax, stack_forward, zero_state

STEPS, BATCH, CLASSES = 6, 3, 5
LENGTHS = np.array([5, 6, 3], np.int32)

every_loss = pytest.mark.parametrize("loss", LOSSES)
both_directions = pytest.mark.parametrize("bidirectional", [False, True])
with_and_without_lengths = pytest.mark.parametrize("lengths", [None, LENGTHS])


def example(
    loss: str, bidirectional: bool, lengths: np.ndarray | None
) -> tuple[ClassifierConfig, dict[str, np.ndarray], Batch]:
    """Random weights and biases in float64, and random sequences; for CTC one label is repeated."""
    config = ClassifierConfig(
        input_size=4, hidden_sizes=(3, 2), classes=CLASSES, bidirectional=bidirectional, loss=loss
    )
    rng = np.random.default_rng(0)
    weights = {
        name: rng.uniform(-0.8, 0.8, shape) for name, shape in sequence_classifier.shapes(config).items()
    }
    labels = {"cross_entropy": np.array([2, 0, 4]), "ctc": np.array([[2, 4], [1, 3], [3, 3]])}[loss]
    return config, weights, Batch(rng.normal(size=(BATCH, STEPS, 4)), labels, lengths)


@pytest.mark.parametrize(("lengths", "with_dropout"), [(None, False), (LENGTHS, False), (LENGTHS, True)])
@both_directions
@every_loss
def test_gradients_equal_finite_differences(
    loss: str, bidirectional: bool, lengths: np.ndarray | None, with_dropout: bool
) -> None:
    config, weights, batch = example(loss, bidirectional, lengths)
    widths = [4, *((6, 4) if bidirectional else (3, 2))]
    rng = np.random.default_rng(1)
    masks = [rng.integers(2, size=(STEPS, BATCH, width)) / 0.5 for width in widths] if with_dropout else None
    _, gradients = reference.loss_and_gradients(config, weights, batch, masks=masks)

    def value() -> float:
        return reference.loss_and_gradients(config, weights, batch, masks=masks)[0]

    assert_gradients(value, weights, gradients, atol=1e-8)


@with_and_without_lengths
@both_directions
def test_cross_entropy_reads_the_top_layers_final_state(
    bidirectional: bool, lengths: np.ndarray | None
) -> None:
    config, weights, batch = example("cross_entropy", bidirectional, lengths)
    _, after, _ = stack_forward(
        weights, batch.x_BTI.swapaxes(0, 1), zero_state(weights, BATCH), lengths_B=lengths
    )
    final_BK = np.concatenate([h_BH for h_BH, _ in after][-2 if bidirectional else -1 :], axis=-1)
    p_BC = np.exp(final_BK @ weights["dense.kernel"] + weights["dense.bias"])
    p_BC /= p_BC.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(
        np.exp(reference.predict(config, weights, batch.x_BTI, lengths)), p_BC, rtol=1e-13
    )
    loss, _ = reference.loss_and_gradients(config, weights, batch)
    expected = -sum(math.log(p_C[label]) for p_C, label in zip(p_BC, batch.labels, strict=True)) / BATCH
    assert loss == pytest.approx(expected, rel=1e-13)


@with_and_without_lengths
@both_directions
def test_ctc_reads_every_valid_step(bidirectional: bool, lengths: np.ndarray | None) -> None:
    config, weights, batch = example("ctc", bidirectional, lengths)
    output_TBK, *_ = stack_forward(
        weights, batch.x_BTI.swapaxes(0, 1), zero_state(weights, BATCH), lengths_B=lengths
    )
    p_TBC = np.exp(output_TBK @ weights["dense.kernel"] + weights["dense.bias"])
    p_TBC /= p_TBC.sum(axis=-1, keepdims=True)
    log_p_BTC = reference.predict(config, weights, batch.x_BTI, lengths)
    assert log_p_BTC.shape == (BATCH, STEPS, CLASSES)
    np.testing.assert_allclose(np.exp(log_p_BTC), p_TBC.swapaxes(0, 1), rtol=1e-13)
    loss, _ = reference.loss_and_gradients(config, weights, batch)
    rows = zip(
        np.full(BATCH, STEPS) if lengths is None else lengths, p_TBC.swapaxes(0, 1), batch.labels, strict=True
    )
    expected = -sum(math.log(over_all_paths(p_TC[:length], labels)) for length, p_TC, labels in rows) / BATCH
    assert loss == pytest.approx(expected, rel=1e-12)


@both_directions
@every_loss
def test_the_padding_has_no_influence(loss: str, bidirectional: bool) -> None:
    config, weights, batch = example(loss, bidirectional, LENGTHS)
    expected, gradients = reference.loss_and_gradients(config, weights, batch)
    predicted = reference.predict(config, weights, batch.x_BTI, LENGTHS)
    for x_TI, length in zip(batch.x_BTI, LENGTHS, strict=True):
        x_TI[length:] = np.nan
    with_nan, gradients_with_nan = reference.loss_and_gradients(config, weights, batch)
    assert with_nan == expected
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradients_with_nan[name], gradient, err_msg=name)
    np.testing.assert_array_equal(reference.predict(config, weights, batch.x_BTI, LENGTHS), predicted)


def over_all_paths(p_TC: np.ndarray, labels: np.ndarray) -> float:
    """p(labels): every path of a class a step, which gives them once repeats and then blanks are left out."""
    total = 0.0
    for path in itertools.product(range(p_TC.shape[1]), repeat=len(p_TC)):
        if [c for c, _ in itertools.groupby(path) if c != reference.BLANK] == list(labels):
            total += math.prod(p_C[c] for p_C, c in zip(p_TC, path, strict=True))
    return total


@pytest.mark.parametrize(
    "labels", [[], [1], [2, 2], [1, 3], [2, 1, 2], [1, 1, 3], [1, 1, 1], [3, 2, 1, 2, 3]]
)
def test_ctc_equals_the_sum_over_all_paths(labels: list[int]) -> None:
    logits_TC = np.random.default_rng(0).normal(size=(5, 4))
    labels_U = np.array(labels, np.int32)

    def brute_force() -> float:
        return -math.log(over_all_paths(np.exp(log_softmax(logits_TC)), labels_U))

    loss, gradient = reference.ctc(log_softmax(logits_TC), labels_U)
    assert loss == pytest.approx(brute_force(), rel=1e-12)
    np.testing.assert_allclose(gradient, numeric_gradient(brute_force, logits_TC), rtol=0, atol=1e-8)


def test_ctc_equals_that_of_torch() -> None:
    """Over so many steps that probabilities, were they not logarithms, would underflow."""
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(400, 40)) * 3, requires_grad=True)
    labels = rng.integers(1, 40, size=60)
    expected = torch.nn.functional.ctc_loss(
        logits.log_softmax(-1), torch.from_numpy(labels), [400], [60], reduction="sum"
    )
    expected.backward()
    loss, gradient = reference.ctc(log_softmax(logits.detach().numpy()), labels)
    assert loss > 745  # exp(-745) is the least positive double
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("labels", [[1, 2, 3], [1, 1]])
def test_labels_that_do_not_fit_have_an_infinite_loss_and_no_gradient(labels: list[int]) -> None:
    """More labels than steps, and as many, of which one repeats and needs a blank between."""
    loss, gradient = reference.ctc(log_softmax(np.zeros((2, 4))), np.array(labels))
    assert loss == math.inf
    assert np.isnan(gradient).all()


def test_one_sequence_that_does_not_fit_spoils_the_batch() -> None:
    config, weights, batch = example("ctc", False, np.array([5, 6, 2]))
    loss, gradients = reference.loss_and_gradients(config, weights, batch)
    assert loss == math.inf
    assert all(np.isnan(gradient).all() for gradient in gradients.values())


def test_without_weights_every_class_is_equally_likely() -> None:
    config, weights, batch = example("cross_entropy", True, LENGTHS)
    weights = {name: np.zeros_like(array) for name, array in weights.items()}
    loss, gradients = reference.loss_and_gradients(config, weights, batch)
    assert loss == pytest.approx(math.log(CLASSES), rel=1e-14)
    np.testing.assert_allclose(gradients["dense.bias"], 1 / 5 - np.array([1, 0, 1, 0, 1]) / 3, rtol=1e-13)


@pytest.mark.parametrize(
    ("loss", "label", "least"),
    [("ctc", 0, 1), ("ctc", CLASSES, 1), ("cross_entropy", -1, 0), ("cross_entropy", CLASSES, 0)],
)
def test_a_label_that_is_no_class_is_refused(loss: str, label: int, least: int) -> None:
    """CTC's blank is no class."""
    config, weights, batch = example(loss, False, None)
    batch.labels[-1] = label
    with pytest.raises(UserError, match=f"label .*from {least} to {CLASSES - 1}$"):
        reference.loss_and_gradients(config, weights, batch)


@pytest.mark.parametrize("clip_value", [None, 0.7])
def test_adam_equals_that_of_torch(clip_value: float | None) -> None:
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)}
    theirs = {name: torch.nn.Parameter(torch.from_numpy(w.copy())) for name, w in weights.items()}
    optimizer = torch.optim.Adam(theirs.values(), lr=0.03)
    state = reference_updates.adam_zero_state(weights)
    for step in range(20):
        gradients = {name: rng.normal(size=w.shape) * 0.8**step for name, w in weights.items()}
        for name, parameter in theirs.items():
            parameter.grad = torch.from_numpy(gradients[name].copy())
        if clip_value is not None:
            torch.nn.utils.clip_grad_value_(theirs.values(), clip_value)
        optimizer.step()
        weights, state = reference_updates.adam(
            weights, gradients, state, learning_rate=0.03, clip_value=clip_value
        )
        for name, w in weights.items():
            np.testing.assert_allclose(w, theirs[name].detach().numpy(), rtol=0, atol=1e-13)
    assert state[0] == 20  # steps


@pytest.mark.parametrize("g", [5.0, -0.1, 1e-8])
def test_adam_by_hand(g: float) -> None:
    """Where the gradient never changes, the corrected moments are g and g²: each step is g / (|g| + eps)."""
    weights = {"a": np.array([2.0])}
    state = reference_updates.adam_zero_state(weights)
    for step in range(1, 5):
        weights, state = reference_updates.adam(weights, {"a": np.array([g])}, state, learning_rate=0.01)
        moved = 2 - weights["a"].item()
        assert moved == pytest.approx(step * 0.01 * g / (abs(g) + 1e-8), rel=1e-9)


@both_directions
@every_loss
def test_single_precision_stays_single(loss: str, bidirectional: bool) -> None:
    config, double, batch = example(loss, bidirectional, LENGTHS)
    weights = {name: w.astype(np.float32) for name, w in double.items()}
    batch = batch._replace(x_BTI=batch.x_BTI.astype(np.float32))
    value, gradients = reference.loss_and_gradients(config, weights, batch)
    updated, state = reference_updates.adam(
        weights, gradients, reference_updates.adam_zero_state(weights), learning_rate=0.1, clip_value=0.1
    )
    predicted = reference.predict(config, weights, batch.x_BTI, LENGTHS)
    for arrays in (gradients, updated, *state[1:], {"predicted": predicted}):
        for name, array in arrays.items():
            assert array.dtype == np.float32, name
    assert value == pytest.approx(reference.loss_and_gradients(config, double, batch)[0], rel=1e-5)
