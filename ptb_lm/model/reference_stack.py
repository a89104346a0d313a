"""A stack of recurrent layers in NumPy, forward and backward, under the references of whole models.

The names of the weights tell the cell, whose steps are in ptb_lm.model.cells. Written to be read and
checked, not to be fast. It computes in the precision of the weights it is given.

Shapes: B = batch, T = time steps, I = input width, H = hidden units, L = layers, K = the stack's output width
(H, or 2H if bidirectional).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.model import parameters
from ptb_lm.model.cells.cell import Array, Cell, LayerState

# The carried state of layer 0 forward, layer 0 reverse (if there is one), layer 1 forward ...
StackState = Sequence[LayerState]


# A part for some rows of the batch: the rows, the steps that they have in common, their masks, and a tape for
# each layer or direction, in the state's order.
Tape = list[tuple[slice, int, Sequence[Array | float], list[list[Any]]]]


def stack_zero_state(weights: Mapping[str, Array], batch: int) -> StackState:
    """Return a stack's zero state for a batch."""
    carried = parameters.cell_of(weights).state_names
    kernels = [weights[prefix + "recurrent_kernel"] for layer in _layers(weights) for prefix in layer]
    return [tuple(np.zeros((batch, len(kernel)), kernel.dtype) for _ in carried) for kernel in kernels]


def stack_forward(
    weights: Mapping[str, Array],
    x_TBI: Array,
    state: StackState,
    *,
    lengths_B: NDArray[np.integer] | None = None,
    masks: Sequence[Array] | None = None,
) -> tuple[Array, StackState, Tape]:
    """Run a stack of recurrent layers over sequences.

    Args:
        weights: Canonical parameters (parameters.stack_shapes), which tell the cell, the sizes and the
            directions.
        x_TBI: Inputs; what lies beyond a sequence's length is never read.
        state: The state that each layer and direction begins with. A reverse one begins at the last valid
            step of the sequence.
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
    outputs, states, tape = [], [], Tape()
    for rows, length in cuts:
        kept = [1.0] * (len(layers) + 1) if masks is None else [mask[:length, rows] for mask in masks]
        output_TBK, after, tapes = _piece_forward(weights, x_TBI[:length, rows], _rows(state, rows), kept)
        padding = ((0, steps - length), (0, 0), (0, 0))
        outputs.append(np.pad(output_TBK, padding))
        states.append(after)
        tape.append((rows, length, kept, tapes))
    return np.concatenate(outputs, axis=1), _join(states), tape


def stack_backward(
    weights: Mapping[str, Array], tape: Tape, d_output_TBK: Array, d_state: StackState | None = None
) -> tuple[Array, dict[str, Array], StackState]:
    """Take the gradient of some loss back through stack_forward.

    Args:
        weights: The canonical parameters, as in the forward pass.
        tape: The tape that the forward pass returned.
        d_output_TBK: dL/doutput; beyond a sequence's length it is never read.
        d_state: dL/dstate, with respect to the state after. None: zero.

    Returns:
        (d_x_TBI, gradients, d_state): dL/dx, which is zero beyond a sequence's length; the gradient with
        respect to each of the stack's parameters; dL/dstate, with respect to the state before.
    """
    steps, batch, _ = d_output_TBK.shape
    d_state = stack_zero_state(weights, batch) if d_state is None else d_state
    prefix = parameters.cell_of(weights).name + "."
    gradients = {name: np.zeros_like(array) for name, array in weights.items() if name.startswith(prefix)}
    d_inputs, d_states = [], []
    for rows, length, masks, tapes in tape:
        d_x_TBI, d_before = _piece_backward(
            weights, masks, tapes, d_output_TBK[:length, rows], _rows(d_state, rows), gradients
        )
        d_inputs.append(np.pad(d_x_TBI, ((0, steps - length), (0, 0), (0, 0))))
        d_states.append(d_before)
    return np.concatenate(d_inputs, axis=1), gradients, _join(d_states)


def _layers(weights: Mapping[str, Array]) -> list[tuple[str, ...]]:
    """Return the prefixes of the parameters' names: of each layer, of each of its directions."""
    cell = parameters.cell_of(weights).name
    bidirectional = f"{cell}.0.reverse.recurrent_kernel" in weights
    directions = 2 if bidirectional else 1
    count = sum(name.endswith(".recurrent_kernel") for name in weights) // directions
    return [parameters.directions(layer, bidirectional=bidirectional, cell=cell) for layer in range(count)]


