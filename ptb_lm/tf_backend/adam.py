"""Adam in TensorFlow, for the language model, which saves its state, and for the sequence classifier."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.reference_updates import BETA_1, BETA_2, EPSILON
from ptb_lm.tf_backend.cells import assign
from ptb_lm.tf_backend.network import Network

# Names in a run's state: of the steps that are done, and of each parameter's moments, before its own.
STEPS, MOMENTS = "tensorflow.adam.steps", ("tensorflow.adam.first", "tensorflow.adam.second")


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

    def export_state(self, network: Network) -> Arrays:
        """Return the steps, and the moments by canonical name: their layout depends on the device.

        Args:
            network: The network whose variables it moves.
        """
        arrays: Arrays = {STEPS: self.steps.numpy()}
        for kind, moments in zip(MOMENTS, self.moments, strict=True):
            canonical = network.to_canonical([moment.numpy() for moment in moments])
            arrays |= {f"{kind}.{name}": array for name, array in canonical.items()}
        return arrays

    def load_state(self, network: Network, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set a state that `export_state` returned.

        Args:
            network: The network whose variables it moves.
            arrays: The state; other names are left alone.

        Raises:
            KeyError: An array is missing.
            UserError: One is of another shape.
        """
        shapes = {f"{kind}.{name}": shape for kind in MOMENTS for name, shape in network.shapes.items()}
        shapes |= {STEPS: ()}
        parameters.check({name: arrays[name] for name in shapes}, shapes)
        for kind, moments in zip(MOMENTS, self.moments, strict=True):
            assign(
                moments, network.from_canonical({name: arrays[f"{kind}.{name}"] for name in network.shapes})
            )
        self.steps.assign(arrays[STEPS])
