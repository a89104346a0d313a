"""The semantics of a stack of LSTM layers: a test for each claim of docs/semantics.md.

Our stacks compute in float32, and torch's on a GPU in float64, because cuDNN's float32 is approximate
(support.CUDNN_FP32). torch.nn.LSTM, in float64 on a CPU, is the truth.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, L = layers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import ROOT, installed, random_weights, random_windows
from torch import nn

from ptb_lm.common.errors import UserError
from ptb_lm.model import backend, parameters
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS

STEPS, BATCH, INPUTS = 6, 4, 3
State = Sequence[tuple[np.ndarray, np.ndarray]]  # h_BH and c_BH of each layer and direction
Weights = Mapping[str, np.ndarray]
TOLERANCE = 1e-6  # absolute; of float32, for outputs below 1


class Result(NamedTuple):
    y: np.ndarray
    after: State


Run = Callable[..., Result]  # (x_TBI, state=None, dropout=None)


every_stack = pytest.mark.parametrize(
    ("framework", "model", "device"),
    [
        pytest.param(framework, model, "cpu", marks=installed(framework))
        for framework, row in FRAMEWORKS.items()
        for model in row.models
    ]
    + [
        pytest.param(framework, "cudnn", "cuda", marks=[installed(framework), pytest.mark.gpu])
        for framework in FRAMEWORKS
    ],
)


def stack(framework: str, model: str, device: str, weights: Weights, *, bidirectional: bool = False) -> Run:
    """One of our stacks, NumPy in and out."""
    make = {"torch": torch_stack, "tensorflow": tensorflow_stack}[framework]
    return make(model, device, weights, bidirectional=bidirectional)


def torch_stack(model: str, device: str, weights: Weights, *, bidirectional: bool) -> Run:
    from ptb_lm.torch_backend.dropout import no_dropout
    from ptb_lm.torch_backend.precision import PRECISIONS, gpu_settings
    from ptb_lm.torch_backend.settings import hold_settings
    from ptb_lm.torch_backend.stack import RecurrentStack

    precision = PRECISIONS["fp32" if device == "cpu" else "fp64"]
    built = RecurrentStack.build(model, *sizes(weights), bidirectional=bidirectional)
    built = built.to(device, precision.master)
    for name, kept in built.canonical().items():
        kept.value.copy_(torch.from_numpy(weights[name]))

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device, precision.master)

    @torch.no_grad()
    def run(x_TBI: np.ndarray, state: State | None = None, dropout: Any = no_dropout) -> Result:
        before = built.zero_state(x_TBI.shape[1])
        if state is not None:
            before = [(tensor(h_BH), tensor(c_BH)) for h_BH, c_BH in state]
        # Not by torch.backends.cudnn.flags, which switches cuDNN off unless it is told not to.
        with hold_settings(gpu_settings(precision)):
            assert torch.backends.cudnn.enabled
            y, after = built(tensor(x_TBI), before, dropout=dropout)
        return Result(y.cpu().numpy(), [(h_BH.cpu().numpy(), c_BH.cpu().numpy()) for h_BH, c_BH in after])

    return run


def tensorflow_stack(model: str, device: str, weights: Weights, *, bidirectional: bool) -> Run:
    import tensorflow as tf

    from ptb_lm.tf_backend.cells import layer_type
    from ptb_lm.tf_backend.dropout import no_dropout
    from ptb_lm.tf_backend.runtime import choose_device
    from ptb_lm.tf_backend.stack import RecurrentStack

    try:
        chosen = choose_device(
            Choice.create(framework="tensorflow", model=model, execution="eager", device=device)
        )
    except UserError as error:
        pytest.skip(str(error))
    with tf.device(chosen.name):
        built = RecurrentStack(
            layer_type(model, gpu=chosen.gpu),
            *sizes(weights),
            bidirectional=bidirectional,
            unroll="static",
            dtype=tf.float32,
        )
        built.load(weights)

    def run(x_TBI: np.ndarray, state: State | None = None, dropout: Any = no_dropout) -> Result:
        with tf.device(chosen.name):
            before = built.zero_state(x_TBI.shape[1])
            if state is not None:
                before = [
                    (tf.constant(h_BH, tf.float32), tf.constant(c_BH, tf.float32)) for h_BH, c_BH in state
                ]
            y, after = built(tf.constant(x_TBI, tf.float32), before, dropout=dropout)
        return Result(y.numpy(), [(h_BH.numpy(), c_BH.numpy()) for h_BH, c_BH in after])

    return run


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
        prefixes = parameters.directions(layer, bidirectional=bidirectional)
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


@every_stack
def test_a_stack_is_its_layers_one_after_the_other(framework: str, model: str, device: str) -> None:
    weights, x_TBI, state = lstm_weights([5, 5, 5]), inputs(), random_state([5, 5, 5])
    found = stack(framework, model, device, weights)(x_TBI, state)
    assert_equal(found, run_nn_lstm(nn_lstm(weights), x_TBI, state))
    y, after = x_TBI, []
    for layer in range(3):
        single = stack(framework, model, device, only_layer(weights, layer))
        y, layer_after = single(y, state[layer : layer + 1])
        after.extend(layer_after)
    assert_equal(found, Result(y, after))


@every_stack
def test_y_is_the_top_layer_at_every_step_and_hy_every_layer_at_the_last(
    framework: str, model: str, device: str
) -> None:
    weights, x_TBI = lstm_weights([5, 5, 5]), inputs()
    y, after = stack(framework, model, device, weights)(x_TBI)
    assert y.shape == (STEPS, BATCH, 5)
    assert [(h.shape, c.shape) for h, c in after] == [((BATCH, 5), (BATCH, 5))] * 3
    for layer in range(3):
        # What a stack that ends with this layer puts out is what this layer hands on.
        lower = {name: array for name, array in weights.items() if int(name.split(".")[1]) <= layer}
        expected, _ = run_nn_lstm(nn_lstm(lower), x_TBI)
        np.testing.assert_allclose(after[layer][0], expected[-1], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(y, expected, rtol=0, atol=TOLERANCE)


@every_stack
def test_a_missing_state_is_zero(framework: str, model: str, device: str) -> None:
    weights, x_TBI = lstm_weights([5, 5]), inputs()
    found = stack(framework, model, device, weights)(x_TBI)
    assert_equal(found, run_nn_lstm(nn_lstm(weights), x_TBI, None))
    assert_equal(found, run_nn_lstm(nn_lstm(weights), x_TBI, [(np.zeros((BATCH, 5)),) * 2] * 2))


@every_stack
def test_carried_state_sees_beyond_the_window_and_zero_state_does_not(
    framework: str, model: str, device: str
) -> None:
    run = stack(framework, model, device, lstm_weights([5, 5]))
    early_TBI, late_TBI = inputs(2), inputs(4)
    changed_TBI = early_TBI.copy()
    changed_TBI[0, 1] += 1
    first, second = run(early_TBI), run(changed_TBI)
    carried = run(late_TBI, first.after).y - run(late_TBI, second.after).y
    # One sample was changed, and every later output of it changes with it; no other sample's does.
    assert (np.abs(carried[:, 1]).max(axis=-1) > 1e-5).all()
    np.testing.assert_array_equal(np.delete(carried, 1, axis=1), 0)
    # Windows of one run, of which the second begins at zero, as the trainer's does at an epoch's start.
    zero = [run(late_TBI).y for _ in (run(early_TBI), run(changed_TBI))]
    np.testing.assert_array_equal(*zero)
    assert np.abs(zero[0] - run(late_TBI, first.after).y).max() > 0.01


@every_stack
def test_one_step_at_a_time_is_the_whole_sequence(framework: str, model: str, device: str) -> None:
    weights, x_TBI, state = lstm_weights([5, 7]), inputs(), random_state([5, 7])
    run = stack(framework, model, device, weights)
    whole = run(x_TBI, state)
    outputs = []
    for x_BI in x_TBI:
        y, state = run(x_BI[None], state)
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
@every_stack
def test_our_stack_has_dropout_on_the_input_and_between_the_layers(
    framework: str, model: str, device: str, place: int
) -> None:
    """All units are dropped in one place: the layer above sees zeros, and what is below is as it was."""
    weights, x_TBI = lstm_weights([5, 7]), inputs()
    factors = iter([float(index != place) for index in range(3)])
    dropped = stack(framework, model, device, weights)(x_TBI, dropout=lambda x: x * next(factors))
    y, after = x_TBI, []
    for layer in range(2):
        single = nn_lstm(only_layer(weights, layer))
        y, layer_after = run_nn_lstm(single, 0 * y if layer == place else y)
        after.extend(layer_after)
    assert_equal(dropped, Result(y, after))


@pytest.mark.parametrize(
    ("framework", "model"),
    [
        pytest.param(framework, model, marks=installed(framework))
        for framework, row in FRAMEWORKS.items()
        for model in row.models
    ],
)
def test_the_language_model_has_dropout_on_the_top_output(
    framework: str, model: str, tiny_config: Config
) -> None:
    """All units are dropped: nothing but the softmax's bias is left to predict from."""
    config = tiny_config.replace(keep_prob=1e-9, num_layers=1)
    weights = random_weights(config, 11, seed=1)
    built = backend.build(
        config, weights, Choice.create(framework=framework, model=model, device="cpu", seed=1)
    )
    ((x_BT, y_BT),) = random_windows(config, 11, 1, seed=2)
    _, loss = built.train_step(x_BT, y_BT, built.zero_state(config.batch_size), learning_rate=0.0)
    (measured,) = built.read([loss])
    bias_V = weights["softmax.bias"]
    expected = -(bias_V - np.log(np.exp(bias_V).sum()))[y_BT].sum()
    assert measured.nll == pytest.approx(expected, rel=1e-6)


