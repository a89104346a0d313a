"""A recurrent language model in NumPy, forward and backward: the oracle for every backend.

The stack of layers under it is a classifier's, too. It takes sequences of different lengths, and reads them
in one direction or in both. The weights' names tell the cell, whose steps are in ptb_lm.model.cells; a cell
whose options show in no shape must be given as `cell`.
Written to be read and checked, not to be fast. It computes in the precision of the weights it is given.

Shapes: B = batch, T = time steps, V = vocabulary, E = embedding width, I = a stack's input width, H = hidden
units, L = layers, K = a stack's output width (H, or 2H if bidirectional).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.model import parameters
from ptb_lm.model.cells.cell import Array, Cell, LayerState
from ptb_lm.model.config import Config

State = Sequence[LayerState]  # of layer 0 forward, layer 0 reverse (if there is one), layer 1 forward ...


def zero_state(weights: Mapping[str, Array], batch: int) -> State:
    """Return the zero state of the layers for a batch."""
    carried = parameters.cell_of(weights).state_names
    kernels = [weights[prefix + "recurrent_kernel"] for layer in _layers(weights) for prefix in layer]
    return [tuple(np.zeros((batch, len(kernel)), kernel.dtype) for _ in carried) for kernel in kernels]


def log_probabilities(
    weights: Mapping[str, Array], x_BT: NDArray[np.integer], state: State, *, cell: Cell | None = None
) -> tuple[State, Array]:
    """Return the state after, and the log-probabilities [B, T, V] of every word after each one, in nats.

    Args:
        weights: Canonical parameters, as in `loss_and_gradients`.
        x_BT: Input word ids.
        state: The state before the window.
        cell: The declaration of the cell; None: what the weights tell of it.
    """
    kernel_HV = weights["softmax.kernel"] if "softmax.kernel" in weights else weights["embedding"].T
    output_TBH, after, _ = stack_forward(weights, weights["embedding"][x_BT.T], state, cell=cell)
    log_p_TBV = log_softmax(output_TBH @ kernel_HV + weights["softmax.bias"])
    return after, log_p_TBV.swapaxes(0, 1)


def loss_and_gradients(
    weights: Mapping[str, Array],
    x_BT: NDArray[np.integer],
    y_BT: NDArray[np.integer],
    state: State,
    *,
    cell: Cell | None = None,
    masks: Sequence[Array] | None = None,
    weight_masks: Mapping[str, Array] | None = None,
    activation_penalty: float = 0.0,
    slowness_penalty: float = 0.0,
) -> tuple[float, dict[str, Array], State]:
    """Return the loss, the gradients with respect to every parameter, and the state after the window.

    The gradients are those of the loss and of the penalties of Merity et al., "Revisiting Activation
    Regularization for Language RNNs", 2017, which are no part of the loss that is returned.

    Args:
        weights: Canonical parameters (parameters.shapes), whose names tell the cell. Without a
            `softmax.kernel` the weights are tied: it is the embedding, transposed.
        x_BT: Input word ids.
        y_BT: Target word ids.
        state: The state before the window; no gradient flows into it.
        cell: The declaration of the cell; None: what the weights tell of it.
        masks: L + 1 dropout masks, 0 or 1 / keep_prob: [T, B, E] for the embedding's output, then [T, B, H]
            for the output of each layer; [1, B, ...] where one holds for all time steps. None: no dropout.
        weight_masks: Masks of parameters by canonical name, which broadcast to their shapes: [V, 1] for the
            rows of `embedding`, [H, 4H] for `lstm.0.recurrent_kernel`. They leave a tied softmax alone. None:
            nothing is dropped.
        activation_penalty: Factor of the mean square of the top layer's output after its mask, times T.
        slowness_penalty: Factor of the mean square of the change of the top layer's output, before its mask,
            from each step to the next, times T.

    Returns:
        (loss, gradients, state): the loss is the negative log likelihood in nats, summed over time and
        averaged over the batch.
    """
    batch, steps = x_BT.shape
    x_TB, y_TB1 = x_BT.T, y_BT.T[..., None]
    weight_masks = weight_masks or {}
    dropped = {**weights, **{name: weights[name] * mask for name, mask in weight_masks.items()}}
    tied = "softmax.kernel" not in weights
    kernel_HV = weights["embedding"].T if tied else weights["softmax.kernel"]

    # Forward.
    top_mask = 1.0 if masks is None else masks[-1]
    inner_masks = None if masks is None else [*masks[:-1], np.ones_like(masks[-1])]
    x_TBE = dropped["embedding"][x_TB]
    raw_TBH, after, tape = stack_forward(dropped, x_TBE, state, masks=inner_masks, cell=cell)
    output_TBH: Array = raw_TBH * top_mask
    log_p_TBV = log_softmax(output_TBH @ kernel_HV + weights["softmax.bias"])
    log_p_TB1 = np.take_along_axis(log_p_TBV, y_TB1, axis=-1)
    loss = -float(log_p_TB1.sum(dtype=np.float64)) / batch

    # Backward.
    d_logits_TBV = np.exp(log_p_TBV)
    np.put_along_axis(d_logits_TBV, y_TB1, np.exp(log_p_TB1) - 1, axis=-1)
    d_logits_TBV /= batch
    d_output_TBH = d_logits_TBV @ kernel_HV.T
    d_output_TBH += steps * activation_penalty * 2 / output_TBH.size * output_TBH
    d_raw_TBH = d_output_TBH * top_mask
    if slowness_penalty and steps > 1:
        change_TBH = np.diff(raw_TBH, axis=0)
        d_change_TBH = steps * slowness_penalty * 2 / change_TBH.size * change_TBH
        d_raw_TBH[1:] += d_change_TBH
        d_raw_TBH[:-1] -= d_change_TBH
    d_x_TBE, gradients, _ = stack_backward(dropped, tape, d_raw_TBH)
    gradients["softmax.bias"] = d_logits_TBV.sum(axis=(0, 1))
    gradients["embedding"] = np.zeros_like(weights["embedding"])
    np.add.at(gradients["embedding"], x_TB, d_x_TBE)
    for name, mask in weight_masks.items():
        gradients[name] *= mask
    d_kernel_HV = np.einsum("tbh,tbv->hv", output_TBH, d_logits_TBV, optimize=True)
    if tied:
        gradients["embedding"] += d_kernel_HV.T
    else:
        gradients["softmax.kernel"] = d_kernel_HV
    return loss, gradients, after


def settings(config: Config) -> dict[str, Any]:
    """Return the arguments of `loss_and_gradients` that a configuration decides."""
    return {
        "cell": config.cell_declaration,
        "activation_penalty": config.activation_penalty,
        "slowness_penalty": config.slowness_penalty,
    }


def log_softmax(logits: Array) -> Array:
    """Return the log-probabilities along the last axis, in nats."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), logits.dtype)


