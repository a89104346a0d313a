"""One layer of a stack: it reads the sequence in one direction or in both, and may be told lengths.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, D = directions, K = D * H.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ptb_lm.model import cells
from ptb_lm.torch_backend.cells import Canonical, Layer, LayerState, freeze_second_bias
from ptb_lm.torch_backend.lengths import Lengths

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
        """Return a layer with the same parameters whose `Layer`s, if it has any, run in another way."""
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
        """Return a layer with the same parameters whose `Layer`s run in another way."""
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


class LibraryLayer(StackLayer):
    """One of torch's layers: one operation for the sequence, by the library that torch uses on a device.

    Attributes:
        cell_name: What its cells are, a name in ptb_lm.model.cells.CELLS.
        module_type: torch's module.

    Args:
        input_size: I.
        hidden_size: H.
        bidirectional: Whether it reads the sequence in both directions.
    """

    cell_name: ClassVar[str]
    module_type: ClassVar[Callable[..., nn.RNNBase]]

    def __init__(self, input_size: int, hidden_size: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.module = self.module_type(input_size, hidden_size, bidirectional=bidirectional)
        self.suffixes = ("l0", "l0_reverse") if bidirectional else ("l0",)
        self.direction_count = len(self.suffixes)

    @abstractmethod
    def canonical_of(self, suffix: str) -> dict[str, Canonical]:
        """Return a direction's trained parameters by their cell's names.

        Args:
            suffix: What ends torch's names of them.
        """

    @abstractmethod
    def run(self, inputs: Any, before: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...]]:
        """Call torch's module; a state is of the arrays [D, B, H] that its cell carries."""

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name."""
        return {
            prefix + name: kept
            for prefix, suffix in zip(PREFIXES, self.suffixes, strict=False)
            for name, kept in self.canonical_of(suffix).items()
        }

    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return each direction's zero state for a batch."""
        zeros, shape = next(self.parameters()).new_zeros, (batch_size, self.module.hidden_size)
        carried = cells.get(self.cell_name).state_names
        return [tuple(zeros(shape) for _ in carried) for _ in self.suffixes]

    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], lengths: Lengths | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K] and each direction's state after it has read the sequence."""
        self.module.train(torch.is_grad_enabled())  # without a gradient, nothing is kept for one
        before = tuple(_stacked(parts) for parts in zip(*state, strict=True))
        if lengths is None:
            output_TBK, after = self.run(x_TBI, before)
        else:
            packed = pack_padded_sequence(x_TBI, lengths.lengths_B, enforce_sorted=False)
            packed, after = self.run(packed, before)
            output_TBK, _ = pad_packed_sequence(packed, total_length=len(x_TBI))
        return output_TBK, list(zip(*(part_DBH.unbind() for part_DBH in after), strict=True))


class CudnnLayer(LibraryLayer):
    """torch.nn.LSTM: cuDNN on a GPU, oneDNN or ATen on a CPU."""

    cell_name = cells.LSTM
    module_type = nn.LSTM

    def __init__(self, input_size: int, hidden_size: int, *, bidirectional: bool) -> None:
        super().__init__(input_size, hidden_size, bidirectional=bidirectional)
        for suffix in self.suffixes:
            freeze_second_bias(self.module.get_parameter(f"bias_hh_{suffix}"))

    def canonical_of(self, suffix: str) -> dict[str, Canonical]:
        """Return a direction's trained parameters by their cell's names."""
        return {
            "kernel": Canonical(self.module.get_parameter(f"weight_ih_{suffix}"), True),
            "recurrent_kernel": Canonical(self.module.get_parameter(f"weight_hh_{suffix}"), True),
            "bias": Canonical(self.module.get_parameter(f"bias_ih_{suffix}")),
        }

    def run(self, inputs: Any, before: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...]]:
        """Call torch's module."""
        output, after = self.module(inputs, before)
        return output, after


def built(
    cell: str, model: str, input_size: int, hidden_size: int, *, bidirectional: bool = False
) -> StackLayer:
    """Return a layer of a stack; its parameters are still to be loaded.

    Args:
        cell: A name in CELLS.
        model: How it is computed, one that the table has for the cell.
        input_size: I.
        hidden_size: H.
        bidirectional: Whether it reads the sequence in both directions.
    """
    layer_type = cells.layer_class(cell, "torch", model)
    if issubclass(layer_type, StackLayer):
        layer: StackLayer = layer_type(input_size, hidden_size, bidirectional=bidirectional)
        return layer
    return DirectedLayers(layer_type(input_size, hidden_size) for _ in range(2 if bidirectional else 1))


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    # A view if possible: nothing is copied.
    return parts[0][None] if len(parts) == 1 else torch.stack(tuple(parts))
