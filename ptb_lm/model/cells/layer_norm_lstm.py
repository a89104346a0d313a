"""The LSTM with layer normalisation: Ba, Kiros and Hinton, "Layer Normalization", 2016, equations 20 to 22.

    gates = norm(x @ kernel) * kernel_gain + norm(h @ recurrent_kernel) * recurrent_gain + bias,
        split into i, f, g, o
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h' = sigmoid(o) * tanh(norm(c') * cell_gain + cell_bias)

norm takes from each row its mean and divides by its standard deviation: over all 4H of a product, and over
the H units of the cell. The carried state is c' itself. The publication gives each product's normalisation a
bias as well. Together with the gates' own there would be three that add up to one, which SGD would move three
times as fast: they are one here.

Shapes: B = batch, I = input width, H = hidden units; gates in the order i (input), f (forget), g (candidate),
o (output) along 4H.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from ptb_lm.model.cells.cell import Array, Cell, LayerState, sigmoid

EPSILON = 1e-5  # added to the variance: at the first step h is zero, and so is the variance of its product


class LayerNormLSTM(Cell):
    """The LSTM with layer normalisation."""

    name = "layer_norm_lstm"
    state_names = ("h", "c")
    constants: ClassVar[Mapping[str, float]] = {
        "bias": 0.0,
        "kernel_gain": 1.0,
        "recurrent_gain": 1.0,
        "cell_gain": 1.0,
        "cell_bias": 0.0,
    }

    @override
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "kernel": (input_size, 4 * hidden_size),
            "recurrent_kernel": (hidden_size, 4 * hidden_size),
            "bias": (4 * hidden_size,),
            "kernel_gain": (4 * hidden_size,),
            "recurrent_gain": (4 * hidden_size,),
            "cell_gain": (hidden_size,),
            "cell_bias": (hidden_size,),
        }

    @override
    def step(self, weights: Mapping[str, Array], x_BI: Array, state: LayerState) -> tuple[LayerState, Any]:
        h_BH, c_BH = state
        from_x, tape_x = _norm(x_BI @ weights["kernel"])
        from_h, tape_h = _norm(h_BH @ weights["recurrent_kernel"])
        gates = from_x * weights["kernel_gain"] + from_h * weights["recurrent_gain"] + weights["bias"]
        before_i, before_f, before_g, before_o = np.split(gates, 4, axis=-1)
        i, f, g, o = sigmoid(before_i), sigmoid(before_f), np.tanh(before_g), sigmoid(before_o)
        c_next_BH = f * c_BH + i * g
        from_c, tape_c = _norm(c_next_BH)
        tanh_c = np.tanh(from_c * weights["cell_gain"] + weights["cell_bias"])
        return (o * tanh_c, c_next_BH), (x_BI, h_BH, c_BH, i, f, g, o, tanh_c, tape_x, tape_h, tape_c)

    @override
    def step_back(
        self, weights: Mapping[str, Array], tape: Any, d_state: LayerState
    ) -> tuple[Array, LayerState, dict[str, Array]]:
        x_BI, h_BH, c_BH, i, f, g, o, tanh_c, tape_x, tape_h, tape_c = tape
        d_h_BH, d_c_BH = d_state
        d_scaled_c = d_h_BH * o * (1 - tanh_c**2)
        d_c_BH = d_c_BH + _norm_back(tape_c, d_scaled_c * weights["cell_gain"])
        d_gates = np.concatenate(
            [
                d_c_BH * g * i * (1 - i),
                d_c_BH * c_BH * f * (1 - f),
                d_c_BH * i * (1 - g**2),
                d_h_BH * tanh_c * o * (1 - o),
            ],
            axis=-1,
        )
        d_from_x = _norm_back(tape_x, d_gates * weights["kernel_gain"])
        d_from_h = _norm_back(tape_h, d_gates * weights["recurrent_gain"])
        gradients = {
            "kernel": x_BI.T @ d_from_x,
            "recurrent_kernel": h_BH.T @ d_from_h,
            "bias": d_gates.sum(axis=0),
            "kernel_gain": (d_gates * tape_x[0]).sum(axis=0),
            "recurrent_gain": (d_gates * tape_h[0]).sum(axis=0),
            "cell_gain": (d_scaled_c * tape_c[0]).sum(axis=0),
            "cell_bias": d_scaled_c.sum(axis=0),
        }
        return (
            d_from_x @ weights["kernel"].T,
            (d_from_h @ weights["recurrent_kernel"].T, d_c_BH * f),
            gradients,
        )


def _norm(x: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return each row with mean 0 and variance 1, and the tape for _norm_back."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    normed = (centred * scale).astype(x.dtype)
    return normed, (normed, scale.astype(x.dtype))


def _norm_back(tape: tuple[Array, Array], d_normed: Array) -> Array:
    """Return the gradient with respect to the argument of _norm."""
    normed, scale = tape
    along_mean = d_normed.mean(axis=-1, keepdims=True)
    along_normed = (d_normed * normed).mean(axis=-1, keepdims=True)
    return np.asarray(scale * (d_normed - along_mean - normed * along_normed), normed.dtype)
