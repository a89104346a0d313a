"""The Mogrifier: Melis, Kocisky and Blunsom, "Mogrifier LSTM", ICLR 2020, equations 1 and 2.

Before an LSTM's step, its input and its state gate each other in rounds, the input first:

    x = 2 * sigmoid(h @ x_gates[0] + x_gates_bias[0]) * x
    h = 2 * sigmoid(x @ h_gates[0] + h_gates_bias[0]) * h
    x = 2 * sigmoid(h @ x_gates[1] + x_gates_bias[1]) * x        and so on

The LSTM (ptb_lm.model.cells.lstm) then takes a step from the last x and h; its c is left alone. Without a
round it is the LSTM. The gates of x are the publication's Q, those of h its R. Of a rank k, each is a product
of two factors, x_gates[0] @ x_gates_right[0]; the rank holds for all of them, and not for the LSTM's kernels.

The publication has 5 or 6 rounds and ranks of 40 to 100 (Penn Treebank: 5 rounds, rank 84, by its authors'
configuration). The biases are not in its equations, but in the program that made its numbers
(deepmind/lamb, lamb/tiled_lstm.py), and begin with zero as there. Two things of that program are its own and
not here: an LSTM whose input gate is at most 1 - f, and factors that begin with normal numbers, by their
rank. Here they are uniform, as all weights of a run.

Shapes: B = batch, I = input width, H = hidden units, k = rank; X and Y = rounds that gate x and h.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from ptb_lm.model.cells.cell import Array, LayerState, sigmoid
from ptb_lm.model.cells.lstm import LSTM

GATES = ("x_gates", "h_gates")  # what the rounds gate, in turn
RIGHT, BIAS = "_right", "_bias"  # the ends of the names of their second factors, and of their biases


class MogrifierLSTM(LSTM):
    """The LSTM whose input and state gate each other.

    Args:
        rounds: The number of rounds, X + Y.
        rank: k; 0: the gates' kernels are no products.
    """

    name = "mogrifier_lstm"
    constants: ClassVar[Mapping[str, float]] = {**LSTM.constants, **{name + BIAS: 0.0 for name in GATES}}

    def __init__(self, rounds: int = 5, rank: int = 0) -> None:
        self.rounds = rounds
        self.rank = rank
        self.kept_values = LSTM.kept_values + rounds  # what each makes of the input or the state, too

    @override
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        table = super().shapes(input_size, hidden_size)
        widths = (input_size, hidden_size)
        for side, name in enumerate(GATES):
            count, width, other_width = (self.rounds + 1 - side) // 2, widths[side], widths[1 - side]
            if count == 0:
                continue
            table[name] = (count, other_width, self.rank or width)
            if self.rank:
                table[name + RIGHT] = (count, self.rank, width)
            table[name + BIAS] = (count, width)
        return table

    @override
    def options_of(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        ranks = [shapes[name][-1] for name in GATES if {name, name + RIGHT} <= shapes.keys()]
        return {
            "rounds": sum(shapes[name][0] for name in GATES if name in shapes),
            "rank": ranks[0] if ranks else 0,
        }

    @override
    def step(self, weights: Mapping[str, Array], x_BI: Array, state: LayerState) -> tuple[LayerState, Any]:
        h_BH, c_BH = state
        pair, tape = [x_BI, h_BH], []
        for number in range(sum(len(weights[name]) for name in GATES if name in weights)):
            index, side = divmod(number, 2)
            name, gated, other = GATES[side], pair[side], pair[1 - side]
            inner = product = other @ weights[name][index]
            if name + RIGHT in weights:
                product = inner @ weights[name + RIGHT][index]
            gate = 2 * sigmoid(product + weights[name + BIAS][index])
            pair[side] = gate * gated
            tape.append((gated, other, inner, gate))
        after, lstm_tape = super().step(weights, pair[0], (pair[1], c_BH))
        return after, (tape, lstm_tape)

    @override
    def step_back(
        self, weights: Mapping[str, Array], tape: Any, d_state: LayerState
    ) -> tuple[Array, LayerState, dict[str, Array]]:
        rounds, lstm_tape = tape
        d_x_BI, (d_h_BH, d_c_BH), d_lstm = super().step_back(weights, lstm_tape, d_state)
        d_pair = [d_x_BI, d_h_BH]
        gradients = {name: np.zeros_like(array) for name, array in weights.items()} | d_lstm
        for number, (gated, other, inner, gate) in reversed(list(enumerate(rounds))):
            index, side = divmod(number, 2)
            name = GATES[side]
            # With respect to the argument of the nonlinearity: with s = gate / 2, the slope is 2 s (1 - s).
            d_product = d_pair[side] * gated * gate * (1 - gate / 2)
            d_pair[side] = d_pair[side] * gate
            gradients[name + BIAS][index] = d_product.sum(axis=0)
            if name + RIGHT in weights:
                gradients[name + RIGHT][index] = inner.T @ d_product
                d_product = d_product @ weights[name + RIGHT][index].T
            gradients[name][index] = other.T @ d_product
            d_pair[1 - side] = d_pair[1 - side] + d_product @ weights[name][index].T
        return d_pair[0], (d_pair[1], d_c_BH), gradients
