"""The semantics of a stack of LSTM layers: a test for each claim of docs/semantics.md.

The stack is the NumPy reference's; every model of both frameworks equals it in outputs, states and gradients
(torch_backend/test_stack.py, tf_backend/test_stack.py). torch.nn.LSTM is the truth. Both are in float64.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, L = layers.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support import ROOT
from torch import nn

from ptb_lm.model import parameters, reference

STEPS, BATCH, INPUTS = 6, 4, 3
State = Sequence[tuple[np.ndarray, np.ndarray]]  # h_BH and c_BH of each layer and direction
Weights = Mapping[str, np.ndarray]
TOLERANCE = 1e-13  # absolute, for outputs below 1


class Result(NamedTuple):
    y: np.ndarray
    after: State


def run(
    weights: Weights, x_TBI: np.ndarray, state: State | None = None, *, factors: Sequence[float] | None = None
) -> Result:
    """Run our stack; the factors stand for dropout of all units or none, in each of its places."""
    before = state or reference.zero_state(weights, x_TBI.shape[1])
    masks = None if factors is None else [np.full((1, 1, 1), factor) for factor in factors]
    y, after, _ = reference.stack_forward(weights, x_TBI, before, masks=masks)
    return Result(y, after)


def sizes(weights: Weights) -> tuple[int, list[int]]:
    """I, and H of each layer."""
    hidden = [len(array) for name, array in weights.items() if name.split(".")[2:] == ["recurrent_kernel"]]
    return len(weights["lstm.0.kernel"]), hidden


def lstm_weights(hidden_sizes: Sequence[int], *, width: int = INPUTS, bidirectional: bool = False) -> Weights:
    """Random weights, biases too, for gates of order 1."""
    rng = np.random.default_rng(1)
    shapes = parameters.stack_shapes(width, hidden_sizes, bidirectional=bidirectional)
    return {
        name: rng.normal(size=shape) / shape[0] ** (len(shape) / 2 - 0.5) for name, shape in shapes.items()
    }


def only_layer(weights: Weights, layer: int) -> Weights:
    """The weights of a stack that is one layer of another."""
    prefix = f"lstm.{layer}."
    return {
        name.replace(prefix, "lstm.0."): array for name, array in weights.items() if name.startswith(prefix)
    }


def inputs(seed: int = 2, *, steps: int = STEPS, width: int = INPUTS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, BATCH, width))


def random_state(hidden_sizes: Sequence[int]) -> State:
    rng = np.random.default_rng(3)
    return [(rng.uniform(-1, 1, (BATCH, size)), rng.normal(size=(BATCH, size))) for size in hidden_sizes]


def nn_lstm(weights: Weights, *, bidirectional: bool = False, dropout: float = 0.0) -> nn.LSTM:
    """torch.nn.LSTM: one call of all layers, which must be of one size."""
    width, (hidden, *others) = sizes(weights)
    assert set(others) <= {hidden}
    layers = 1 + len(others)
    lstm = nn.LSTM(
        width, hidden, layers, bidirectional=bidirectional, dropout=dropout, dtype=torch.float64
    ).requires_grad_(False)
    for layer in range(layers):
        prefixes = parameters.direction_prefixes(layer, bidirectional=bidirectional)
        for prefix, suffix in zip(prefixes, (f"l{layer}", f"l{layer}_reverse"), strict=False):
            lstm.get_parameter(f"weight_ih_{suffix}").copy_(torch.from_numpy(weights[prefix + "kernel"].T))
            lstm.get_parameter(f"weight_hh_{suffix}").copy_(
                torch.from_numpy(weights[prefix + "recurrent_kernel"].T)
            )
            # All of it in the one of torch's two biases that our layers leave at zero.
            lstm.get_parameter(f"bias_hh_{suffix}").copy_(torch.from_numpy(weights[prefix + "bias"]))
            lstm.get_parameter(f"bias_ih_{suffix}").zero_()
    return lstm


def run_nn_lstm(lstm: nn.LSTM, x_TBI: np.ndarray, state: State | None = None) -> Result:
    before = (
        None
        if state is None
        else tuple(torch.from_numpy(np.stack(part)) for part in zip(*state, strict=True))
    )
    y, (hy, cy) = lstm(torch.from_numpy(x_TBI), before)
    return Result(y.numpy(), list(zip(hy.numpy(), cy.numpy(), strict=True)))


def assert_equal(found: Result, expected: Result, *, atol: float = TOLERANCE) -> None:
    np.testing.assert_allclose(found.y, expected.y, rtol=0, atol=atol)
    assert_equal_states(found.after, expected.after, atol=atol)


def assert_equal_states(found: State, expected: State, *, atol: float = TOLERANCE) -> None:
    assert len(found) == len(expected)
    for index, (parts, expected_parts) in enumerate(zip(found, expected, strict=True)):
        for name, part, expected_part in zip("hc", parts, expected_parts, strict=True):
            # Cells may exceed 1.
            np.testing.assert_allclose(part, expected_part, rtol=atol, atol=atol, err_msg=f"{name} {index}")


def test_a_stack_is_its_layers_one_after_the_other() -> None:
    weights, x_TBI, state = lstm_weights([5, 5, 5]), inputs(), random_state([5, 5, 5])
    found = run(weights, x_TBI, state)
    assert_equal(found, run_nn_lstm(nn_lstm(weights), x_TBI, state))
    y, after = x_TBI, []
    for layer in range(3):
        y, layer_after = run(only_layer(weights, layer), y, state[layer : layer + 1])
        after.extend(layer_after)
    assert_equal(found, Result(y, after))


def test_y_is_the_top_layer_at_every_step_and_hy_every_layer_at_the_last() -> None:
    weights, x_TBI = lstm_weights([5, 5, 5]), inputs()
    y, after = run(weights, x_TBI)
    assert y.shape == (STEPS, BATCH, 5)
    assert [(h.shape, c.shape) for h, c in after] == [((BATCH, 5), (BATCH, 5))] * 3
    for layer in range(3):
        # What a stack that ends with this layer puts out is what this layer hands on.
        lower = {name: array for name, array in weights.items() if int(name.split(".")[1]) <= layer}
        expected, _ = run_nn_lstm(nn_lstm(lower), x_TBI)
        np.testing.assert_allclose(after[layer][0], expected[-1], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(y, expected, rtol=0, atol=TOLERANCE)


def test_a_missing_state_is_zero() -> None:
    weights, x_TBI = lstm_weights([5, 5]), inputs()
    found = run(weights, x_TBI)
    assert_equal(found, run_nn_lstm(nn_lstm(weights), x_TBI, None))
    assert_equal(found, run_nn_lstm(nn_lstm(weights), x_TBI, [(np.zeros((BATCH, 5)),) * 2] * 2))


def test_carried_state_sees_beyond_the_window_and_zero_state_does_not() -> None:
    weights = lstm_weights([5, 5])
    early_TBI, late_TBI = inputs(2), inputs(4)
    changed_TBI = early_TBI.copy()
    changed_TBI[0, 1] += 1
    first, second = run(weights, early_TBI), run(weights, changed_TBI)
    carried = run(weights, late_TBI, first.after).y - run(weights, late_TBI, second.after).y
    # One sample was changed, and every later output of it changes with it; no other sample's does.
    assert (np.abs(carried[:, 1]).max(axis=-1) > 1e-5).all()
    np.testing.assert_array_equal(np.delete(carried, 1, axis=1), 0)
    # From zero, as the trainer begins an epoch, nothing of an earlier window is seen.
    from_zero = run(weights, late_TBI)
    assert_equal(from_zero, run_nn_lstm(nn_lstm(weights), late_TBI))
    assert np.abs(from_zero.y - run(weights, late_TBI, first.after).y).max() > 0.01


def test_one_step_at_a_time_is_the_whole_sequence() -> None:
    weights, x_TBI, state = lstm_weights([5, 7]), inputs(), random_state([5, 7])
    whole = run(weights, x_TBI, state)
    outputs = []
    for x_BI in x_TBI:
        y, state = run(weights, x_BI[None], state)
        outputs.append(y)
    assert_equal(Result(np.concatenate(outputs), state), whole)


def test_nn_lstm_has_no_dropout_in_one_layer() -> None:
    weights, x_TBI = lstm_weights([5]), inputs()
    with pytest.warns(UserWarning, match="all but last recurrent layer"):
        lstm = nn_lstm(weights, dropout=1.0)
    assert_equal(run_nn_lstm(lstm.train(), x_TBI), run_nn_lstm(nn_lstm(weights), x_TBI), atol=0)


def test_nn_lstm_has_dropout_between_the_layers_alone() -> None:
    """All units are dropped: the lower layer is as it was, and the upper one sees zeros, but puts out."""
    weights, x_TBI = lstm_weights([5, 5]), inputs()
    dropped = run_nn_lstm(nn_lstm(weights, dropout=1.0).train(), x_TBI)
    lower = run_nn_lstm(nn_lstm(only_layer(weights, 0)), x_TBI)
    upper = run_nn_lstm(nn_lstm(only_layer(weights, 1)), np.zeros((STEPS, BATCH, 5)))
    assert_equal(dropped, Result(upper.y, [*lower.after, *upper.after]), atol=1e-15)
    assert np.abs(dropped.y).min() > 0


@pytest.mark.parametrize("place", [0, 1])
def test_our_stack_has_dropout_on_the_input_and_between_the_layers(place: int) -> None:
    """All units are dropped in one place: the layer above sees zeros, and what is below is as it was."""
    weights, x_TBI = lstm_weights([5, 7]), inputs()
    dropped = run(weights, x_TBI, factors=[float(index != place) for index in range(3)])
    y, after = x_TBI, []
    for layer in range(2):
        single = nn_lstm(only_layer(weights, layer))
        y, layer_after = run_nn_lstm(single, 0 * y if layer == place else y)
        after.extend(layer_after)
    assert_equal(dropped, Result(y, after))


def test_layers_may_differ_in_size() -> None:
    widths = [INPUTS, 8, 5, 7]
    weights, x_TBI = lstm_weights(widths[1:]), inputs()
    found = run(weights, x_TBI)
    assert [h.shape[1] for h, _ in found.after] == widths[1:]
    y, after = x_TBI, []
    for layer in range(3):
        y, layer_after = run_nn_lstm(nn_lstm(only_layer(weights, layer)), y)
        after.extend(layer_after)
    assert_equal(found, Result(y, after))


def test_one_call_of_nn_lstm_has_one_size() -> None:
    with pytest.raises(TypeError):
        nn.LSTM(3, (8, 5, 7), num_layers=3)  # type: ignore[arg-type]
    lstm = nn.LSTM(3, 8, num_layers=3)
    assert [parameter.shape[0] for parameter in lstm.parameters()] == [4 * 8] * 12


def test_a_top_layer_of_half_the_size_saves_a_fifth_of_the_work() -> None:
    equal, narrow = (
        sum(
            math.prod(shape)
            for name, shape in parameters.stack_shapes(1024, sizes).items()
            if "kernel" in name
        )
        for sizes in ([1024] * 3, [1024, 1024, 512])
    )
    assert equal == 3 * 4 * 2048 * 1024
    assert 1 - narrow / equal == pytest.approx(0.21, abs=0.005)


def test_both_directions_double_the_width_of_y_and_the_number_of_states() -> None:
    weights = lstm_weights([5, 5], bidirectional=True)
    x_TBI, state = inputs(), random_state([5] * 4)
    found = run(weights, x_TBI, state)
    y, after = found
    assert y.shape == (STEPS, BATCH, 2 * 5)
    assert [h.shape for h, _ in after] == [(BATCH, 5)] * 4
    # Layer 0 forward, layer 0 reverse, layer 1 forward, layer 1 reverse: as hy and cy of torch and cuDNN.
    assert_equal(found, run_nn_lstm(nn_lstm(weights, bidirectional=True), x_TBI, state))
    # The forward half ends at the last step, the reverse half at the first.
    np.testing.assert_array_equal(y[-1, :, :5], after[2][0])
    np.testing.assert_array_equal(y[0, :, 5:], after[3][0])
    # The upper layer reads both halves.
    assert weights["lstm.1.kernel"].shape == (2 * 5, 4 * 5)


def test_the_page_names_every_test_here_and_none_that_is_not() -> None:
    page = (ROOT / "docs" / "semantics.md").read_text()
    named = re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)`", page)
    elsewhere = {(file, name) for file, name in named if file}
    assert elsewhere
    for file, name in elsewhere:
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text()
    here = {name for name in globals() if name.startswith("test_")}
    assert {name for file, name in named if not file} == here - {
        "test_the_page_names_every_test_here_and_none_that_is_not"
    }
