"""Canonical shapes and initial values."""

import numpy as np
import pytest
from support import random_weights
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.model import cells, parameters, reference
from ptb_lm.model.cells import lstm
from ptb_lm.model.cells.cell import Cell
from ptb_lm.model.presets import PRESETS, SMALL


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        *(("small", 4_651_600), ("medium", 19_775_200), ("large", 66_022_000)),
        ("awd", 24_221_600 - 4 * (1150 + 1150 + 400)),  # as published, but with one bias a layer
        ("modern", 13_275_200),  # medium's with tied weights
    ],
)
def test_parameter_counts_are_the_published_ones(preset: str, count: int) -> None:
    zeros = {name: np.empty(shape) for name, shape in parameters.shapes(PRESETS[preset], 10_000).items()}
    assert parameters.count_scalars(zeros) == count


def test_tied_weights_have_no_kernel_of_the_softmax() -> None:
    medium = PRESETS["medium"]
    tied, untied = (parameters.shapes(medium.replace(tie_weights=tie), 10_000) for tie in (True, False))
    assert untied.keys() - tied.keys() == {"softmax.kernel"}
    assert tied == {name: untied[name] for name in tied}
    initial = parameters.draw_initial(medium.replace(tie_weights=True), 10_000, seed=1)
    assert parameters.count_scalars(initial) == 13_275_200
    parameters.check(initial, tied)
    with pytest.raises(UserError, match=r"'softmax\.kernel' is missing"):
        parameters.check(initial, untied)


def test_initial_weights_are_uniform_in_the_scale_with_lstm_biases_zero() -> None:
    config = PRESETS["small"].replace(init_scale=0.04)
    weights = parameters.draw_initial(config, 1000, seed=5)
    for name, weight in weights.items():
        assert weight.dtype == np.float32
        if name.startswith("lstm.") and name.endswith(".bias"):
            assert not weight.any()
        else:
            assert abs(weight).max() <= np.float32(0.04)
            assert weight.mean() == pytest.approx(0, abs=5 * 0.04 / (3 * weight.size) ** 0.5)
            assert weight.std() == pytest.approx(0.04 / 3**0.5, rel=5 / weight.size**0.5)
    again = parameters.draw_initial(config, 1000, seed=5)
    assert all((again[name] == weights[name]).all() for name in weights)
    assert (parameters.draw_initial(config, 1000, seed=6)["embedding"] != weights["embedding"]).any()


@pytest.mark.parametrize(
    ("cell", "constants"),
    [
        ("lstm", {"bias": 0}),
        ("gru", {"bias": 0, "recurrent_bias": 0}),
        (
            "layer_norm_lstm",
            {"bias": 0, "kernel_gain": 1, "recurrent_gain": 1, "cell_gain": 1, "cell_bias": 0},
        ),
        ("mogrifier_lstm", {"bias": 0, "x_gates_bias": 0, "h_gates_bias": 0}),
    ],
)
def test_gains_begin_at_one_and_biases_at_zero(cell: str, constants: dict[str, float]) -> None:
    config = PRESETS["test"].replace(cell=cell)
    weights = parameters.draw_initial(config, 9, seed=5)
    assert {name.split(".")[0] for name in weights} == {"embedding", cell, "softmax"}
    for name, weight in weights.items():
        if name.startswith(f"{cell}.0.") and name.split(".")[2] in constants:
            assert (weight == constants[name.split(".")[2]]).all(), name
            assert not parameters.is_matrix(name, weight.shape), name
        else:
            assert len(np.unique(weight)) == weight.size, name
            assert parameters.is_matrix(name, weight.shape) == (name != "softmax.bias"), name
    constant = [name for name, weight in weights.items() if len(np.unique(weight)) < weight.size]
    assert len([name for name in constant if name.startswith(cell)]) == len(constants)


