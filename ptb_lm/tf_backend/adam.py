"""Adam in TensorFlow, with a state that is saved by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.backend import Arrays

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of the publication, and torch.optim.Adam's
STEPS, FIRST, SECOND = "tensorflow.adam.steps", "tensorflow.adam.first.", "tensorflow.adam.second."


class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1, on one device.

    Args:
        variables: Variables that it moves.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = variables
        self._steps = tf.Variable(0, dtype=tf.int64)
        # Moving averages of each gradient and of its square.
        self._firsts, self._seconds = (
            [tf.Variable(tf.zeros_like(variable)) for variable in variables] for _ in range(2)
        )

    def descend(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> None:
        """Move the variables by a step at a learning rate, []."""
        steps = tf.cast(self._steps.assign_add(1), rate.dtype)
        first_share, second_share = (1 - beta**steps for beta in (BETA_1, BETA_2))
        moved = zip(self._variables, gradients, self._firsts, self._seconds, strict=True)
        for variable, gradient, first, second in moved:
            first.assign(BETA_1 * first + (1 - BETA_1) * gradient)
            second.assign(BETA_2 * second + (1 - BETA_2) * gradient**2)
            change = first / (tf.sqrt(second / second_share) + EPSILON)
            variable.assign_sub(rate / first_share * change)

    def export_state(self) -> Arrays:
        """Return the state by name."""
        return {name: variable.numpy() for name, variable in self._named_state().items()}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the state that `export_state` returned; other names are left alone."""
        for name, variable in self._named_state().items():
            variable.assign(arrays[name])

    def _named_state(self) -> dict[str, tf.Variable]:
        firsts = {f"{FIRST}{index}": each for index, each in enumerate(self._firsts)}
        seconds = {f"{SECOND}{index}": each for index, each in enumerate(self._seconds)}
        return {STEPS: self._steps, **firsts, **seconds}