class Tape(NamedTuple):
    """The values of a forward pass that stack_backward needs."""

    cell: Cell
    valid_TB1: NDArray[np.bool_]  # whether a step is within its sequence's length
    masks: Sequence[Array | float]
    steps: Sequence[Sequence[Any]]  # each layer's or direction's tape of each step, in the state's order


def stack_forward(
    weights: Mapping[str, Array],
    x_TBI: Array,
    state: State,
    *,
    lengths_B: NDArray[np.integer] | None = None,
    masks: Sequence[Array] | None = None,
    cell: Cell | None = None,
) -> tuple[Array, State, Tape]:
    """Run a stack of recurrent layers over sequences.

    Args:
        weights: Canonical parameters (parameters.stack_shapes), which tell the cell, the sizes and the
            directions.
        x_TBI: Inputs; what lies beyond a sequence's length has no influence.
        state: The state that each layer and direction begins with. A reverse one begins at the last valid
            step of the sequence.
        lengths_B: Steps of each sequence, 1 to T. None: all T.
        masks: L + 1 dropout masks, 0 or 1 / keep_prob: [T, B, I] for the input, then [T, B, its output
            width] for the output of each layer; [1, B, ...] where one holds for all steps. None: no dropout.
        cell: The declaration of the cell; None: what the weights tell of it.

    Returns:
        (output_TBK, state, tape): the output is zero beyond a sequence's length; the state is the one after
        the last valid step that each direction reads, which is step 0 for a reverse one; the tape is for
        stack_backward.

    Raises:
        ValueError: A length is not one of 1 to T.
    """
    steps, batch, _ = x_TBI.shape
    if lengths_B is None:
        lengths_B = np.full(batch, steps)
    if not all(1 <= length <= steps for length in lengths_B):
        raise ValueError(f"lengths must be 1 to {steps}, not {lengths_B}")
    valid_TB1 = (np.arange(steps)[:, None] < lengths_B)[..., None]
    cell, layers = cell or parameters.cell_of(weights), _layers(weights)
    kept: Sequence[Array | float] = [1.0] * (len(layers) + 1)
    if masks is not None:
        kept = [np.where(valid_TB1, mask, 0) for mask in masks]
    after, tapes = list[LayerState](), list[Sequence[Any]]()
    output_TBK: Array = np.where(valid_TB1, x_TBI, 0) * kept[0]
    for prefixes, mask in zip(layers, kept[1:], strict=True):
        outputs = []
        for prefix in prefixes:
            layer, before = _layer_weights(weights, prefix), state[len(tapes)]
            h_TBH, last, tape = _layer_forward(
                cell, layer, output_TBK, before, valid_TB1, reverse=prefix != prefixes[0]
            )
            outputs.append(h_TBH)
            after.append(last)
            tapes.append(tape)
        output_TBK = np.concatenate(outputs, axis=-1) * mask
    return output_TBK, after, Tape(cell, valid_TB1, kept, tapes)


