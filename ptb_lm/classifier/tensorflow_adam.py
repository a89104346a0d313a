"""Adam (Kingma and Ba, 2015, algorithm 1), as one operation for each variable."""

import math
from collections.abc import Sequence

import tensorflow as tf

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Adam over some variables, with its own state.

    Keras's Adam adds epsilon to the root of the uncorrected second moment, which at the first step weighs it
    30 times as much as in the paper and in torch.

    Args:
        variables: What to move.
        learning_rate: The paper's alpha.
    """

    def __init__(self, variables: Sequence[tf.Variable], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.variables = variables
        self.moments = [
            (tf.Variable(tf.zeros_like(variable)), tf.Variable(tf.zeros_like(variable)))
            for variable in variables
        ]
        # Float64, because 1 - 0.999 has lost four digits in float32.
        self.steps = tf.Variable(tf.zeros([], tf.float64))

    def reset(self) -> None:
        """Begin anew."""
        for variable in (self.steps, *(moment for pair in self.moments for moment in pair)):
            variable.assign(tf.zeros_like(variable))

    def step(self, gradients: Sequence[tf.Tensor]) -> None:
        """Move each variable by its gradient."""
        steps = self.steps.assign_add(1.0)
        # 1 - BETA ** steps, with all its digits, of the betas as the operation rounds them.
        rounded = self.variables[0].dtype.as_numpy_dtype
        correction_1 = -tf.math.expm1(steps * math.log(rounded(BETA_1)))
        correction_2 = tf.sqrt(-tf.math.expm1(steps * math.log(rounded(BETA_2))))
        rate = self.learning_rate * correction_2 / correction_1
        epsilon = EPSILON * correction_2
        for variable, (m, v), gradient in zip(self.variables, self.moments, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                # Zero, because rate and epsilon hold the correction of the bias.
                beta1_power=tf.zeros([], variable.dtype),
                beta2_power=tf.zeros([], variable.dtype),
                lr=tf.cast(rate, variable.dtype),
                beta1=tf.constant(BETA_1, variable.dtype),
                beta2=tf.constant(BETA_2, variable.dtype),
                epsilon=tf.cast(epsilon, variable.dtype),
                grad=gradient,
            )
