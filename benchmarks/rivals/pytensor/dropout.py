"""Dropout in a symbolic graph."""

from typing import Any

import numpy as np
import pytensor.tensor as pt


class InvertedDropout:
    """Zeroes values at random, and scales up the others, so that the mean stays.

    Args:
        keep_prob: The probability of each value to be kept; 1 changes nothing.
        generator: A shared variable with a random generator.

    Attributes:
        updates: The generator's next states after all masks so far, for pytensor.function.
    """

    def __init__(self, keep_prob: float, generator: Any) -> None:
        self.keep_prob = keep_prob
        self.generator = generator
        self.updates: dict[Any, Any] = {}

    def __call__(self, values: Any) -> Any:
        """Return values of any shape, some of them dropped."""
        if self.keep_prob == 1:
            return values
        generator = self.updates.get(self.generator, self.generator)
        self.updates[self.generator], kept = pt.random.bernoulli(
            self.keep_prob, size=values.shape, rng=generator, return_next_rng=True
        )
        # In the precision of the values, where PyTensor's own choice could be another.
        return values * pt.cast(kept, values.dtype) * np.dtype(values.dtype).type(1 / self.keep_prob)