def stack_backward(
    weights: Mapping[str, Array], tape: Tape, d_output_TBK: Array, d_state: State | None = None
) -> tuple[Array, dict[str, Array], State]:
    """Take the gradient of some loss back through stack_forward.

    Args:
        weights: The canonical parameters, as in the forward pass.
        tape: The tape that the forward pass returned.
        d_output_TBK: dL/doutput; beyond a sequence's length it has no influence.
        d_state: dL/dstate, with respect to the state after. None: zero.

    Returns:
        (d_x_TBI, gradients, d_state): dL/dx, which is zero beyond a sequence's length; the gradient with
        respect to each of the stack's parameters; dL/dstate, with respect to the state before.
    """
    cell, valid_TB1, masks, tapes = tape
    layers = _layers(weights)
    d_before = list(zero_state(weights, d_output_TBK.shape[1]) if d_state is None else d_state)
    gradients = dict[str, Array]()
    d_valid_TBK: Array = np.where(valid_TB1, d_output_TBK, 0)
    for layer in reversed(range(len(layers))):
        prefixes, d_inputs = layers[layer], []
        d_outputs = np.split(d_valid_TBK * masks[layer + 1], len(prefixes), axis=-1)
        for direction, (prefix, d_h_TBH) in enumerate(zip(prefixes, d_outputs, strict=True)):
            index = layer * len(prefixes) + direction
            d_x_TBI, d_before[index], d_weights = _layer_backward(
                cell,
                _layer_weights(weights, prefix),
                tapes[index],
                d_h_TBH,
                d_before[index],
                valid_TB1,
                reverse=direction == 1,
            )
            d_inputs.append(d_x_TBI)
            gradients |= {prefix + name: d_weight for name, d_weight in d_weights.items()}
        d_valid_TBK = np.add.reduce(d_inputs)
    in_order = {name: gradients[name] for name in weights if name in gradients}
    return d_valid_TBK * masks[0], in_order, d_before


def _layers(weights: Mapping[str, Array]) -> list[tuple[str, ...]]:
    """Return the prefixes of the parameters' names: of each layer, of each of its directions."""
    cell = parameters.cell_of(weights).name
    bidirectional = f"{cell}.0.reverse.recurrent_kernel" in weights
    directions = 2 if bidirectional else 1
    count = sum(name.endswith(".recurrent_kernel") for name in weights) // directions
    return [
        parameters.direction_prefixes(layer, bidirectional=bidirectional, cell=cell) for layer in range(count)
    ]


def _layer_weights(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the parameters of a layer, or of one of its directions, by their plain names."""
    by_name = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
    return {name: array for name, array in by_name.items() if "." not in name}


def _layer_forward(
    cell: Cell,
    weights: Mapping[str, Array],
    x_TBI: Array,
    state: LayerState,
    valid_TB1: NDArray[np.bool_],
    *,
    reverse: bool,
) -> tuple[Array, LayerState, Sequence[Any]]:
    """Return (h_TBH, the state after, the tape of each step); steps that are not valid leave the state."""
    steps = len(x_TBI)
    outputs: list[Any] = [None] * steps
    tapes: list[Any] = [None] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        after, tapes[t] = cell.step(weights, x_TBI[t], state)
        state = _where(valid_TB1[t], after, state)
        outputs[t] = np.where(valid_TB1[t], after[0], 0)
    return np.stack(outputs), state, tapes


def _layer_backward(
    cell: Cell,
    weights: Mapping[str, Array],
    tapes: Sequence[Any],
    d_output_TBH: Array,
    d_state: LayerState,
    valid_TB1: NDArray[np.bool_],
    *,
    reverse: bool,
) -> tuple[Array, LayerState, dict[str, Array]]:
    """Return (dL/dx, dL/dstate before the layer's first step, the gradients of its parameters).

    d_state is dL/dstate after its last step. dL/doutput is zero where a step is not valid.
    """
    steps = len(tapes)
    gradients = {name: np.zeros_like(array) for name, array in weights.items()}
    d_inputs: list[Any] = [None] * steps
    for t in range(steps) if reverse else reversed(range(steps)):
        d_h_BH, *others = _where(valid_TB1[t], d_state, [np.zeros_like(part) for part in d_state])
        d_inputs[t], d_before, d_weights = cell.step_back(
            weights, tapes[t], (d_h_BH + d_output_TBH[t], *others)
        )
        d_state = _where(valid_TB1[t], d_before, d_state)
        for name, d_weight in d_weights.items():
            gradients[name] += d_weight
    return np.stack(d_inputs), d_state, gradients


def _where(valid_B1: NDArray[np.bool_], there: Sequence[Array], elsewhere: Sequence[Array]) -> LayerState:
    """Return a state's arrays: the first ones where a row's step is valid, else the others."""
    return tuple(np.where(valid_B1, *both) for both in zip(there, elsewhere, strict=True))
