"""reference_stack.py against finite differences, torch's own LSTM, and what can be written down by hand."""

import numpy as np
import pytest
import torch
from support import numeric_gradient
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ptb_lm.model import parameters
from ptb_lm.model.reference_stack import stack_backward, stack_forward, stack_zero_state

STEPS, BATCH, FEATURES = 6, 3, 4
LENGTHS = np.array([4, 6, 1])
PADDING_TB = np.arange(STEPS)[:, None] >= LENGTHS

both_directions = pytest.mark.parametrize("bidirectional", [False, True])
with_and_without_lengths = pytest.mark.parametrize("lengths", [None, LENGTHS])


class Example:
    """A stack with random weights and biases, its input, and a loss that is linear in what it gives."""

    def __init__(self, hidden_sizes: tuple[int, ...], *, bidirectional: bool) -> None:
        rng = np.random.default_rng(0)
        shapes = parameters.stack_shapes(FEATURES, hidden_sizes, bidirectional=bidirectional)
        directions = 2 if bidirectional else 1
        self.widths = [FEATURES, *(directions * hidden for hidden in hidden_sizes)]
        self.weights = {name: rng.uniform(-0.8, 0.8, shape) for name, shape in shapes.items()}
        self.x_TBI = rng.normal(size=(STEPS, BATCH, FEATURES))
        self.state, self.d_state = (
            [
                (rng.uniform(-1, 1, (BATCH, hidden)), rng.uniform(-1, 1, (BATCH, hidden)))
                for hidden in hidden_sizes
                for _ in range(directions)
            ]
            for _ in range(2)
        )
        self.d_output_TBK = rng.normal(size=(STEPS, BATCH, self.widths[-1]))
        self.masks = [rng.integers(2, size=(STEPS, BATCH, width)) / 0.5 for width in self.widths]


def flat(state: object) -> list[np.ndarray]:
    return [array for pair in state for array in pair]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("lengths", "with_dropout"), [(None, False), (LENGTHS, False), (LENGTHS, True)])
@both_directions
def test_gradients_equal_finite_differences(
    bidirectional: bool, lengths: np.ndarray | None, with_dropout: bool
) -> None:
    example = Example((3, 2), bidirectional=bidirectional)
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
    analytic = [d_x_TBI, *flat(d_before), *gradients.values()]
    variables = [example.x_TBI, *flat(example.state), *(example.weights[name] for name in gradients)]
    for gradient, variable in zip(analytic, variables, strict=True):
        np.testing.assert_allclose(gradient, numeric_gradient(loss, variable), rtol=0, atol=1e-8)


@with_and_without_lengths
@both_directions
def test_it_equals_the_lstm_of_torch(bidirectional: bool, lengths: np.ndarray | None) -> None:
    hidden, layers = 5, 2
    example = Example((hidden,) * layers, bidirectional=bidirectional)
    lstm = torch.nn.LSTM(FEATURES, hidden, layers, bidirectional=bidirectional, dtype=torch.float64)
    # torch has two biases, which it adds.
    theirs = {"kernel": "weight_ih", "recurrent_kernel": "weight_hh", "bias": "bias_ih"}
    names = {}
    for layer in range(layers):
        for prefix in parameters.directions(layer, bidirectional=bidirectional):
            suffix = f"_l{layer}" + ("_reverse" if "reverse" in prefix else "")
            names.update({prefix + ours: their + suffix for ours, their in theirs.items()})
            torch.nn.init.zeros_(getattr(lstm, "bias_hh" + suffix))
    with torch.no_grad():
        for ours, their in names.items():
            getattr(lstm, their).copy_(torch.from_numpy(example.weights[ours].T))
    x = torch.from_numpy(example.x_TBI).requires_grad_()
    h, c = (
        torch.from_numpy(np.stack(arrays)).requires_grad_() for arrays in zip(*example.state, strict=True)
    )
    sequences = (
        x if lengths is None else pack_padded_sequence(x, torch.from_numpy(lengths), enforce_sorted=False)
    )
    output, after = lstm(sequences, (h, c))
    if lengths is not None:
        output, _ = pad_packed_sequence(output)
    d_after = [torch.from_numpy(np.stack(arrays)) for arrays in zip(*example.d_state, strict=True)]
    torch.autograd.backward([output, *after], [torch.from_numpy(example.d_output_TBK), *d_after])

    output_TBK, after_ours, tape = stack_forward(
        example.weights, example.x_TBI, example.state, lengths_B=lengths
    )
    d_x_TBI, gradients, d_before = stack_backward(
        example.weights, tape, example.d_output_TBK, example.d_state
    )
    expected = [output, x.grad, *after, h.grad, c.grad]
    computed = [output_TBK, d_x_TBI, *zip(*after_ours, strict=True), *zip(*d_before, strict=True)]
    for ours, their in zip(computed, expected, strict=True):
        np.testing.assert_allclose(ours, their.detach().numpy(), rtol=0, atol=1e-13)
    for ours, their in names.items():
        their_gradient = getattr(lstm, their).grad.numpy().T
        np.testing.assert_allclose(gradients[ours], their_gradient, rtol=0, atol=1e-13, err_msg=ours)


@both_directions
def test_what_the_padding_holds_has_no_influence(bidirectional: bool) -> None:
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
def test_single_precision_stays_single(bidirectional: bool) -> None:
    example = Example((3, 2), bidirectional=bidirectional)
    weights = {name: array.astype(np.float32) for name, array in example.weights.items()}
    x_TBI, d_output_TBK = (array.astype(np.float32) for array in (example.x_TBI, example.d_output_TBK))
    state = stack_zero_state(weights, BATCH)
    output_TBK, after, tape = stack_forward(weights, x_TBI, state, lengths_B=LENGTHS)
    d_x_TBI, gradients, d_before = stack_backward(weights, tape, d_output_TBK)
    for array in (output_TBK, d_x_TBI, *flat(after), *flat(d_before), *gradients.values()):
        assert array.dtype == np.float32


@pytest.mark.parametrize("length", [-1, 0, STEPS + 1])
def test_a_length_outside_the_sequence_is_refused(length: int) -> None:
    example = Example((5,), bidirectional=False)
    with pytest.raises(ValueError, match="lengths must be 1 to 6"):
        stack_forward(example.weights, example.x_TBI, example.state, lengths_B=np.array([2, length, 3]))