def test_layers_may_begin_in_a_range_of_their_own() -> None:
    """By the root of each one's units. It scales the same random numbers; nothing else is changed."""
    config = PRESETS["small"].replace(num_layers=3, layer_sizes=(40, 50, 9), embedding_size=30)
    plain = parameters.draw_initial(config, 60, seed=5)
    scaled = parameters.draw_initial(config.replace(layer_init_scale=0.7), 60, seed=5)
    for name, weight in plain.items():
        units = {"lstm.0": 40, "lstm.1": 50, "lstm.2": 9}.get(name[:6])
        bound = 0.7 / units**0.5 if units else config.init_scale
        np.testing.assert_allclose(scaled[name], weight * (bound / 0.1), rtol=1e-6, err_msg=name)
        if weight.any():  # biases begin at zero
            assert 0.9 * bound < np.abs(scaled[name]).max() <= bound, name


@pytest.mark.parametrize("tied", [False, True])
def test_widened_layers_compute_the_same(tied: bool) -> None:
    """Scores and, of the units that were there, state; the units that are new stay at zero."""
    sizes = (4, 7, 5)
    config = SMALL.replace(num_layers=3, layer_sizes=sizes, embedding_size=5, tie_weights=tied)
    weights = random_weights(config, 9, seed=1)
    wide, widened = parameters.widen_layers(config, weights)
    assert (wide.hidden_sizes, wide.tie_weights) == ((7, 7, 7), tied)
    parameters.check(widened, parameters.shapes(wide, 9))
    words_BT = np.random.default_rng(2).integers(9, size=(2, 6))
    state, expected = reference.log_probabilities(weights, words_BT, reference.zero_state(weights, 2))
    after, found = reference.log_probabilities(widened, words_BT, reference.zero_state(widened, 2))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    for layer, wider in zip(state, after, strict=True):
        for part_BH, wider_BH in zip(layer, wider, strict=True):
            size = part_BH.shape[1]
            np.testing.assert_allclose(wider_BH[:, :size], part_BH, rtol=0, atol=1e-13)
            assert not wider_BH[:, size:].any()


def test_check_names_what_does_not_fit() -> None:
    config = PRESETS["small"].replace(hidden_size=4)
    weights = parameters.draw_initial(config, 9, seed=0)
    shapes = parameters.shapes(config, 9)
    parameters.check(weights, shapes)
    with pytest.raises(UserError, match=r"'embedding' has shape \(9, 4\), not \(10, 4\)"):
        parameters.check(weights, parameters.shapes(config, 10))
    with pytest.raises(UserError, match=r"'lstm\.1\.bias' is missing"):
        parameters.check({n: w for n, w in weights.items() if n != "lstm.1.bias"}, shapes)
    with pytest.raises(UserError, match="'embedding' is missing"):  # the first of several
        parameters.check({}, shapes)
    with pytest.raises(UserError, match="'extra' does not belong"):
        parameters.check({**weights, "extra": weights["embedding"]}, shapes)


def test_a_cell_without_a_recurrent_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are counted by it."""

    class Nameless(lstm.LSTM):
        @override
        def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
            return {"gate_kernel": (input_size, hidden_size)}

    monkeypatch.setattr(lstm, "Nameless", Nameless, raising=False)
    row = cells.CellRow(declaration="ptb_lm.model.cells.lstm:Nameless", about="", layers={})
    monkeypatch.setitem(cells.CELLS, "nameless", row)
    with pytest.raises(TypeError, match="recurrent_kernel"):
        cells.get("nameless")


def test_what_a_cell_names_no_constant_for_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawn(lstm.LSTM):
        name = "drawn"
        constants = Cell.constants  # those of a cell that says nothing of them

    monkeypatch.setattr(lstm, "Drawn", Drawn, raising=False)
    row = cells.CellRow(declaration="ptb_lm.model.cells.lstm:Drawn", about="", layers={})
    monkeypatch.setitem(cells.CELLS, "drawn", row)
    weights = parameters.draw_initial(SMALL.replace(cell="drawn", hidden_size=4), 7, seed=1)
    assert len({*weights["drawn.0.bias"]}) == 16