@every_stack
def test_layers_may_differ_in_size(framework: str, model: str, device: str) -> None:
    check_sizes(framework, model, device, [3, 8, 5, 7], atol=TOLERANCE)


@pytest.mark.parametrize("framework", [pytest.param(each, marks=installed(each)) for each in FRAMEWORKS])
def test_layers_of_1024_and_1024_and_512_units(framework: str) -> None:
    # The sums of 2,048 products round more than those of 13.
    check_sizes(framework, "cudnn", "cpu", [1024, 1024, 1024, 512], atol=1e-5)


def check_sizes(framework: str, model: str, device: str, widths: list[int], *, atol: float) -> None:
    """Compare a stack with torch.nn.LSTMs of one layer; widths are the input's and each layer's."""
    weights = lstm_weights(widths[1:], width=widths[0])
    x_TBI = inputs(width=widths[0])
    found = stack(framework, model, device, weights)(x_TBI)
    assert [h.shape[1] for h, _ in found.after] == widths[1:]
    y, after = x_TBI, []
    for layer in range(len(widths) - 1):
        y, layer_after = run_nn_lstm(nn_lstm(only_layer(weights, layer)), y)
        after.extend(layer_after)
    assert_equal(found, Result(y, after), atol=atol)


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


@every_stack
def test_both_directions_double_the_width_of_y_and_the_number_of_states(
    framework: str, model: str, device: str
) -> None:
    weights = lstm_weights([5, 5], bidirectional=True)
    x_TBI, state = inputs(), random_state([5] * 4)
    found = stack(framework, model, device, weights, bidirectional=True)(x_TBI, state)
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
