"""The classifier as a symbolic graph over shared variables, and its dropout.

Shapes: B = batch, T = time steps, I = features, H = hidden units, 4H = the gates in the order i, f, g, o,
C = classes.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
import sequence_classifier
from sequence_classifier import ClassifierConfig

Tensor: TypeAlias = Any  # a symbolic array
Dropout: TypeAlias = Callable[[Tensor], Tensor]


class Network:
    """LSTM layers in pytensor.scan, and a dense layer.

    Attributes:
        variables: Shared variables by canonical name.
    """

    def __init__(self, config: ClassifierConfig, dtype: np.dtype[Any]) -> None:
        self.layers = range(len(config.hidden_sizes))
        self.dtype = dtype
        self.variables = {
            name: pytensor.shared(np.zeros(shape, dtype), name)
            for name, shape in sequence_classifier.shapes(config).items()
        }

    def logits(self, x_BTI: Tensor, valid_BT: Tensor | None, dropout: Dropout) -> Tensor:
        """Return the logits [B, C] of each sequence's final state.

        Args:
            x_BTI: The sequences.
            valid_BT: True for steps that are no padding; None if none is.
            dropout: The dropout of the input, between the layers, and of the top one's output.
        """
        values_TBI = dropout(x_BTI.transpose(1, 0, 2))
        valid_TB1 = None if valid_BT is None else valid_BT.T[:, :, None]
        for layer in self.layers:
            h_TBH = self._layer(layer, values_TBI, valid_TB1)
            # Only the last step of the top layer is read.
            values_TBI = dropout(h_TBH if layer < self.layers[-1] else h_TBH[-1])
        return values_TBI @ self.variables["dense.kernel"] + self.variables["dense.bias"]

    def _layer(self, layer: int, x_TBI: Tensor, valid_TB1: Tensor | None) -> Tensor:
        """Return a layer's outputs [T, B, H]; where a step is padding, that of the step before."""
        kernel, recurrent_kernel, bias = (
            self.variables[f"lstm.{layer}.{name}"] for name in ("kernel", "recurrent_kernel", "bias")
        )
        hidden = recurrent_kernel.get_value(borrow=True).shape[0]

        def step(z_BG: Tensor, h_BH: Tensor, c_BH: Tensor, recurrent_kernel: Tensor) -> list[Tensor]:
            z_BG = z_BG + h_BH @ recurrent_kernel
            i, f, g, o = (z_BG[:, gate * hidden : (gate + 1) * hidden] for gate in range(4))
            c_BH = pt.sigmoid(f) * c_BH + pt.sigmoid(i) * pt.tanh(g)
            return [pt.sigmoid(o) * pt.tanh(c_BH), c_BH]

        def step_if_valid(
            z_BG: Tensor, valid_B1: Tensor, h_BH: Tensor, c_BH: Tensor, recurrent_kernel: Tensor
        ) -> list[Tensor]:
            new_h_BH, new_c_BH = step(z_BG, h_BH, c_BH, recurrent_kernel)
            return [pt.switch(valid_B1, new_h_BH, h_BH), pt.switch(valid_B1, new_c_BH, c_BH)]

        # The inputs' part of the gates needs no loop: it is one product.
        z_TBG = x_TBI @ kernel + bias
        zero_BH = pt.zeros((x_TBI.shape[1], hidden), dtype=self.dtype)
        h_TBH, _ = pytensor.scan(
            step if valid_TB1 is None else step_if_valid,
            sequences=[z_TBG] if valid_TB1 is None else [z_TBG, valid_TB1],
            outputs_info=[zero_BH, zero_BH],
            non_sequences=[recurrent_kernel],
            return_updates=False,
        )
        return h_TBH


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
