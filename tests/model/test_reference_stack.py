"""The oracle: every cell against finite differences, torch's own layers, and what can be written by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from support import assert_gradients
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ptb_lm.model import cells, parameters
from ptb_lm.model.cells import CELLS, LSTM
from ptb_lm.model.reference import stack_backward, stack_forward, zero_state

STEPS, BATCH, FEATURES = 6, 3, 4
LENGTHS = np.array([4, 6, 1])
PADDING_TB = np.arange(STEPS)[:, None] >= LENGTHS

every_cell = pytest.mark.parametrize("cell", CELLS)
both_directions = pytest.mark.parametrize("bidirectional", [False, True])


class Example:
    """A stack with random weights and biases, its input, and a loss that is linear in what it gives."""

    def __init__(self, hidden_sizes: tuple[int, ...], *, bidirectional: bool, cell: str = LSTM) -> None:
        rng = np.random.default_rng(0)
        shapes = parameters.stack_shapes(
            FEATURES, hidden_sizes, cell=cells.get(cell), bidirectional=bidirectional
        )
        directions = 2 if bidirectional else 1
        self.widths = [FEATURES, *(directions * hidden for hidden in hidden_sizes)]
        self.weights = {name: rng.uniform(-0.8, 0.8, shape) for name, shape in shapes.items()}
        self.x_TBI = rng.normal(size=(STEPS, BATCH, FEATURES))
        self.state, self.d_state = (
            [
                tuple(rng.uniform(-1, 1, (BATCH, hidden)) for _ in cells.get(cell).state_names)
                for hidden in hidden_sizes
                for _ in range(directions)
            ]
            for _ in range(2)
        )
        self.d_output_TBK = rng.normal(size=(STEPS, BATCH, self.widths[-1]))
        self.masks = [rng.integers(2, size=(STEPS, BATCH, width)) / 0.5 for width in self.widths]
        for mask in self.masks:
            mask[..., 0] = 2  # where all of a row is dropped, a normalisation is too steep for differences


def flat(state: object) -> list[np.ndarray]:
    return [array for pair in state for array in pair]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cell", "bidirectional", "lengths", "with_dropout"),
    [
        (cell, bidirectional, lengths, with_dropout)
        for cell in CELLS
        for bidirectional in (False, True)
        for lengths, with_dropout in ((None, False), (LENGTHS, False), (LENGTHS, True))
        if cell == LSTM or (bidirectional and with_dropout)  # all at once
    ],
)
def test_gradients_equal_finite_differences(
    cell: str, bidirectional: bool, lengths: np.ndarray | None, with_dropout: bool
) -> None:
    normalised = "norm" in cell
    # Two units that are normalised are 1 and -1 whatever they were.
    example = Example((4,) if normalised else (3, 2), bidirectional=bidirectional, cell=cell)
    masks = example.masks if with_dropout else None

    def loss() -> float:
        output_TBK, after, _ = stack_forward(
            example.weights, example.x_TBI, example.state, lengths_B=lengths, masks=masks
        )
        by_state = sum((a * d).sum() for a, d in zip(flat(after), flat(example.d_state), strict=True))
        return float((output_TBK * example.d_output_TBK).sum() + by_state)

    *_, tape = stack_forward(example.weights, example.x_TBI, example.state, lengths_B=lengths, masks=masks)
    d_x_TBI, gradients, d_before = stack_backward(
        example.weights, tape, example.d_output_TBK, example.d_state
    )
    assert gradients.keys() == example.weights.keys()
    states = {f"state {index}": part for index, part in enumerate(flat(example.state))}
    d_states = {f"state {index}": part for index, part in enumerate(flat(d_before))}
    assert_gradients(
        loss,
        {"x": example.x_TBI, **states, **example.weights},
        {"x": d_x_TBI, **d_states, **gradients},
        atol=1e-8,
    )


@pytest.mark.parametrize(
    "lengths", [None, LENGTHS, LENGTHS.clip(max=5)], ids=["full", "some full", "none full"]
)
@both_directions
@pytest.mark.parametrize(("cell", "layer_of_torch"), [(LSTM, torch.nn.LSTM), ("gru", torch.nn.GRU)])
def test_it_equals_the_layer_of_torch(
    cell: str, layer_of_torch: type[torch.nn.RNNBase], bidirectional: bool, lengths: np.ndarray | None
) -> None:
    hidden, layers = 5, 2
    example = Example((hidden,) * layers, bidirectional=bidirectional, cell=cell)
    layer_by_torch = layer_of_torch(
        FEATURES, hidden, layers, bidirectional=bidirectional, dtype=torch.float64
    )
    # torch has two biases, which it adds, but for the GRU's candidate.
    theirs = {"kernel": "weight_ih", "recurrent_kernel": "weight_hh", "bias": "bias_ih"}
    names = {}
    with torch.no_grad():
        for layer in range(layers):
            for prefix in parameters.direction_prefixes(layer, bidirectional=bidirectional, cell=cell):
                suffix = f"_l{layer}" + ("_reverse" if "reverse" in prefix else "")
                names |= {prefix + ours: their + suffix for ours, their in theirs.items()}
                second = layer_by_torch.get_parameter("bias_hh" + suffix).zero_()
                if cell == "gru":
                    second[2 * hidden :] = torch.from_numpy(example.weights[prefix + "recurrent_bias"])
        for ours, their in names.items():
            layer_by_torch.get_parameter(their).copy_(torch.from_numpy(example.weights[ours].T))
    x, *state, d_output = (
        torch.from_numpy(np.stack(arrays)).requires_grad_()
        for arrays in (example.x_TBI, *zip(*example.state, strict=True), example.d_output_TBK)
    )
    sequences: Any = x
    if lengths is not None:
        sequences = pack_padded_sequence(x, torch.from_numpy(lengths), enforce_sorted=False)
    output, after = layer_by_torch(sequences, tuple(state) if cell == LSTM else state[0])
    if lengths is not None:
        output, _ = pad_packed_sequence(output, total_length=STEPS)
    after = after if cell == LSTM else (after,)
    d_after = [torch.from_numpy(np.stack(arrays)) for arrays in zip(*example.d_state, strict=True)]
    torch.autograd.backward([output, *after], [d_output, *d_after])

    output_TBK, after_ours, tape = stack_forward(
        example.weights, example.x_TBI, example.state, lengths_B=lengths
    )
    d_x_TBI, gradients, d_before = stack_backward(
        example.weights, tape, example.d_output_TBK, example.d_state
    )
    expected = [output, x.grad, *after, *(part.grad for part in state)]
    computed = [output_TBK, d_x_TBI, *zip(*after_ours, strict=True), *zip(*d_before, strict=True)]
    for ours, their in zip(computed, expected, strict=True):
        np.testing.assert_allclose(ours, their.detach().numpy(), rtol=0, atol=1e-13)
    for ours, their in names.items():
        their_gradient = layer_by_torch.get_parameter(their).grad.numpy().T
        np.testing.assert_allclose(gradients[ours], their_gradient, rtol=0, atol=1e-13, err_msg=ours)


@both_directions
def test_the_values_of_the_padding_have_no_influence(bidirectional: bool) -> None:
    """NaN in the padding of everything that has one: of the input, the masks and the output's gradient."""
    example = Example((3, 2), bidirectional=bidirectional)
    results = []
    for _ in range(2):
        output_TBK, after, tape = stack_forward(
            example.weights, example.x_TBI, example.state, lengths_B=LENGTHS, masks=example.masks
        )
        d_x_TBI, gradients, d_before = stack_backward(
            example.weights, tape, example.d_output_TBK, example.d_state
        )
        assert not output_TBK[PADDING_TB].any()
        assert not d_x_TBI[PADDING_TB].any()
        results.append([output_TBK, d_x_TBI, *flat(after), *flat(d_before), *gradients.values()])
        for array in (example.x_TBI, example.d_output_TBK, *example.masks):
            array[PADDING_TB] = np.nan
    for clean, with_nan in zip(*results, strict=True):
        np.testing.assert_array_equal(clean, with_nan)


