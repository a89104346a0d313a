"""The sequence classifier in NumPy, forward and backward: the oracle.

Written to be read and checked, not to be fast. It computes in the precision of the weights it is given.

Shapes: B = batch, T = time steps, I = features, K = the stack's output width (H, or 2H if bidirectional),
C = classes, U = labels a sequence, S = 2U + 1 = those labels with a blank before, between and after them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.model.cells.cell import Array
from ptb_lm.model.reference import log_softmax, stack_backward, stack_forward, zero_state
from sequence_classifier import Batch, ClassifierConfig, check_labels

BLANK = 0


def predict(
    config: ClassifierConfig,
    weights: Mapping[str, Array],
    x_BTI: Array,
    lengths_B: NDArray[np.integer] | None = None,
) -> Array:
    """Return the log-probabilities: [B, C], or [B, T, C] for CTC; in the padding, those of a zero output."""
    zero = zero_state(weights, len(x_BTI))
    output_TBK, _, _ = stack_forward(weights, x_BTI.swapaxes(0, 1), zero, lengths_B=lengths_B)
    index = _output_index(config, output_TBK, _fill_lengths(x_BTI, lengths_B))
    log_p = log_softmax(_dense(weights, output_TBK[index]))
    return log_p.swapaxes(0, 1) if config.loss == "ctc" else log_p


def loss_and_gradients(
    config: ClassifierConfig,
    weights: Mapping[str, Array],
    batch: Batch,
    *,
    masks: Sequence[Array] | None = None,
) -> tuple[float, dict[str, Array]]:
    """Return the loss in nats, averaged over the batch, and its gradients with respect to the parameters.

    Args:
        config: Hyper-parameters; only the loss and the hidden sizes are used.
        weights: Canonical parameters (sequence_classifier.shapes).
        batch: Labelled sequences; their padding is never read.
        masks: Dropout masks, as stack_forward takes them. None: no dropout.

    Returns:
        (loss, gradients). If the labels of a sequence do not fit into its steps, CTC's loss is infinite, and
        the gradients are NaN.

    Raises:
        ValueError: A length is not one of 1 to T.
        UserError: A label is no class, or is CTC's blank.
    """
    check_labels(batch.labels, config)
    x_BTI = batch.x_BTI
    lengths_B = _fill_lengths(x_BTI, batch.lengths_B)

    # Forward.
    zero = zero_state(weights, len(x_BTI))
    output_TBK, _, tape = stack_forward(
        weights, x_BTI.swapaxes(0, 1), zero, lengths_B=batch.lengths_B, masks=masks
    )
    index = _output_index(config, output_TBK, lengths_B)
    features = output_TBK[index]
    log_p = log_softmax(_dense(weights, features))
    if config.loss == "ctc":
        losses_B, d_logits = _ctc_losses(log_p, batch.labels, lengths_B)
    else:
        losses_B, d_logits = _cross_entropies(log_p, batch.labels)

    # Backward.
    d_logits /= len(x_BTI)
    d_output_TBK = np.zeros_like(output_TBK)
    d_output_TBK[index] = d_logits @ weights["dense.kernel"].T
    _, gradients, _ = stack_backward(weights, tape, d_output_TBK)
    batch_axes = tuple(range(d_logits.ndim - 1))
    gradients["dense.kernel"] = np.tensordot(features, d_logits, axes=(batch_axes, batch_axes))
    gradients["dense.bias"] = d_logits.sum(axis=batch_axes)
    return float(np.mean(losses_B, dtype=np.float64)), gradients


def ctc(log_p_TC: Array, labels_U: NDArray[np.integer]) -> tuple[float, Array]:
    """Return the CTC loss of one sequence, and its gradient with respect to the logits behind log_p_TC.

    The forward-backward algorithm of Graves et al., "Connectionist Temporal Classification", 2006, sections
    4.1 and 4.2, on logarithms instead of rescaled probabilities; beta leaves out what step t emits.

    Args:
        log_p_TC: Log-probabilities of every class at every step; class 0 is the blank.
        labels_U: The labels, each of 1 to C - 1.

    Returns:
        (loss, d_logits_TC): the loss is -log p(labels) in nats. If no path gives the labels it is infinite,
        and its gradient, which does not exist, is NaN.
    """
    steps, classes = log_p_TC.shape
    path_S = np.full(2 * len(labels_U) + 1, BLANK)
    path_S[1::2] = labels_U
    log_p_TS = log_p_TC[:, path_S]

    # log_step_SS[r, s] = 0 if a path may go from place r to place s in one step, else log 0: it may stay, go
    # on by one, and go on by two if that skips a blank between two labels that differ.
    place = np.arange(len(path_S))
    skips_S = (path_S != BLANK) & (path_S != np.roll(path_S, 2))
    ahead_SS = place - place[:, None]
    allowed_SS = (ahead_SS == 0) | (ahead_SS == 1) | ((ahead_SS == 2) & skips_S)
    log_step_SS = np.where(allowed_SS, 0, -np.inf).astype(log_p_TC.dtype)

    # log alpha[t, s]: all ways to be in place s after step t. A path begins in one of the first two places.
    alpha_TS = np.full_like(log_p_TS, -np.inf)
    alpha_TS[0, :2] = log_p_TS[0, :2]
    for t in range(1, steps):
        alpha_TS[t] = np.logaddexp.reduce(alpha_TS[t - 1, :, None] + log_step_SS, axis=0) + log_p_TS[t]
    # log beta[t, s]: all ways to go on from there to the end, which is one of the last two places.
    beta_TS = np.full_like(log_p_TS, -np.inf)
    beta_TS[-1, -2:] = 0
    for t in reversed(range(steps - 1)):
        beta_TS[t] = np.logaddexp.reduce(log_step_SS + (log_p_TS[t + 1] + beta_TS[t + 1]), axis=1)

    log_likelihood = np.logaddexp.reduce(alpha_TS[-1, -2:])
    if np.isneginf(log_likelihood):
        return np.inf, np.full_like(log_p_TC, np.nan)
    posterior_TS = np.exp(alpha_TS + beta_TS - log_likelihood)
    emits_SC = path_S[:, None] == np.arange(classes)
    return -float(log_likelihood), np.exp(log_p_TC) - posterior_TS @ emits_SC.astype(log_p_TC.dtype)


def _fill_lengths(x_BTI: Array, lengths_B: NDArray[np.integer] | None) -> NDArray[np.integer]:
    return np.full(x_BTI.shape[0], x_BTI.shape[1]) if lengths_B is None else lengths_B


def _dense(weights: Mapping[str, Array], features: Array) -> Array:
    return np.asarray(features @ weights["dense.kernel"] + weights["dense.bias"])


def _output_index(config: ClassifierConfig, output_TBK: Array, lengths_B: NDArray[np.integer]) -> Any:
    """Return the index of the outputs that the loss reads: all [T, B, K], or the last of each unit [B, K].

    The last one is last in the order of its direction: step 0 for the units of the reverse direction.
    """
    if config.loss == "ctc":
        return ...
    rows, units = np.arange(len(lengths_B)), np.arange(output_TBK.shape[-1])
    last_BK = np.where(units < config.hidden_sizes[-1], lengths_B[:, None] - 1, 0)
    return last_BK, rows[:, None], units


def _cross_entropies(log_p_BC: Array, labels_B: NDArray[np.integer]) -> tuple[Array, Array]:
    """Return each sequence's loss, and its gradient with respect to its logits."""
    labels_B1 = labels_B[:, None]
    log_p_B1 = np.take_along_axis(log_p_BC, labels_B1, axis=-1)
    d_logits_BC = np.exp(log_p_BC)
    np.put_along_axis(d_logits_BC, labels_B1, np.exp(log_p_B1) - 1, axis=-1)
    return -log_p_B1[:, 0], d_logits_BC


def _ctc_losses(
    log_p_TBC: Array, labels_BU: NDArray[np.integer], lengths_B: NDArray[np.integer]
) -> tuple[Array, Array]:
    """Return each sequence's loss, and its gradient with respect to its logits, zero in the padding."""
    losses_B = np.zeros_like(log_p_TBC[0, :, 0])
    d_logits_TBC = np.zeros_like(log_p_TBC)
    for row, length in enumerate(lengths_B):
        losses_B[row], d_logits_TBC[:length, row] = ctc(log_p_TBC[:length, row], labels_BU[row])
    return losses_B, d_logits_TBC
