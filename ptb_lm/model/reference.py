"""A recurrent language model in NumPy, forward and backward: the oracle for every backend.

Written to be read and checked, not to be fast. It computes in the precision of the weights it is given.

Shapes: B = batch, T = time steps, V = vocabulary, E = embedding width, H = hidden units, L = layers.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ptb_lm.model.reference_stack import StackState, stack_backward, stack_forward, stack_zero_state

Array = NDArray[np.floating]
# One sequence for each array that the cell carries, which holds that of each layer: the h_BH of all layers,
# then, for the LSTM, the c_BH of all layers.
State = Sequence[Sequence[Array]]


def zero_state(weights: Mapping[str, Array], batch: int) -> State:
    """Return the language model's zero state for a batch."""
    return _by_kind(stack_zero_state(weights, batch))


def log_probabilities(
    weights: Mapping[str, Array], x_BT: NDArray[np.integer], state: State
) -> tuple[Array, State]:
    """Return the log-probabilities [B, T, V] of every word after each one, in nats, and the state after.

    Args:
        weights: Canonical parameters, as in `loss_and_gradients`.
        x_BT: Input word ids.
        state: The state before the window.
    """
    kernel_HV = weights["softmax.kernel"] if "softmax.kernel" in weights else weights["embedding"].T
    before = list(zip(*state, strict=True))
    output_TBH, after, _ = stack_forward(weights, weights["embedding"][x_BT.T], before)
    log_p_TBV = log_softmax(output_TBH @ kernel_HV + weights["softmax.bias"])
    return log_p_TBV.swapaxes(0, 1), _by_kind(after)


def loss_and_gradients(
    weights: Mapping[str, Array],
    x_BT: NDArray[np.integer],
    y_BT: NDArray[np.integer],
    state: State,
    *,
    masks: Sequence[Array] | None = None,
    weight_masks: Mapping[str, Array] | None = None,
) -> tuple[float, dict[str, Array], State]:
    """Return the loss L, its gradient with respect to every parameter, and the state after the window.

    Args:
        weights: Canonical parameters (parameters.shapes), whose names tell the cell. Without a
            `softmax.kernel` the weights are tied: it is the embedding, transposed.
        x_BT: Input word ids.
        y_BT: Target word ids.
        state: The state before the window; no gradient flows into it.
        masks: L + 1 dropout masks, 0 or 1 / keep_prob: [T, B, E] for the embedding's output, then [T, B, H]
            for the output of each layer; [1, B, ...] where one holds for all time steps. None: no dropout.
        weight_masks: Masks of parameters by canonical name, which broadcast to their shapes: [V, 1] for the
            rows of `embedding`, [H, 4H] for `lstm.0.recurrent_kernel`. They leave a tied softmax alone. None:
            nothing is dropped.

    Returns:
        (loss, gradients, state): the loss is the negative log likelihood in nats, summed over time and
        averaged over the batch.
    """
    batch = len(x_BT)
    x_TB, y_TB1 = x_BT.T, y_BT.T[..., None]
    weight_masks = weight_masks or {}
    dropped = {**weights, **{name: weights[name] * mask for name, mask in weight_masks.items()}}
    tied = "softmax.kernel" not in weights
    kernel_HV = weights["embedding"].T if tied else weights["softmax.kernel"]

    # Forward.
    before = list(zip(*state, strict=True))
    output_TBH, after, tape = stack_forward(dropped, dropped["embedding"][x_TB], before, masks=masks)
    log_p_TBV = log_softmax(output_TBH @ kernel_HV + weights["softmax.bias"])
    log_p_TB1 = np.take_along_axis(log_p_TBV, y_TB1, axis=-1)
    loss = -float(log_p_TB1.sum(dtype=np.float64)) / batch

    # Backward.
    d_logits_TBV = np.exp(log_p_TBV)
    np.put_along_axis(d_logits_TBV, y_TB1, np.exp(log_p_TB1) - 1, axis=-1)
    d_logits_TBV /= batch
    d_output_TBH = d_logits_TBV @ kernel_HV.T
    d_x_TBE, gradients, _ = stack_backward(dropped, tape, d_output_TBH)
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
    return loss, gradients, _by_kind(after)


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


def log_softmax(logits: Array) -> Array:
    """Return the log-probabilities along the last axis, in nats."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), logits.dtype)


def _by_kind(state: StackState) -> State:
    return list(zip(*state, strict=True))
