"""All layers of a classifier in one call of torch.nn.LSTM: what a call for each layer is compared with.

It is how cuDNN is meant to be used, which may then work on several layers at a time. The layers must be of
one size, and dropout can only stand between them; here there is none.

Shapes: L = layers, T = time steps, B = batch, I = input width, H = hidden units.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ptb_lm.torch_backend  # noqa: F401  (what torch reads when it is imported)

# isort: split
import torch
from numpy.typing import NDArray
from sequence_classifier import ClassifierConfig
from sequence_classifier.on_torch import TorchClassifier
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.bench.rivals.plain_torch import lstm_parameters
from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.torch_backend.cells import Layer, LayerState, ParameterView
from ptb_lm.torch_backend.stack import RecurrentStack, State


class OneCallStack(RecurrentStack):
    """Layers of one size, without dropout, in one torch.nn.LSTM.

    Args:
        input_size: I.
        hidden_size: H.
        layers: L.
    """

    def __init__(self, input_size: int, hidden_size: int, layers: int) -> None:
        super().__init__([])
        self.lstm = nn.LSTM(input_size, hidden_size, layers)
        self.layer_parameters = [lstm_parameters(self.lstm, layer) for layer in range(layers)]

    def with_execution(self, execute: Callable[[Layer], Layer]) -> RecurrentStack:
        """Return itself: there are no single layers."""
        return self

    @override
    def canonical_views(self) -> dict[str, ParameterView]:
        return {
            f"lstm.{layer}.{name}": view
            for layer, parameters in enumerate(self.layer_parameters)
            for name, view in parameters.items()
        }

    @override
    def zero_state(self, batch_size: int) -> list[LayerState]:
        zeros = next(self.parameters()).new_zeros
        shape = (batch_size, self.lstm.hidden_size)
        return [(zeros(shape), zeros(shape)) for _ in range(self.lstm.num_layers)]

    @override
    def forward(
        self, x_TBI: Tensor, state: State, *, masks: Sequence[Tensor] = (), lengths_B: Tensor | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        assert lengths_B is None, "all of T"
        h_LBH, c_LBH = (torch.stack(parts) for parts in zip(*state, strict=True))
        output_TBH, (h_LBH, c_LBH) = self.lstm(x_TBI, (h_LBH, c_LBH))
        return output_TBH, list(zip(h_LBH.unbind(), c_LBH.unbind(), strict=True))


class OneCallClassifier(TorchClassifier):
    """A torch classifier whose layers are one call."""

    @override
    def build_stack(self, model: str) -> RecurrentStack:
        config = self.config
        return OneCallStack(config.input_size, config.hidden_sizes[0], len(config.hidden_sizes))


def build(config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> OneCallClassifier:
    """Build the classifier; see sequence_classifier.build.

    Raises:
        UserError: The layers cannot be one call, or there is no such device.
    """
    if len(set(config.hidden_sizes)) > 1 or config.bidirectional or config.keep_prob < 1:
        raise UserError("one call takes layers of one size, in one direction, without dropout on the output")
    return OneCallClassifier(config, weights, choice)
