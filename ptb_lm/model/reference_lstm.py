"""A stack of LSTM layers in NumPy, forward and backward: what the other references stand on.

Written to be read and checked, not to be fast. It computes in the precision of the weights it is given.

Shapes: B = batch, T = time steps, I = input width, H = hidden units, L = layers, K = the stack's output width
(H, or 2H if bidirectional). Gates lie in the order i, f, g, o along 4H.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.model import parameters

Array = NDArray[np.floating]
# (h_BH, c_BH) of layer 0 forward, layer 0 reverse if there is one, layer 1 forward ...
StackState = Sequence[tuple[Array, Array]]


class _Piece(NamedTuple):
    """What the backward pass needs of some rows of the batch, cut to the steps that they have in common."""

    rows: slice
    steps: int
    masks: Sequence[Array | float]
    tapes: list[list[Any]]  # one for each layer or direction, in the state's order


Tape = list[_Piece]


def stack_zero_state(weights: Mapping[str, Array], batch: int) -> StackState:
    """Return a stack's zero state for a batch."""
    kernels = [weights[prefix + "recurrent_kernel"] for layer in _layers(weights) for prefix in layer]
    return [
        (np.zeros((batch, len(kernel)), kernel.dtype), np.zeros((batch, len(kernel)), kernel.dtype))
        for kernel in kernels
    ]


def stack_forward(
    weights: Mapping[str, Array],
    x_TBI: Array,
    state: StackState,
    *,
    lengths_B: NDArray[np.integer] | None = None,
    masks: Sequence[Array] | None = None,
) -> tuple[Array, StackState, Tape]:
    """Run a stack of LSTM layers over sequences.

    Args:
        weights: Canonical parameters (parameters.lstm_shapes), which tell the sizes and directions.
        x_TBI: Inputs; what lies beyond a sequence's length is never read.
        state: Where each layer and direction begins: a reverse one at the sequence's last valid step.
        lengths_B: Steps of each sequence, 1 to T. None: all T.
        masks: L + 1 dropout masks, 0 or 1 / keep_prob: [T, B, I] for the input, then [T, B, its output
            width] for the output of each layer; [1, B, ...] where one holds for all steps. None: no dropout.

    Returns:
        (output_TBK, state, tape): the output is zero beyond a sequence's length; the state is the one after
        the last valid step that each direction reads, which is step 0 for a reverse one; the tape is for
        stack_backward.

    Raises:
        ValueError: A length is not one of 1 to T.
    """
    steps, batch, _ = x_TBI.shape
    if lengths_B is None:
        cuts = [(slice(0, batch), steps)]
    elif all(1 <= length <= steps for length in lengths_B):
        cuts = [(slice(row, row + 1), int(length)) for row, length in enumerate(lengths_B)]
    else:
        raise ValueError(f"lengths must be 1 to {steps}, not {lengths_B}")
    layers = _layers(weights)
    outputs, states, tape = [], [], []
    for rows, length in cuts:
        kept = [1.0] * (len(layers) + 1) if masks is None else [mask[:length, rows] for mask in masks]
        output_TBK, after, tapes = _piece_forward(
            weights, x_TBI[:length, rows], [(h_BH[rows], c_BH[rows]) for h_BH, c_BH in state], kept
        )
        padding = ((0, steps - length), (0, 0), (0, 0))
        outputs.append(np.pad(output_TBK, padding))
        states.append(after)
        tape.append(_Piece(rows, length, kept, tapes))
    return np.concatenate(outputs, axis=1), _join(states), tape


def stack_backward(
    weights: Mapping[str, Array], tape: Tape, d_output_TBK: Array, d_state: StackState | None = None
) -> tuple[Array, dict[str, Array], StackState]:
    """Take the gradient of some loss back through stack_forward.

    Args:
        weights: Those of the forward pass.
        tape: What the forward pass returned.
        d_output_TBK: The loss's gradient by the output; beyond a sequence's length it is never read.
        d_state: The loss's gradient by the state after. None: zero.

    Returns:
        (d_x_TBI, gradients, d_state): the gradient by the input, which is zero beyond a sequence's length, by
        each of the stack's parameters, and by the state before.
    """
    steps, batch, _ = d_output_TBK.shape
    d_state = stack_zero_state(weights, batch) if d_state is None else d_state
    gradients = {name: np.zeros_like(array) for name, array in weights.items() if name.startswith("lstm.")}
    d_inputs, d_states = [], []
    for piece in tape:
        d_x_TBI, d_before = _piece_backward(
            weights,
            piece,
            d_output_TBK[: piece.steps, piece.rows],
            [(d_h_BH[piece.rows], d_c_BH[piece.rows]) for d_h_BH, d_c_BH in d_state],
            gradients,
        )
        d_inputs.append(np.pad(d_x_TBI, ((0, steps - piece.steps), (0, 0), (0, 0))))
        d_states.append(d_before)
    return np.concatenate(d_inputs, axis=1), gradients, _join(d_states)


def _layers(weights: Mapping[str, Array]) -> list[tuple[str, ...]]:
    """Return the prefixes of the parameters' names: of each layer, of each of its directions."""
    bidirectional = "lstm.0.reverse.kernel" in weights
    directions = 2 if bidirectional else 1
    count = sum(name.endswith(".recurrent_kernel") for name in weights) // directions
    return [parameters.directions(layer, bidirectional=bidirectional) for layer in range(count)]


