"""Adam as updates of shared variables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Adam: algorithm 1 of Kingma & Ba, "Adam: A Method for Stochastic Optimization", 2015.

    Args:
        variables: The shared variables that it moves.
        learning_rate: Alpha, the step size.
        clip_value: Bound on each element of the gradient, before anything else. None: no clipping.
    """

    def __init__(self, variables: Sequence[Any], *, learning_rate: float, clip_value: float | None) -> None:
        self.variables = list(variables)
        self.learning_rate = learning_rate
        self.clip_value = clip_value
        self.steps = pytensor.shared(np.int64(0))
        self.moments = [tuple(_zeros(variable) for _ in range(2)) for variable in self.variables]

    def reset(self) -> None:
        """Begin anew."""
        for variable in (self.steps, *(moment for pair in self.moments for moment in pair)):
            variable.set_value(np.zeros_like(variable.get_value()))

    def updates(self, gradients: Sequence[Any]) -> Mapping[Any, Any]:
        """Return what a step makes of each shared variable."""
        steps = self.steps + 1
        # In float64: in float32, 1 - 0.999 is wrong in the fifth digit.
        correction_1 = 1 - pt.constant(BETA_1, dtype="float64") ** steps
        correction_2 = 1 - pt.constant(BETA_2, dtype="float64") ** steps
        updates: dict[Any, Any] = {self.steps: steps}
        for variable, gradient, (m, v) in zip(self.variables, gradients, self.moments, strict=True):
            if self.clip_value is not None:
                gradient = pt.clip(gradient, *_like(variable, -self.clip_value, self.clip_value))
            beta_1, beta_2, epsilon = _like(variable, BETA_1, BETA_2, EPSILON)
            new_m = m * beta_1 + gradient * (1 - beta_1)
            new_v = v * beta_2 + pt.sqr(gradient) * (1 - beta_2)
            rate = pt.cast(self.learning_rate / correction_1, variable.dtype)
            scale = pt.cast(1 / pt.sqrt(correction_2), variable.dtype)
            updates[variable] = variable - rate * new_m / (pt.sqrt(new_v) * scale + epsilon)
            updates |= {m: new_m, v: new_v}
        return updates


def _zeros(variable: Any) -> Any:
    return pytensor.shared(np.zeros_like(variable.get_value(borrow=True)))


def _like(variable: Any, *numbers: float) -> list[Any]:
    """Return numbers in a variable's precision, where PyTensor's own choice could be another."""
    return [np.dtype(variable.dtype).type(number) for number in numbers]
