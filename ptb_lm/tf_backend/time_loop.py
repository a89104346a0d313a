"""A recurrence over time, in two forms.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

LayerState = tuple[tf.Tensor, ...]  # what a layer carries, each [B, H]; the first is h_BH, its output
Step = Callable[[tf.Tensor, LayerState], LayerState]  # (x_BI, state) -> state
TimedStep = Callable[[Any, tf.Tensor, LayerState], LayerState]  # (t, x_BI, state) -> state


def over_time(
    step: Step, x_TBI: tf.Tensor, state: LayerState, *, unroll: str, lengths_B: tf.Tensor | None = None
) -> tuple[tf.Tensor, LayerState]:
    """Return the h of every step [T, B, H] and the state after the last.

    Args:
        step: The recurrence.
        x_TBI: The input.
        state: Before the first step.
        unroll: "static": the graph holds every step, where T is known when it is traced. In training it is;
            the one graph for windows of any length loops. "loop": the graph holds one step.
        lengths_B: Steps of each sample; from there on its state stays as it is. None: all T.
    """

    def timed(t: Any, x_BI: tf.Tensor, state: LayerState) -> LayerState:
        after = step(x_BI, state)
        if lengths_B is None:
            return after
        valid_B1 = (t < lengths_B)[:, None]
        return tuple(tf.where(valid_B1, new, old) for new, old in zip(after, state, strict=True))

    if unroll == "static" and x_TBI.shape[0] is not None:
        return _unrolled(timed, x_TBI, state)
    return _loop(timed, x_TBI, state)


def _unrolled(step: TimedStep, x_TBI: tf.Tensor, state: LayerState) -> tuple[tf.Tensor, LayerState]:
    outputs = []
    for t, x_BI in enumerate(tf.unstack(x_TBI)):
        state = step(t, x_BI, state)
        outputs.append(state[0])
    return tf.stack(outputs), state


def _loop(step: TimedStep, x_TBI: tf.Tensor, state: LayerState) -> tuple[tf.Tensor, LayerState]:
    steps = tf.shape(x_TBI)[0]
    inputs = tf.TensorArray(x_TBI.dtype, size=steps).unstack(x_TBI)
    outputs = tf.TensorArray(x_TBI.dtype, size=steps, element_shape=state[0].shape)

    def body(
        t: tf.Tensor, outputs: tf.TensorArray, state: LayerState
    ) -> tuple[tf.Tensor, tf.TensorArray, LayerState]:
        state = step(t, inputs.read(t), state)
        return t + 1, outputs.write(t, state[0]), state

    _, outputs, state = tf.while_loop(
        lambda t, *_: t < steps,
        body,
        (tf.constant(0), outputs, state),
        # XLA sizes the stacks that the gradient pops from by this bound.
        maximum_iterations=steps,
    )
    return outputs.stack(), state