def _layer_weights(weights: Mapping[str, Array], prefix: str) -> tuple[Array, Array, Array]:
    return weights[prefix + "kernel"], weights[prefix + "recurrent_kernel"], weights[prefix + "bias"]


def _join(states: Sequence[StackState]) -> StackState:
    """Join the states of the batch's pieces."""
    return [
        (np.concatenate([h_BH for h_BH, _ in pieces]), np.concatenate([c_BH for _, c_BH in pieces]))
        for pieces in zip(*states, strict=True)
    ]


def _in_reading_order(x_TBH: Array, direction: int) -> Array:
    """Turn time around for the reverse direction, 1; doing it again undoes it."""
    return x_TBH[::-1] if direction else x_TBH


def _piece_forward(
    weights: Mapping[str, Array], x_TBI: Array, state: StackState, masks: Sequence[Array | float]
) -> tuple[Array, StackState, list[list[Any]]]:
    """Return (output_TBK, the state after, a tape for each layer and direction): all T steps are valid."""
    after: list[tuple[Array, Array]] = []
    tapes: list[list[Any]] = []
    output_TBK = x_TBI * masks[0]
    for prefixes, mask in zip(_layers(weights), masks[1:], strict=True):
        outputs = []
        for direction, prefix in enumerate(prefixes):
            h_TBH, c_BH, tape = _layer_forward(
                _in_reading_order(output_TBK, direction),
                *state[len(tapes)],
                *_layer_weights(weights, prefix),
            )
            after.append((h_TBH[-1], c_BH))
            tapes.append(tape)
            outputs.append(_in_reading_order(h_TBH, direction))
        output_TBK = np.concatenate(outputs, axis=-1) * mask
    return output_TBK, after, tapes


def _piece_backward(
    weights: Mapping[str, Array],
    piece: _Piece,
    d_output_TBK: Array,
    d_state: StackState,
    gradients: dict[str, Array],
) -> tuple[Array, StackState]:
    """Return (d_x_TBI, the gradient by the state before); add to the gradients by the parameters."""
    layers = _layers(weights)
    d_before = list(d_state)
    for layer in reversed(range(len(layers))):
        prefixes = layers[layer]
        d_outputs = np.split(d_output_TBK * piece.masks[layer + 1], len(prefixes), axis=-1)
        d_inputs = []
        for direction, (prefix, d_h_TBH) in enumerate(zip(prefixes, d_outputs, strict=True)):
            index = layer * len(prefixes) + direction
            d_x_TBI, d_before[index], d_weights = _layer_backward(
                _in_reading_order(d_h_TBH, direction),
                *d_state[index],
                piece.tapes[index],
                *_layer_weights(weights, prefix),
            )
            d_inputs.append(_in_reading_order(d_x_TBI, direction))
            for name, d_weight in zip(("kernel", "recurrent_kernel", "bias"), d_weights, strict=True):
                gradients[prefix + name] += d_weight
        d_output_TBK = np.add.reduce(d_inputs)
    return d_output_TBK * piece.masks[0], d_before


def _sigmoid(x: Array) -> Array:
    # By tanh, because exp(-x) overflows for large negative x.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), x.dtype)


def _layer_forward(
    x_TBI: Array, h_BH: Array, c_BH: Array, kernel: Array, recurrent_kernel: Array, bias: Array
) -> tuple[Array, Array, list[Any]]:
    """Return (h_TBH, the last c_BH, the tape: what the backward pass needs of each step)."""
    outputs, tape = [], []
    for x_BI in x_TBI:
        i, f, g, o = np.split(x_BI @ kernel + h_BH @ recurrent_kernel + bias, 4, axis=-1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c_next_BH = f * c_BH + i * g
        tape.append((x_BI, h_BH, c_BH, i, f, g, o, np.tanh(c_next_BH)))
        c_BH = c_next_BH
        h_BH = o * np.tanh(c_BH)
        outputs.append(h_BH)
    return np.stack(outputs), c_BH, tape


def _layer_backward(
    d_output_TBH: Array,
    d_h_BH: Array,
    d_c_BH: Array,
    tape: Sequence[Any],
    kernel: Array,
    recurrent_kernel: Array,
    bias: Array,
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array, Array]]:
    """Return (d_x_TBI, the gradient by (h_BH, c_BH) before, by (kernel, recurrent_kernel, bias)).

    d_h_BH and d_c_BH are the gradient by the state after.
    """
    d_kernel, d_recurrent_kernel, d_bias = (np.zeros_like(w) for w in (kernel, recurrent_kernel, bias))
    d_inputs = []
    for t in reversed(range(len(tape))):
        x_BI, h_BH, c_BH, i, f, g, o, tanh_c = tape[t]
        d_h_BH = d_h_BH + d_output_TBH[t]
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
        d_kernel += x_BI.T @ d_gates
        d_recurrent_kernel += h_BH.T @ d_gates
        d_bias += d_gates.sum(axis=0)
        d_inputs.append(d_gates @ kernel.T)
        d_h_BH = d_gates @ recurrent_kernel.T
        d_c_BH = d_c_BH * f
    return np.stack(d_inputs[::-1]), (d_h_BH, d_c_BH), (d_kernel, d_recurrent_kernel, d_bias)
