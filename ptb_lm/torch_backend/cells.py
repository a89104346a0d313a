"""The bases of the layers, ours and torch's own, and how a layer reads sequences of different lengths.

Each cell has a file. All models of a cell compute the same function of the same canonical parameters, which
ptb_lm.model.cells declares.

A layer that does not support lengths is run over the valid steps alone, in the order of torch's packed
sequences: the longest sample first, the batch narrower wherever samples end. What the padding holds is never
read.

Shapes: T = time steps, B = batch, P = valid steps of all samples together, I = input width, H = hidden units,
D = directions, K = a stack layer's output width: H, or 2H.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from typing_extensions import override

from ptb_lm.model.backend import Arrays
from ptb_lm.model.cells.cell import Cell

LayerState = tuple[Tensor, ...]  # the arrays that a layer carries from step to step, each [B, H]; first h_BH
LSTMState = tuple[Tensor, Tensor]  # h_BH, c_BH; TorchScript needs the number of them
PREFIXES = ("", "reverse.")  # of each direction's canonical names


class ParameterView(NamedTuple):
    """A canonical parameter, as a view of the tensor that torch keeps it in."""

    parameter: Tensor
    transposed: bool = False  # torch's own modules keep [4H, I], and the canonical shape is [I, 4H]
    rows: slice | int | None = None  # of the tensor, if torch keeps more than the parameter in it

    @property
    def value(self) -> Tensor:
        """The parameter's numbers: a view of canonical shape."""
        tensor = self.parameter.detach()
        if self.rows is not None:
            tensor = tensor[self.rows]
        return tensor.T if self.transposed else tensor


def export_arrays(views: Mapping[str, ParameterView]) -> Arrays:
    """Return a copy of the parameters' numbers, by the same names."""
    return {name: view.value.cpu().numpy().copy() for name, view in views.items()}