@both_directions
def test_full_lengths_are_as_none(bidirectional: bool) -> None:
    example = Example((3, 2), bidirectional=bidirectional)
    results = []
    for lengths in (None, np.full(BATCH, STEPS)):
        output_TBK, after, _ = stack_forward(
            example.weights, example.x_TBI, example.state, lengths_B=lengths, masks=example.masks
        )
        results.append([output_TBK, *flat(after)])
    for without, with_lengths in zip(*results, strict=True):
        np.testing.assert_allclose(with_lengths, without, rtol=0, atol=1e-14)


@both_directions
def test_without_weights_the_cell_halves_at_every_valid_step(bidirectional: bool) -> None:
    """Every gate is 1/2 and nothing new comes in: c halves, and h is half of tanh c."""
    example = Example((3, 2), bidirectional=bidirectional)
    weights = {name: np.zeros_like(array) for name, array in example.weights.items()}
    output_TBK, after, _ = stack_forward(weights, example.x_TBI, example.state, lengths_B=LENGTHS)
    for (h_BH, c_BH), (_, before_BH) in zip(after, example.state, strict=True):
        np.testing.assert_allclose(c_BH, before_BH * 0.5 ** LENGTHS[:, None], rtol=1e-14)
        np.testing.assert_allclose(h_BH, 0.5 * np.tanh(c_BH), rtol=1e-14)
    step_TB1 = np.arange(STEPS)[:, None, None]
    steps_read = [step_TB1 + 1, LENGTHS[:, None] - step_TB1]  # by the forward and the reverse direction
    top = example.state[-2:] if bidirectional else example.state[-1:]
    expected = [0.5 * np.tanh(c_BH * 0.5**n) for (_, c_BH), n in zip(top, steps_read, strict=False)]
    valid = ~PADDING_TB
    np.testing.assert_allclose(output_TBK[valid], np.concatenate(expected, axis=-1)[valid], rtol=1e-14)


