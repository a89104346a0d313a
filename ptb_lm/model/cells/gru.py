"""The gated recurrent unit, as cuDNN and torch compute it.

    a = x @ kernel + bias, and b = h @ recurrent_kernel, each split into r, z, n
    r = sigmoid(a_r + b_r)
    z = sigmoid(a_z + b_z)
    n = tanh(a_n + r * (b_n + recurrent_bias))
    h' = (1 - z) * n + z * h

In Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, the reset gate r multiplies
h before the product with the recurrent kernel; here it multiplies the product, so that one product serves all
three gates. There are two biases where they differ: r multiplies the candidate's second one. For the gates r
and z two would add up to one, which SGD would move twice as fast, so they have one.

Shapes: B = batch, I = input width, H = hidden units; gates in the order r (reset), z (update), n (candidate)
along 3H.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from ptb_lm.model.cells.cell import Array, Cell, LayerState, sigmoid


class GRU(Cell):
    """The GRU; it carries h alone."""

    name = "gru"
    state_names = ("h",)
    constants: ClassVar[Mapping[str, float]] = {"bias": 0.0, "recurrent_bias": 0.0}

    @override
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "kernel": (input_size, 3 * hidden_size),
            "recurrent_kernel": (hidden_size, 3 * hidden_size),
            "bias": (3 * hidden_size,),
            "recurrent_bias": (hidden_size,),
        }

    @override
    def step(self, weights: Mapping[str, Array], x_BI: Array, state: LayerState) -> tuple[LayerState, Any]:
        (h_BH,) = state
        a_r, a_z, a_n = np.split(x_BI @ weights["kernel"] + weights["bias"], 3, axis=-1)
        b_r, b_z, b_n = np.split(h_BH @ weights["recurrent_kernel"], 3, axis=-1)
        b_n = b_n + weights["recurrent_bias"]
        r, z = sigmoid(a_r + b_r), sigmoid(a_z + b_z)
        n = np.tanh(a_n + r * b_n)
        return ((1 - z) * n + z * h_BH,), (x_BI, h_BH, r, z, n, b_n)

    @override
    def step_back(
        self, weights: Mapping[str, Array], tape: Any, d_state: LayerState
    ) -> tuple[Array, LayerState, dict[str, Array]]:
        x_BI, h_BH, r, z, n, b_n = tape
        (d_h_BH,) = d_state
        # With respect to the arguments of the nonlinearities.
        d_n = d_h_BH * (1 - z) * (1 - n**2)
        d_z = d_h_BH * (h_BH - n) * z * (1 - z)
        d_r = d_n * b_n * r * (1 - r)
        d_a = np.concatenate([d_r, d_z, d_n], axis=-1)
        d_b = np.concatenate([d_r, d_z, d_n * r], axis=-1)
        gradients = {
            "kernel": x_BI.T @ d_a,
            "recurrent_kernel": h_BH.T @ d_b,
            "bias": d_a.sum(axis=0),
            "recurrent_bias": (d_n * r).sum(axis=0),
        }
        d_h_before_BH = d_h_BH * z + d_b @ weights["recurrent_kernel"].T
        return d_a @ weights["kernel"].T, (d_h_before_BH,), gradients
