"""The updates of a training step in NumPy: SGD and Adam, the oracle for all backends.

Parameters, gradients and moments are arrays by name.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ptb_lm.model.cells.cell import Array

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's constants in its publication


def global_norm(gradients: Mapping[str, Array]) -> float:
    """Return the norm of all gradients together."""
    return float(np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradients.values())))


def sgd_update(
    weights: Mapping[str, Array],
    gradients: Mapping[str, Array],
    *,
    learning_rate: float,
    max_grad_norm: float,
    weight_decay: float = 0.0,
) -> tuple[dict[str, Array], float]:
    """Return the weights after one SGD step with global-norm clipping, and the norm before clipping.

    Args:
        weights: Parameters.
        gradients: Gradient with respect to each of them.
        learning_rate: Learning rate.
        max_grad_norm: Upper bound on the norm of all gradients together.
        weight_decay: Factor of the weights that is added to the gradients after clipping, as
            torch.optim.SGD(weight_decay) does after clip_grad_norm_: T times the configuration's.
    """
    norm = global_norm(gradients)
    scale = learning_rate * max_grad_norm / max(norm, max_grad_norm)
    updated = {
        name: (w - scale * gradients[name] - learning_rate * weight_decay * w).astype(w.dtype)
        for name, w in weights.items()
    }
    return updated, norm


class AdamState(NamedTuple):
    """The state that Adam keeps from step to step."""

    steps: int  # that are done
    first: Mapping[str, Array]  # moving average of each gradient
    second: Mapping[str, Array]  # of its square


def adam_zero_state(weights: Mapping[str, Array]) -> AdamState:
    """Return Adam's state before the first step."""
    first, second = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    return AdamState(0, first, second)


def adam(
    weights: Mapping[str, Array],
    gradients: Mapping[str, Array],
    state: AdamState,
    *,
    learning_rate: float,
    clip_value: float | None = None,
    epsilon: float = EPSILON,
) -> tuple[dict[str, Array], AdamState]:
    """Return the weights after one step of Adam, and its state.

    Algorithm 1 of Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015: epsilon is added to the
    root of the bias-corrected second moment.

    Args:
        weights: Parameters.
        gradients: Gradient with respect to each of them.
        state: State before the step.
        learning_rate: The publication's alpha.
        clip_value: Bound on each element of the gradient, before anything else. None: no clipping.
        epsilon: Small number that keeps the division from zero.
    """
    steps = state.steps + 1
    updated, first, second = dict[str, Array](), dict[str, Array](), dict[str, Array]()
    for name, w in weights.items():
        gradient = gradients[name] if clip_value is None else gradients[name].clip(-clip_value, clip_value)
        first[name] = BETA_1 * state.first[name] + (1 - BETA_1) * gradient
        second[name] = BETA_2 * state.second[name] + (1 - BETA_2) * gradient**2
        mean, square = first[name] / (1 - BETA_1**steps), second[name] / (1 - BETA_2**steps)
        updated[name] = (w - learning_rate * mean / (np.sqrt(square) + epsilon)).astype(w.dtype)
    return updated, AdamState(steps, first, second)