def load_arrays(views: Mapping[str, ParameterView], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set parameters from arrays of the same names, in canonical shapes."""
    for name, view in views.items():
        view.value.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


def library_parameters(module: nn.Module, end: str = "") -> dict[str, ParameterView]:
    """Return the trained parameters of a module that names them as torch's own do, by canonical name.

    Args:
        module: The module.
        end: End of torch's names.
    """
    return {
        "kernel": ParameterView(module.get_parameter(f"weight_ih{end}"), transposed=True),
        "recurrent_kernel": ParameterView(module.get_parameter(f"weight_hh{end}"), transposed=True),
        "bias": ParameterView(module.get_parameter(f"bias_ih{end}")),
    }


def freeze_second_bias(bias: Tensor) -> None:
    """Keep one of torch's bias vectors at zero.

    torch adds two biases, and the canonical model has one. A trained pair would move twice as fast under SGD
    as the one.
    """
    bias.requires_grad_(False)
    nn.init.zeros_(bias)


class Layer(nn.Module, ABC):
    """One layer over a sequence, in one direction.

    Attributes:
        float32_states: Names of the carried arrays that are of float32 at least. They are sums that grow at
            every step.

    Args:
        input_size: I.
        hidden_size: H.
        cell: Declaration of its cell.
    """

    float32_states: ClassVar[Collection[str]] = ()

    def __init__(self, input_size: int, hidden_size: int, cell: Cell) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell = cell

    @abstractmethod
    def canonical_views(self) -> dict[str, ParameterView]:
        """Return the trained parameters by the names that the cell declares: kernel, recurrent_kernel ..."""

    def zero_state(self, batch_size: int) -> LayerState:
        """Return the zero state for a batch."""
        like, shape = next(self.parameters()), (batch_size, self.hidden_size)
        wide = torch.promote_types(like.dtype, torch.float32)
        return tuple(
            like.new_zeros(shape, dtype=wide if name in self.float32_states else like.dtype)
            for name in self.cell.state_names
        )

    @abstractmethod
    def forward(self, x_TBI: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the output [T, B, H] and the state after the last step; a state is a LayerState."""


class CanonicalLayer(Layer):
    """A layer with the parameters that its cell declares, by the same names."""

    def __init__(self, input_size: int, hidden_size: int, cell: Cell) -> None:
        super().__init__(input_size, hidden_size, cell)
        for name, shape in cell.shapes(input_size, hidden_size).items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    @override
    def canonical_views(self) -> dict[str, ParameterView]:
        return {name: ParameterView(parameter) for name, parameter in self.named_parameters()}


class PackedLayer(CanonicalLayer):
    """A layer that reads packed sequences itself."""

    @abstractmethod
    def forward_packed(
        self, x_PI: Tensor, state: LayerState, batch_sizes: tuple[int, ...]
    ) -> tuple[Tensor, LayerState]:
        """Return the output [P, H] and each sample's state after its last step.

        Args:
            x_PI: The steps of all samples, one time step after the other.
            state: State before the first step, with the samples in the same order.
            batch_sizes: Number of samples that have a step, for each of T; as in torch's PackedSequence.
        """


class ValidSteps:
    """The valid steps of each sample; runs a layer over them alone, for layers that do not support lengths.

    Args:
        lengths_B: Valid steps of each sample, from 1 to T; on the CPU, so that no device is waited for.
        steps: T.
        device: Device of the samples.
    """

    def __init__(self, lengths_B: Tensor, steps: int, device: torch.device) -> None:
        self.lengths_B = lengths_B
        self.steps = steps
        self.device = device

    def run(
        self, layer: Layer, x_TBI: Tensor, state: LayerState, *, backwards: bool = False
    ) -> tuple[Tensor, LayerState]:
        """Run a layer over the valid steps of each sample.

        Args:
            layer: Any layer.
            x_TBI: Input of the layer.
            state: State before the first step that it reads.
            backwards: True if it reads from the last valid step down to step 0.

        Returns:
            (output, state): the output [T, B, H], zero beyond a sample's length; and each sample's state
            after the last of its steps that was read.
        """
        packed = self._forward_positions
        assert packed.sorted_indices is not None
        assert packed.unsorted_indices is not None
        position_P = self._backward_positions if backwards else packed.data
        x_PI = x_TBI.flatten(0, 1).index_select(0, position_P)
        state = tuple(part_BH[packed.sorted_indices] for part_BH in state)
        last: LayerState
        if isinstance(layer, PackedLayer):
            output_PH, last = layer.forward_packed(x_PI, state, tuple(packed.batch_sizes.tolist()))
        else:
            output_PH, last = self._run_in_pieces(layer, x_PI, state)
        output = output_PH.new_zeros(self.steps * len(self.lengths_B), output_PH.shape[1])
        output = output.index_copy(0, position_P, output_PH)
        last = tuple(part_BH[packed.unsorted_indices] for part_BH in last)
        return output.view(self.steps, len(self.lengths_B), -1), last

    def _run_in_pieces(self, layer: Layer, x_PI: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Run a layer that needs rectangular input, one rectangle at a time; the samples stay sorted."""
        outputs, ended = [], []
        for (samples, steps), (next_samples, _) in zip(
            self._pieces, [*self._pieces[1:], (0, 0)], strict=True
        ):
            piece_PI, x_PI = x_PI.tensor_split([samples * steps])
            before = tuple(part_BH[:samples] for part_BH in state)
            output, state = layer(piece_PI.view(steps, samples, -1), before)
            outputs.append(output.flatten(0, 1))
            ended.append(tuple(part_BH[next_samples:] for part_BH in state))
        # The shortest samples ended first, and are last in the order.
        return torch.cat(outputs), tuple(torch.cat(parts[::-1]) for parts in zip(*ended, strict=True))

    @cached_property
    def _forward_positions(self) -> PackedSequence:
        """The position of each valid step in the flattened [T * B], in the order of reading."""
        return self._pack(torch.arange(self.steps)[:, None].expand(-1, len(self.lengths_B)))

    @cached_property
    def _backward_positions(self) -> Tensor:
        """The positions, each sample read from its last valid step, [P]."""
        return self._pack(self.lengths_B - 1 - torch.arange(self.steps)[:, None]).data

    @cached_property
    def _pieces(self) -> list[tuple[int, int]]:
        """(samples, steps) of each run of steps in which no sample ends."""
        samples, steps = self._forward_positions.batch_sizes.unique_consecutive(return_counts=True)
        return list(zip(samples.tolist(), steps.tolist(), strict=True))

    def _pack(self, step_TB: Tensor) -> PackedSequence:
        batch = len(self.lengths_B)
        position_TB = step_TB * batch + torch.arange(batch)
        packed = pack_padded_sequence(position_TB, self.lengths_B, enforce_sorted=False)
        return packed.to(self.device)  # type: ignore[arg-type] # torch declares a dtype alone


class StackLayer(nn.Module, ABC):
    """A layer of a stack that knows directions and lengths itself."""

    @abstractmethod
    def canonical_views(self) -> dict[str, ParameterView]:
        """Return the trained parameters by canonical name: kernel, ..., reverse.kernel, ..."""

    @abstractmethod
    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return each direction's zero state for a batch."""

    def with_execution(self, execute: Callable[[Layer], Layer]) -> "StackLayer":
        """Return a layer with the same parameters whose `Layer`s, if it has any, run in another way."""
        return self

    @abstractmethod
    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], valid_steps: ValidSteps | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K] and each direction's state after it has read the sequence.

        Args:
            x_TBI: The input.
            state: Each direction's state before it reads the sequence.
            valid_steps: The valid steps of each sample. None: all.
        """


class LibraryLayer(StackLayer):
    """A layer of torch's own: one operation for the sequence, by the library that torch uses on a device.

    It reads the sequence in one direction or in both.

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
