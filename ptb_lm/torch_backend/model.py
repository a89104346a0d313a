"""The language model's middle: a stack of LSTM layers with dropout in all its places.

Shapes: T = time steps, B = batch, H = hidden units.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from ptb_lm.torch_backend.cells import Layer, LayerState

Dropout = Callable[[Tensor], Tensor]


class LSTMStack(nn.Module):
    """LSTM layers with dropout on the input, between the layers and on the top output.

    Args:
        layers: From the bottom to the top.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.layers: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]

    def forward(
        self, x_TBH: Tensor, state: Sequence[LayerState], dropout: Dropout
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, H] and each layer's state after the last step."""
        after = []
        x_TBH = dropout(x_TBH)
        for layer, layer_state in zip(self.layers, state, strict=True):
            x_TBH, layer_state = layer(x_TBH, layer_state)
            after.append(layer_state)
            x_TBH = dropout(x_TBH)
        return x_TBH, after


class InvertedDropout:
    """Inverted dropout with a random stream of its own: a fresh mask at each call.

    Its own stream makes the masks the same for every layer implementation, and a run resumable.

    Args:
        keep_prob: Probability that a unit is kept; kept units are divided by it.
        device: Where the masks are drawn.
        seed: Of the stream.
    """

    def __init__(self, keep_prob: float, *, device: torch.device, seed: int) -> None:
        self.keep_prob = keep_prob
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x with a fresh mask applied."""
        if self.keep_prob == 1:
            return x
        mask = torch.empty_like(x).bernoulli_(self.keep_prob, generator=self.generator)
        return x * mask.div_(self.keep_prob)


def no_dropout(x: Tensor) -> Tensor:
    """Return x: what evaluation uses."""
    return x
