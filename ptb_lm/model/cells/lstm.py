"""Long short-term memory: Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000.

    gates = x @ kernel + h @ recurrent_kernel + bias, split into i, f, g, o
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h' = sigmoid(o) * tanh(c')

Nothing is added to the forget gate, and there are no peepholes.

Shapes: B = batch, I = input width, H = hidden units; gates in the order i (input), f (forget), g (candidate),
o (output) along 4H.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from ptb_lm.model.cells.cell import Array, Cell, LayerState, MemoryGates, sigmoid


class LSTM(Cell):
    """The LSTM."""

    name = "lstm"
    state_names = ("h", "c")
    # As in TensorFlow's tutorial: its variable scope initialises all but the cells' biases, which
    # TensorFlow's cells set to zero (and forget_bias is 0).
    constants: ClassVar[Mapping[str, float]] = {"bias": 0.0}
    memory_gates = MemoryGates("bias", gates=4, forget=1, input=0)

    @override
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "kernel": (input_size, 4 * hidden_size),
            "recurrent_kernel": (hidden_size, 4 * hidden_size),
            "bias": (4 * hidden_size,),
        }

    @override
    def step(self, weights: Mapping[str, Array], x_BI: Array, state: LayerState) -> tuple[LayerState, Any]:
        h_BH, c_BH = state
        gates = x_BI @ weights["kernel"] + h_BH @ weights["recurrent_kernel"] + weights["bias"]
        before_i, before_f, before_g, before_o = np.split(gates, 4, axis=-1)
        i, f, g, o = sigmoid(before_i), sigmoid(before_f), np.tanh(before_g), sigmoid(before_o)
        c_next_BH = f * c_BH + i * g
        tanh_c = np.tanh(c_next_BH)
        return (o * tanh_c, c_next_BH), (x_BI, h_BH, c_BH, i, f, g, o, tanh_c)

    @override
    def step_back(
        self, weights: Mapping[str, Array], tape: Any, d_state: LayerState
    ) -> tuple[Array, LayerState, dict[str, Array]]:
        x_BI, h_BH, c_BH, i, f, g, o, tanh_c = tape
        d_h_BH, d_c_BH = d_state
        d_c_BH = d_c_BH + d_h_BH * o * (1 - tanh_c**2)
        d_gates = np.concatenate(
            [
                d_c_BH * g * i * (1 - i),
                d_c_BH * c_BH * f * (1 - f),
                d_c_BH * i * (1 - g**2),
                d_h_BH * tanh_c * o * (1 - o),
            ],
            axis=-1,
        )
        gradients = {
            "kernel": x_BI.T @ d_gates,
            "recurrent_kernel": h_BH.T @ d_gates,
            "bias": d_gates.sum(axis=0),
        }
        return d_gates @ weights["kernel"].T, (d_gates @ weights["recurrent_kernel"].T, d_c_BH * f), gradients
