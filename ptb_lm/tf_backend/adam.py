"""Adam in TensorFlow, for the language model and the sequence classifier."""

import math
from collections.abc import Sequence

import tensorflow as tf

from ptb_lm.model.reference_updates import BETA_1, BETA_2, EPSILON


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1) over some variables, as one operation for each.

    Keras's Adam adds epsilon to the root of the uncorrected second moment, which at the first step weighs it
    30 times as much as in the paper and in torch.

    Attributes:
        moments: First and second moments of the variables, in their order and layout.
        steps: Number of steps that are done, [].

    Args:
        variables: Variables that it moves.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.variables = variables
        self.moments = [[tf.Variable(tf.zeros_like(variable)) for variable in variables] for _ in range(2)]
        # Float64, because 1 - 0.999 has lost four digits in float32.
        self.steps = tf.Variable(tf.zeros([], tf.float64))

    def reset(self) -> None:
        """Reset the moments and the number of steps to zero."""
        for variable in (self.steps, *self.moments[0], *self.moments[1]):
            variable.assign(tf.zeros_like(variable))

    def step(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> None:
        """Move each variable by its gradient.

        Args:
            gradients: Gradient with respect to each variable.
            rate: The paper's alpha, [].
        """
        steps = self.steps.assign_add(1.0)
        # 1 - BETA ** steps, with all its digits, for the betas as the operation rounds them.
        to_dtype = self.variables[0].dtype.as_numpy_dtype
        correction_1 = -tf.math.expm1(steps * math.log(to_dtype(BETA_1)))
        correction_2 = tf.sqrt(-tf.math.expm1(steps * math.log(to_dtype(BETA_2))))
        rate = tf.cast(rate, tf.float64) * correction_2 / correction_1
        epsilon = EPSILON * correction_2
        for variable, m, v, gradient in zip(self.variables, *self.moments, gradients, strict=True):
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
