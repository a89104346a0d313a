"""The middle of a network: a stack of recurrent layers.

Shapes: T = time steps, B = batch, N = T * B tokens, V = vocabulary, E = embedding width, I = input width, H =
a layer's hidden units, K = the top layer's output width: H, or 2H if each layer reads the sequence in both
directions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.model import cells
from ptb_lm.model.cells.cell import Cell
from ptb_lm.model.parameters import DEFAULT_CELL
from ptb_lm.torch_backend.cells import PREFIXES, Layer, LayerState, ParameterView, StackLayer, ValidSteps

State = Sequence[LayerState]  # of each layer and direction: layer 0 forward, layer 0 reverse, layer 1 ...


class DirectionalLayer(StackLayer):
    """A stack's layer of one `Layer` that reads forward, and perhaps one that reads backward.

    Args:
        layers: The layer that reads forward, and the one that reads backward, if there is one.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.directions: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]

    @override
    def zero_state(self, batch_size: int) -> list[LayerState]:
        return [layer.zero_state(batch_size) for layer in self.directions]

    @override
    def canonical_views(self) -> dict[str, ParameterView]:
        return {
            prefix + name: view
            for prefix, layer in zip(PREFIXES, self.directions, strict=False)
            for name, view in layer.canonical_views().items()
        }

    @override
    def with_execution(self, execute: Callable[[Layer], Layer]) -> StackLayer:
        return DirectionalLayer(map(execute, self.directions))

    @override
    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], valid_steps: ValidSteps | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        outputs: list[Tensor] = []  # torch.compile cannot trace list[Tensor]()
        after: list[LayerState] = []
        for layer, before in zip(self.directions, state, strict=True):
            backwards = len(outputs) == 1
            if valid_steps is not None:
                output_TBH, last = valid_steps.run(layer, x_TBI, before, backwards=backwards)
            elif backwards:
                output_TBH, last = layer(x_TBI.flip(0), before)
                output_TBH = output_TBH.flip(0)
            else:
                output_TBH, last = layer(x_TBI, before)
            outputs.append(output_TBH)
            after.append(last)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2), after


class RecurrentStack(nn.Module):
    """Recurrent layers with dropout on the input of each; the top output is the caller's to drop.

    Args:
        layers: Layers from the bottom to the top.
        cell: Declaration of their cell.
    """

    def __init__(self, layers: Iterable[StackLayer], *, cell: Cell = DEFAULT_CELL) -> None:
        super().__init__()
        self.cell = cell
        self.layers: Sequence[StackLayer] = nn.ModuleList(layers)  # type: ignore[assignment]

    @classmethod
    def build(
        cls,
        model: str,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: Cell = DEFAULT_CELL,
        bidirectional: bool = False,
    ) -> "RecurrentStack":
        """Return a stack; its parameters are still to be loaded.

        Args:
            model: Name of the way in which the layers are computed.
            input_size: I of the bottom layer.
            hidden_sizes: H of each layer, from the bottom to the top; they may differ.
            cell: Declaration of a cell that the model computes.
            bidirectional: True if each layer reads the sequence in both directions.
        """
        directions = 2 if bidirectional else 1
        input_sizes = [input_size, *(directions * hidden for hidden in hidden_sizes[:-1])]
        sizes = zip(input_sizes, hidden_sizes, strict=True)
        return cls(
            [build_layer(cell, model, *each, bidirectional=bidirectional) for each in sizes], cell=cell
        )

    def with_execution(self, execute: Callable[[Layer], Layer]) -> "RecurrentStack":
        """Return a stack with the same parameters whose single layers run in another way.

        Args:
            execute: Function that returns the layer to run; see ptb_lm.torch_backend.runtime.
        """
        return RecurrentStack([layer.with_execution(execute) for layer in self.layers], cell=self.cell)

    def canonical_views(self) -> dict[str, ParameterView]:
        """Return the trained parameters by canonical name, in the order of ptb_lm.model.parameters."""
        return {
            f"{self.cell.name}.{index}.{name}": view
            for index, layer in enumerate(self.layers)
            for name, view in layer.canonical_views().items()
        }

    def masks_by_parameter(self, masks: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
        """Return masks of trained parameters, each by its parameter and in its shape.

        Args:
            masks: Masks by canonical name, in canonical shape; those of other names are left out.
        """
        if not masks:
            return {}
        return {
            view.parameter: masks[name].T if view.transposed else masks[name]
            for name, view in self.canonical_views().items()
            if name in masks
        }

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained; torch's second biases are not."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return the zero state for a batch."""
        return [zeros for layer in self.layers for zeros in layer.zero_state(batch_size)]

    def forward(
        self, x_TBI: Tensor, state: State, *, masks: Sequence[Tensor] = (), lengths_B: Tensor | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K], and the state after the sequence.

        Args:
            x_TBI: The input.
            state: The state before the sequence.
            masks: Dropout's mask of the input of each layer, which broadcasts to it. Empty: no dropout.
            lengths_B: Valid steps of each sample, from 1 to T, on the CPU; None: all. The steps after them
                are padding and influence nothing: a layer that reads backward begins at the last valid step,
                the output is zero beyond it, and so is the gradient with respect to the input.
        """
        valid_steps = None if lengths_B is None else ValidSteps(lengths_B, len(x_TBI), x_TBI.device)
        after: list[LayerState] = []  # not list[LayerState](), which torch.compile cannot trace
        output = x_TBI
        directions = len(state) // len(self.layers)
        for index, layer in enumerate(self.layers):
            before = state[index * directions : (index + 1) * directions]
            inputs = output * masks[index] if masks else output
            output, layer_after = layer(inputs, before, valid_steps)
            after.extend(layer_after)
        return output, after


def build_layer(
    cell: Cell, model: str, input_size: int, hidden_size: int, *, bidirectional: bool = False
) -> StackLayer:
    """Return a layer of a stack; its parameters are still to be loaded.

    Args:
        cell: Declaration of its cell.
        model: Name of a way to compute it, one that the table has for the cell.
        input_size: I.
        hidden_size: H.
        bidirectional: True if it reads the sequence in both directions.
    """
    layer_type = cells.layer_class(cell.name, "torch", model)
    if issubclass(layer_type, StackLayer):
        return layer_type(input_size, hidden_size, cell, bidirectional=bidirectional)
    return DirectionalLayer(
        layer_type(input_size, hidden_size, cell) for _ in range(2 if bidirectional else 1)
    )


def embed(embedding_VE: Tensor, ids_N: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """Return the embeddings of words in time-major order, [T, B, E]."""
    return embedding_VE[ids_N].to(dtype).view(-1, batch, embedding_VE.shape[1])


def detach_state(state: State) -> list[LayerState]:
    """Return a state without the graph of the operations that computed it."""
    return [tuple([part.detach() for part in layer]) for layer in state]
