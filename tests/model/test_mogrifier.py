"""The Mogrifier's declaration: against its publication, finite differences, the LSTM, and full kernels."""

import numpy as np
import pytest
from support import assert_arrays, assert_gradients

from ptb_lm.model import cells, parameters
from ptb_lm.model.cells.cell import Array, LayerState, sigmoid
from ptb_lm.model.config import Config

BATCH, INPUTS, HIDDEN = 3, 4, 6
SIZES = [(INPUTS, HIDDEN), (HIDDEN, INPUTS), (HIDDEN, HIDDEN)]


class Example:
    """A step of a layer with random weights, its input and state, and the gradient of what it gives."""

    def __init__(self, rounds: int, rank: int, inputs: int = INPUTS, hidden: int = HIDDEN) -> None:
        rng = np.random.default_rng(1)
        self.cell = cells.get("mogrifier_lstm", rounds=rounds, rank=rank)
        shapes = self.cell.shapes(inputs, hidden)
        self.weights: dict[str, Array] = {
            name: rng.uniform(-0.8, 0.8, shape) for name, shape in shapes.items()
        }
        self.x_BI = rng.normal(size=(BATCH, inputs))
        self.state, self.d_state = (
            tuple(rng.normal(size=(BATCH, hidden)) for _ in self.cell.state_names) for _ in range(2)
        )

    def step(self) -> LayerState:
        return self.cell.step(self.weights, self.x_BI, self.state)[0]

    def step_back(self) -> tuple[Array, LayerState, dict[str, Array]]:
        _, tape = self.cell.step(self.weights, self.x_BI, self.state)
        return self.cell.step_back(self.weights, tape, self.d_state)

    def loss(self) -> float:
        return float(sum((a * d).sum() for a, d in zip(self.step(), self.d_state, strict=True)))


@pytest.mark.parametrize(("inputs", "hidden"), SIZES)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("rounds", [0, 1, 2, 5, 6])
def test_gradients_equal_finite_differences(rounds: int, rank: int, inputs: int, hidden: int) -> None:
    example = Example(rounds, rank, inputs, hidden)
    d_x, (d_h, d_c), gradients = example.step_back()
    h, c = example.state
    assert_gradients(
        example.loss,
        {"x": example.x_BI, "h": h, "c": c, **example.weights},
        {"x": d_x, "h": d_h, "c": d_c, **gradients},
        atol=1e-8,
    )


def test_a_step_of_five_rounds_is_the_publication_s() -> None:
    """Written out with column vectors, as its equations are; with the program's biases."""
    example = Example(rounds=5, rank=2)
    w, (h, c) = example.weights, example.state
    q1, q3, q5 = ((left @ right).T for left, right in zip(w["x_gates"], w["x_gates_right"], strict=True))
    r2, r4 = ((left @ right).T for left, right in zip(w["h_gates"], w["h_gates_right"], strict=True))
    bias_q, bias_r = w["x_gates_bias"], w["h_gates_bias"]
    for row, x_0 in enumerate(example.x_BI):
        h_0 = h[row]
        x_1 = 2 * sigmoid(q1 @ h_0 + bias_q[0]) * x_0
        h_2 = 2 * sigmoid(r2 @ x_1 + bias_r[0]) * h_0
        x_3 = 2 * sigmoid(q3 @ h_2 + bias_q[1]) * x_1
        h_4 = 2 * sigmoid(r4 @ x_3 + bias_r[1]) * h_2
        x_5 = 2 * sigmoid(q5 @ h_4 + bias_q[2]) * x_3
        i, f, g, o = np.split(w["kernel"].T @ x_5 + w["recurrent_kernel"].T @ h_4 + w["bias"], 4)
        c_after = sigmoid(f) * c[row] + sigmoid(i) * np.tanh(g)
        np.testing.assert_allclose(example.step()[1][row], c_after, rtol=0, atol=1e-14)
        np.testing.assert_allclose(example.step()[0][row], sigmoid(o) * np.tanh(c_after), rtol=0, atol=1e-14)


def test_without_a_round_it_is_the_lstm() -> None:
    example, lstm = Example(rounds=0, rank=3), cells.get("lstm")
    assert example.cell.shapes(INPUTS, HIDDEN) == lstm.shapes(INPUTS, HIDDEN)
    after, tape = lstm.step(example.weights, example.x_BI, example.state)
    d_x, d_state, gradients = lstm.step_back(example.weights, tape, example.d_state)
    found = example.step_back()
    np.testing.assert_array_equal(example.step(), after)
    np.testing.assert_array_equal(found[0], d_x)
    np.testing.assert_array_equal(found[1], d_state)
    assert found[2].keys() == gradients.keys()
    assert_arrays(found[2], gradients)


def test_a_rank_s_factors_compute_what_their_product_computes() -> None:
    low, full = Example(rounds=5, rank=2), Example(rounds=5, rank=0)
    full.x_BI, full.state, full.d_state = low.x_BI, low.state, low.d_state
    full.weights = {name: array for name, array in low.weights.items() if not name.endswith("_right")}
    for name in ("x_gates", "h_gates"):
        full.weights[name] = low.weights[name] @ low.weights[name + "_right"]
    np.testing.assert_allclose(low.step(), full.step(), rtol=0, atol=1e-14)
    d_x, d_state, gradients = low.step_back()
    expected_d_x, expected_d_state, expected = full.step_back()
    np.testing.assert_allclose(d_x, expected_d_x, rtol=0, atol=1e-13)
    np.testing.assert_allclose(d_state, expected_d_state, rtol=0, atol=1e-13)
    for name in ("x_gates", "h_gates"):
        left, right = low.weights[name], low.weights[name + "_right"]
        d_product = expected.pop(name)
        for found, factor in (
            (gradients.pop(name), d_product @ right.swapaxes(1, 2)),
            (gradients.pop(name + "_right"), left.swapaxes(1, 2) @ d_product),
        ):
            np.testing.assert_allclose(found, factor, rtol=0, atol=1e-13)
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_the_weights_tell_rounds_and_rank(rounds: int, rank: int) -> None:
    cell = cells.get("mogrifier_lstm", rounds=rounds, rank=rank)
    shapes = parameters.stack_shapes(INPUTS, (HIDDEN, HIDDEN), cell=cell)
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    assert not any(array.size == 0 for array in weights.values())
    assert parameters.cell_of(weights) is cells.get("mogrifier_lstm", rounds=rounds, rank=rank * (rounds > 0))


def test_a_configuration_s_rounds_and_rank_are_its_cell_s() -> None:
    config = Config(cell="mogrifier_lstm", mogrifier_rounds=3, mogrifier_rank=7)
    assert config.cell_declaration is cells.get("mogrifier_lstm", rounds=3, rank=7)
    shapes = parameters.shapes(config, vocabulary_size=9)
    assert shapes["mogrifier_lstm.1.x_gates"] == (2, 200, 7)
    assert shapes["mogrifier_lstm.1.h_gates_right"] == (1, 7, 200)
    assert Config(mogrifier_rounds=3).cell_declaration is cells.get("lstm")
