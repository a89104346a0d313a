"""How the operations of a step are run: --execution."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def executed(
    function: Callable[..., Any], execution: str, signature: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """Return a function as --execution wants it run.

    Args:
        function: What to run.
        execution: "graph", "eager" or "xla".
        signature: The TensorSpecs of one graph for all shapes. None: a graph for each shape.
    """
    if execution == "eager":
        return function
    compiled: Callable[..., Any] = tf.function(
        function,
        input_signature=signature,
        jit_compile=execution == "xla",
        autograph=False,  # loops say themselves whether they unroll
    )
    return compiled