@both_directions
@every_cell
def test_single_precision_stays_single(cell: str, bidirectional: bool) -> None:
    example = Example((3, 2), bidirectional=bidirectional, cell=cell)
    weights = {name: array.astype(np.float32) for name, array in example.weights.items()}
    x_TBI, d_output_TBK = (array.astype(np.float32) for array in (example.x_TBI, example.d_output_TBK))
    state = zero_state(weights, BATCH)
    output_TBK, after, tape = stack_forward(weights, x_TBI, state, lengths_B=LENGTHS)
    d_x_TBI, gradients, d_before = stack_backward(weights, tape, d_output_TBK)
    for array in (output_TBK, d_x_TBI, *flat(after), *flat(d_before), *gradients.values()):
        assert array.dtype == np.float32


@pytest.mark.parametrize("length", [-1, 0, STEPS + 1])
def test_a_length_outside_the_sequence_is_refused(length: int) -> None:
    example = Example((5,), bidirectional=False)
    with pytest.raises(ValueError, match=r"lengths .* 6"):
        stack_forward(example.weights, example.x_TBI, example.state, lengths_B=np.array([2, length, 3]))


@pytest.mark.parametrize("name", ["kernel", "recurrent_kernel"])
def test_layer_normalisation_forgets_the_scale_and_the_mean_of_a_product(name: str) -> None:
    """A kernel times a number, and the same added to all of a row's products: the output is as it was."""
    example = Example((6,), bidirectional=False, cell="layer_norm_lstm")
    full = f"layer_norm_lstm.0.{name}"
    example.weights[full] *= 1e4  # so that nothing is seen of the epsilon
    expected, _, _ = stack_forward(example.weights, example.x_TBI, example.state)
    kernel = example.weights[full]
    for changed in (3 * kernel, kernel + 1e4 * np.arange(len(kernel))[:, None]):
        found, _, _ = stack_forward({**example.weights, full: changed}, example.x_TBI, example.state)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert (
        abs(
            stack_forward({**example.weights, full: -kernel}, example.x_TBI, example.state)[0] - expected
        ).max()
        > 0.1
    )


def test_one_step_of_layer_normalisation_by_hand() -> None:
    """One unit: a cell's normalisation leaves its bias alone, and the gates' are over four numbers."""
    x, h, c = 2.0, 0.3, -0.4
    kernel, recurrent = np.array([0.1, 0.2, 0.3, 0.5]), np.array([0.5, -0.6, 0.7, 0.8])
    gains, bias = (np.array([1.5, 0.5, 2.0, 1.0]), np.array([0.3, 1.0, -1.0, 2.0])), [0.1, 0.2, 0.3, 0.4]
    weights = {
        "kernel": kernel[None],
        "recurrent_kernel": recurrent[None],
        "bias": np.array(bias),
        "kernel_gain": gains[0],
        "recurrent_gain": gains[1],
        "cell_gain": np.array([7.0]),
        "cell_bias": np.array([0.6]),
    }

    def normalise(product: np.ndarray) -> np.ndarray:
        deviation = math.sqrt(float(np.var(product)) + 1e-5)
        return (product - product.mean()) / deviation

    i, f, g, o = normalise(x * kernel) * gains[0] + normalise(h * recurrent) * gains[1] + bias
    expected_c = c / (1 + math.exp(-f)) + math.tanh(g) / (1 + math.exp(-i))
    expected_h = math.tanh(0.6) / (1 + math.exp(-o))
    cell = cells.get("layer_norm_lstm")
    (h_BH, c_BH), _ = cell.step(weights, np.array([[x]]), (np.array([[h]]), np.array([[c]])))
    assert float(c_BH[0, 0]) == pytest.approx(expected_c, rel=1e-14)
    assert float(h_BH[0, 0]) == pytest.approx(expected_h, rel=1e-14)
