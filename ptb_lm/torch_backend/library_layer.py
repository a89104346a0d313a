"""A layer of a stack that is torch's own, in one direction or in both.

Shapes: T = time steps, B = batch, I = input width, H = hidden units, D = directions.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from typing_extensions import override

from ptb_lm.model.cells.cell import Cell
from ptb_lm.torch_backend.cells import (
    PREFIXES,
    LayerState,
    ParameterView,
    StackLayer,
    ValidSteps,
    freeze_second_bias,
    library_parameters,
)


class LibraryLayer(StackLayer):
    """One of torch's layers: one operation for the sequence, by the library that torch uses on a device.

    Attributes:
        module_type: Class of torch's module.

    Args:
        input_size: I.
        hidden_size: H.
        cell: Declaration of its cell.
        bidirectional: True if it reads the sequence in both directions.
    """

    module_type: ClassVar[Callable[..., nn.RNNBase]]

    def __init__(self, input_size: int, hidden_size: int, cell: Cell, *, bidirectional: bool) -> None:
        super().__init__()
        self.cell = cell
        # On no device at first, so that no number is drawn: the caller's random stream stays as it was.
        module = self.module_type(input_size, hidden_size, bidirectional=bidirectional, device="meta")
        self.module = module.to_empty(device="cpu")
        self.suffixes = ("_l0", "_l0_reverse") if bidirectional else ("_l0",)
        for suffix in self.suffixes:
            self.prepare_second_bias(self.module.get_parameter(f"bias_hh{suffix}"))

    def prepare_second_bias(self, bias: nn.Parameter) -> None:
        """Set the second of torch's two biases to zero, and keep what the cell does not have of it there."""
        freeze_second_bias(bias)

    def direction_parameters(self, suffix: str) -> dict[str, ParameterView]:
        """Return a direction's trained parameters by the names that the cell declares.

        Args:
            suffix: End of torch's names of them.
        """
        return library_parameters(self.module, suffix)

    @override
    def canonical_views(self) -> dict[str, ParameterView]:
        return {
            prefix + name: view
            for prefix, suffix in zip(PREFIXES, self.suffixes, strict=False)
            for name, view in self.direction_parameters(suffix).items()
        }

    @override
    def zero_state(self, batch_size: int) -> list[LayerState]:
        zeros, shape = next(self.parameters()).new_zeros, (batch_size, self.module.hidden_size)
        return [tuple(zeros(shape) for _ in self.cell.state_names) for _ in self.suffixes]

    @override
    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], valid_steps: ValidSteps | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        self.module.train(torch.is_grad_enabled())  # without a gradient, nothing is kept for one
        # A view if possible: nothing is copied.
        before = [
            parts[0][None] if len(parts) == 1 else torch.stack(parts) for parts in zip(*state, strict=True)
        ]
        inputs: Any = x_TBI
        if valid_steps is not None:
            inputs = pack_padded_sequence(x_TBI, valid_steps.lengths_B, enforce_sorted=False)
        output, after = self.module(inputs, before[0] if len(before) == 1 else tuple(before))
        if valid_steps is not None:
            output, _ = pad_packed_sequence(output, total_length=len(x_TBI))
        after = [after] if len(before) == 1 else after
        return output, list(zip(*(part_DBH.unbind() for part_DBH in after), strict=True))
