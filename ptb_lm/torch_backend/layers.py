"""One layer of a stack: it reads the sequence in one direction or in both, and may be told lengths.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, D = directions, K = D * H.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ptb_lm.torch_backend.cells import (
    BasicLayer,
    BlockFusedLayer,
    BlockLayer,
    Canonical,
    Layer,
    LayerState,
    freeze_second_bias,
)
from ptb_lm.torch_backend.lengths import Lengths
from ptb_lm.torch_backend.persistent import PersistentLayer

PREFIXES = ("", "reverse.")  # of each direction's canonical names


class StackLayer(nn.Module, ABC):
    """One layer of a stack.

    Attributes:
        direction_count: 1, or 2 if it reads the sequence in both directions.
    """

    direction_count: int

    @abstractmethod
    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name: kernel, ..., reverse.kernel, ..."""

    @abstractmethod
    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return each direction's zero state for a batch."""

    def executed(self, execute: Callable[[Layer], Layer]) -> "StackLayer":
        """Return a layer with the same parameters whose `Layer`s, if it has any, are run otherwise."""
        return self

    @abstractmethod
    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], lengths: Lengths | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K] and each direction's state after it has read the sequence.

        Args:
            x_TBI: The input.
            state: Each direction's state before it reads the sequence.
            lengths: The valid steps of each sample. None: all.
        """


class DirectedLayers(StackLayer):
    """A `Layer` for each direction.

    Args:
        directions: The one that reads forward, and the one, if any, that reads backward.
    """

    def __init__(self, directions: Iterable[Layer]) -> None:
        super().__init__()
        self.directions: Sequence[Layer] = nn.ModuleList(directions)  # type: ignore[assignment]
        self.direction_count = len(self.directions)

    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return each direction's zero state for a batch."""
        return [layer.zero_state(batch_size) for layer in self.directions]

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name."""
        return {
            prefix + name: parameter
            for prefix, layer in zip(PREFIXES, self.directions, strict=False)
            for name, parameter in layer.canonical().items()
        }

    def executed(self, execute: Callable[[Layer], Layer]) -> StackLayer:
        """Return a layer with the same parameters whose `Layer`s are run otherwise."""
        return DirectedLayers(execute(layer) for layer in self.directions)

    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], lengths: Lengths | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K] and each direction's state after it has read the sequence."""
        outputs, after = [], []
        for direction, (layer, before) in enumerate(zip(self.directions, state, strict=True)):
            if lengths is not None:
                output_TBH, last = lengths.run(layer, x_TBI, before, backwards=direction == 1)
            elif direction == 1:
                output_TBH, last = layer(x_TBI.flip(0), before)
                output_TBH = output_TBH.flip(0)
            else:
                output_TBH, last = layer(x_TBI, before)
            outputs.append(output_TBH)
            after.append(last)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2), after


class CudnnLayer(StackLayer):
    """torch.nn.LSTM: one operation for the sequence; cuDNN on a GPU, oneDNN or ATen on a CPU.

    Args:
        input_size: I.
        hidden_size: H.
        bidirectional: Whether it reads the sequence in both directions.
    """

    def __init__(self, input_size: int, hidden_size: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, bidirectional=bidirectional)
        self.suffixes = ("l0", "l0_reverse") if bidirectional else ("l0",)
        self.direction_count = len(self.suffixes)
        for suffix in self.suffixes:
            freeze_second_bias(self.lstm.get_parameter(f"bias_hh_{suffix}"))

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name."""
        table = {}
        for prefix, suffix in zip(PREFIXES, self.suffixes, strict=False):
            table[prefix + "kernel"] = Canonical(self.lstm.get_parameter(f"weight_ih_{suffix}"), True)
            table[prefix + "recurrent_kernel"] = Canonical(
                self.lstm.get_parameter(f"weight_hh_{suffix}"), True
            )
            table[prefix + "bias"] = Canonical(self.lstm.get_parameter(f"bias_ih_{suffix}"))
        return table

    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return each direction's zero state for a batch."""
        zeros, shape = next(self.parameters()).new_zeros, (batch_size, self.lstm.hidden_size)
        return [(zeros(shape), zeros(shape)) for _ in self.suffixes]

    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], lengths: Lengths | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K] and each direction's state after it has read the sequence."""
        self.lstm.train(torch.is_grad_enabled())  # without a gradient, nothing is kept for one
        before = tuple(_stacked(parts) for parts in zip(*state, strict=True))
        if lengths is None:
            output_TBK, after = self.lstm(x_TBI, before)
        else:
            packed = pack_padded_sequence(x_TBI, lengths.lengths_B, enforce_sorted=False)
            packed, after = self.lstm(packed, before)
            output_TBK, _ = pad_packed_sequence(packed, total_length=len(x_TBI))
        h_DBH, c_DBH = after
        return output_TBK, list(zip(h_DBH.unbind(), c_DBH.unbind(), strict=True))


class LayerFactory(Protocol):
    """What builds a layer of a stack."""

    def __call__(self, input_size: int, hidden_size: int, *, bidirectional: bool) -> StackLayer:
        """Return a layer of these sizes, in one direction or in both."""


def _directed(
    layer: Callable[[int, int], Layer], input_size: int, hidden_size: int, *, bidirectional: bool
) -> StackLayer:
    return DirectedLayers(layer(input_size, hidden_size) for _ in range(2 if bidirectional else 1))


LAYERS: dict[str, LayerFactory] = {
    "basic": partial(_directed, BasicLayer),
    "block": partial(_directed, BlockLayer),
    "block_fused": partial(_directed, BlockFusedLayer),
    "cudnn": CudnnLayer,
    "persistent": partial(_directed, PersistentLayer),
}


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    # A view where there is one: nothing is copied.
    return parts[0][None] if len(parts) == 1 else torch.stack(tuple(parts))