def _layer_weights(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the parameters of a layer, or of one of its directions, by their plain names."""
    by_name = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
    return {name: array for name, array in by_name.items() if "." not in name}


def _rows(state: StackState, rows: slice) -> StackState:
    return [tuple(part_BH[rows] for part_BH in layer) for layer in state]


def _join(states: Sequence[StackState]) -> StackState:
    """Join the states of the batch's pieces."""
    return [
        tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))
        for pieces in zip(*states, strict=True)
    ]


def _in_reading_order(x_TBH: Array, direction: int) -> Array:
    """Turn time around for the reverse direction, 1; doing it again undoes it."""
    return x_TBH[::-1] if direction else x_TBH


def _piece_forward(
    weights: Mapping[str, Array], x_TBI: Array, state: StackState, masks: Sequence[Array | float]
) -> tuple[Array, StackState, list[list[Any]]]:
    """Return (output_TBK, the state after, a tape for each layer and direction): all T steps are valid."""
    cell = parameters.cell_of(weights)
    after: list[LayerState] = []
    tapes: list[list[Any]] = []
    output_TBK = x_TBI * masks[0]
    for prefixes, mask in zip(_layers(weights), masks[1:], strict=True):
        outputs = []
        for direction, prefix in enumerate(prefixes):
            h_TBH, layer_after, tape = _layer_forward(
                cell,
                _layer_weights(weights, prefix),
                _in_reading_order(output_TBK, direction),
                state[len(tapes)],
            )
            after.append(layer_after)
            tapes.append(tape)
            outputs.append(_in_reading_order(h_TBH, direction))
        output_TBK = np.concatenate(outputs, axis=-1) * mask
    return output_TBK, after, tapes


def _piece_backward(
    weights: Mapping[str, Array],
    masks: Sequence[Array | float],
    tapes: list[list[Any]],
    d_output_TBK: Array,
    d_state: StackState,
    gradients: dict[str, Array],
) -> tuple[Array, StackState]:
    """Return dL/dx [T, B, I] and dL/dstate before the piece; add to the gradients of the parameters."""
    cell, layers = parameters.cell_of(weights), _layers(weights)
    d_before = list(d_state)
    for layer in reversed(range(len(layers))):
        prefixes = layers[layer]
        d_outputs = np.split(d_output_TBK * masks[layer + 1], len(prefixes), axis=-1)
        d_inputs = []
        for direction, (prefix, d_h_TBH) in enumerate(zip(prefixes, d_outputs, strict=True)):
            index = layer * len(prefixes) + direction
            d_x_TBI, d_before[index], d_weights = _layer_backward(
                cell,
                _layer_weights(weights, prefix),
                tapes[index],
                _in_reading_order(d_h_TBH, direction),
                d_state[index],
            )
            d_inputs.append(_in_reading_order(d_x_TBI, direction))
            for name, d_weight in d_weights.items():
                gradients[prefix + name] += d_weight
        d_output_TBK = np.add.reduce(d_inputs)
    return d_output_TBK * masks[0], d_before


def _layer_forward(
    cell: Cell, weights: Mapping[str, Array], x_TBI: Array, state: LayerState
) -> tuple[Array, LayerState, list[Any]]:
    """Return (h_TBH, the state after, the tape of each step)."""
    outputs, tapes = [], []
    for x_BI in x_TBI:
        state, tape = cell.step(weights, x_BI, state)
        outputs.append(state[0])
        tapes.append(tape)
    return np.stack(outputs), state, tapes


def _layer_backward(
    cell: Cell, weights: Mapping[str, Array], tapes: Sequence[Any], d_output_TBH: Array, d_state: LayerState
) -> tuple[Array, LayerState, dict[str, Array]]:
    """Return (dL/dx, dL/dstate before the layer's first step, the gradients of its parameters).

    d_state is dL/dstate after its last step.
    """
    gradients = {name: np.zeros_like(array) for name, array in weights.items()}
    d_inputs = []
    for tape, d_output_BH in zip(reversed(tapes), reversed(d_output_TBH), strict=True):
        d_h_BH, *others = d_state
        d_x_BI, d_state, d_weights = cell.step_back(weights, tape, (d_h_BH + d_output_BH, *others))
        d_inputs.append(d_x_BI)
        for name, d_weight in d_weights.items():
            gradients[name] += d_weight
    return np.stack(d_inputs[::-1]), d_state, gradients
