"""An LSTM language model in NumPy, forward and backward: the oracle for every backend.

Written to be read and checked, not to be fast. It computes in the precision of the weights it is given.

Shapes: B = batch, T = time steps, V = vocabulary, E = H = embedding width = hidden units, L = layers.
Gates lie in the order i, f, g, o along 4H.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
State = tuple[Array, Array]  # h_LBH, c_LBH


def zero_state(weights: Mapping[str, Array], batch: int) -> State:
    """Return the zero state (h_LBH, c_LBH) for a batch."""
    hidden = weights["embedding"].shape[1]
    zeros = np.zeros((num_layers(weights), batch, hidden), weights["embedding"].dtype)
    return zeros, zeros.copy()


def num_layers(weights: Mapping[str, Array]) -> int:
    """Return the number of LSTM layers."""
    return sum(name.endswith(".recurrent_kernel") for name in weights)


def loss_and_gradients(
    weights: Mapping[str, Array],
    x_BT: NDArray[np.integer],
    y_BT: NDArray[np.integer],
    state: State,
    *,
    masks: Sequence[Array] | None = None,
) -> tuple[float, dict[str, Array], State]:
    """Return the loss, its gradient by every parameter, and the state after the window.

    Args:
        weights: Canonical parameters (ptb_lm.parameters).
        x_BT: Input word ids.
        y_BT: Target word ids.
        state: (h_LBH, c_LBH) before the window; no gradient flows into it.
        masks: L + 1 dropout masks [T, B, H], 0 or 1 / keep_prob: one for the embedding's output, one for
            the output of each layer. None: no dropout.

    Returns:
        (loss, gradients, state): the loss is the negative log likelihood in nats, summed over time and
        averaged over the batch.
    """
    layers, batch = num_layers(weights), x_BT.shape[0]
    x_TB, y_TB = x_BT.T, y_BT.T
    h_LBH, c_LBH = state

    # Forward.
    output_TBH = weights["embedding"][x_TB]
    if masks is not None:
        output_TBH = output_TBH * masks[0]
    tapes, h_final, c_final = [], [], []
    for layer in range(layers):
        output_TBH, c, tape = _layer_forward(
            output_TBH, h_LBH[layer], c_LBH[layer], *_layer_weights(weights, layer)
        )
        tapes.append(tape)
        h_final.append(output_TBH[-1])
        c_final.append(c)
        if masks is not None:
            output_TBH = output_TBH * masks[layer + 1]
    logits_TBV = output_TBH @ weights["softmax.kernel"] + weights["softmax.bias"]
    logits_TBV = logits_TBV - logits_TBV.max(axis=-1, keepdims=True)
    log_p_TBV = logits_TBV - np.log(np.exp(logits_TBV).sum(axis=-1, keepdims=True))
    log_p_TB1 = np.take_along_axis(log_p_TBV, y_TB[..., None], axis=-1)
    loss = -float(log_p_TB1.sum(dtype=np.float64)) / batch

    # Backward.
    gradients: dict[str, Array] = {}
    d_logits_TBV = np.exp(log_p_TBV)
    np.put_along_axis(d_logits_TBV, y_TB[..., None], np.exp(log_p_TB1) - 1, axis=-1)
    d_logits_TBV /= batch
    gradients["softmax.kernel"] = np.einsum("tbh,tbv->hv", output_TBH, d_logits_TBV, optimize=True)
    gradients["softmax.bias"] = d_logits_TBV.sum(axis=(0, 1))
    d_output_TBH = d_logits_TBV @ weights["softmax.kernel"].T
    for layer in reversed(range(layers)):
        if masks is not None:
            d_output_TBH = d_output_TBH * masks[layer + 1]
        d_output_TBH, d_kernel, d_recurrent_kernel, d_bias = _layer_backward(
            d_output_TBH, tapes[layer], *_layer_weights(weights, layer)
        )
        gradients[f"lstm.{layer}.kernel"] = d_kernel
        gradients[f"lstm.{layer}.recurrent_kernel"] = d_recurrent_kernel
        gradients[f"lstm.{layer}.bias"] = d_bias
    if masks is not None:
        d_output_TBH = d_output_TBH * masks[0]
    gradients["embedding"] = np.zeros_like(weights["embedding"])
    np.add.at(gradients["embedding"], x_TB, d_output_TBH)
    return loss, gradients, (np.stack(h_final), np.stack(c_final))


def sgd_update(
    weights: Mapping[str, Array],
    gradients: Mapping[str, Array],
    *,
    learning_rate: float,
    max_grad_norm: float,
) -> tuple[dict[str, Array], float]:
    """Return the weights after one SGD step with global-norm clipping, and the norm before clipping."""
    norm = float(np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradients.values())))
    scale = learning_rate * max_grad_norm / max(norm, max_grad_norm)
    updated = {name: (w - scale * gradients[name]).astype(w.dtype) for name, w in weights.items()}
    return updated, norm


def _layer_weights(weights: Mapping[str, Array], layer: int) -> tuple[Array, Array, Array]:
    prefix = f"lstm.{layer}."
    return weights[prefix + "kernel"], weights[prefix + "recurrent_kernel"], weights[prefix + "bias"]


def _sigmoid(x: Array) -> Array:
    # By tanh, because exp(-x) overflows for large negative x.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), x.dtype)


def _layer_forward(
    x_TBI: Array, h_BH: Array, c_BH: Array, kernel: Array, recurrent_kernel: Array, bias: Array
) -> tuple[Array, Array, list[tuple[Any, ...]]]:
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
    tape: Sequence[tuple[Any, ...]],
    kernel: Array,
    recurrent_kernel: Array,
    bias: Array,
) -> tuple[Array, Array, Array, Array]:
    """Return (d_x_TBI, d_kernel, d_recurrent_kernel, d_bias)."""
    d_kernel, d_recurrent_kernel, d_bias = (np.zeros_like(w) for w in (kernel, recurrent_kernel, bias))
    d_h_BH, d_c_BH = np.zeros_like(d_output_TBH[0]), np.zeros_like(d_output_TBH[0])
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
    return np.stack(d_inputs[::-1]), d_kernel, d_recurrent_kernel, d_bias
