"""The middle of a network: a stack of recurrent layers with dropout in all its places.

Shapes: T = time steps, B = batch, I = input width, H = a layer's hidden units, K = the top layer's output
width: H, or 2H where each layer reads the sequence in both directions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from torch import Tensor, nn

from ptb_lm.model.cells import LSTM
from ptb_lm.torch_backend.cells import Canonical, Layer, LayerState
from ptb_lm.torch_backend.dropout import Dropout
from ptb_lm.torch_backend.layers import StackLayer, built
from ptb_lm.torch_backend.lengths import Lengths

State = Sequence[LayerState]  # of each layer and direction: layer 0 forward, layer 0 reverse, layer 1 ...


class RecurrentStack(nn.Module):
    """Recurrent layers with dropout on the input, between the layers and on the top output.

    Args:
        layers: From the bottom to the top.
        cell: What their cells are, a name in ptb_lm.model.cells.CELLS.
    """

    def __init__(self, layers: Iterable[StackLayer], *, cell: str = LSTM) -> None:
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
        cell: str = LSTM,
        bidirectional: bool = False,
    ) -> "RecurrentStack":
        """Return a stack; its parameters are still to be loaded.

        Args:
            model: How the layers are computed.
            input_size: I of the bottom layer.
            hidden_sizes: H of each layer, from the bottom to the top; they may differ.
            cell: What their cells are, one that the model computes.
            bidirectional: Whether each layer reads the sequence in both directions.
        """
        directions = 2 if bidirectional else 1
        input_sizes = [input_size, *(directions * hidden for hidden in hidden_sizes[:-1])]
        layers = [
            built(cell, model, *sizes, bidirectional=bidirectional)
            for sizes in zip(input_sizes, hidden_sizes, strict=True)
        ]
        return cls(layers, cell=cell)

    def executed(self, execute: Callable[[Layer], Layer]) -> "RecurrentStack":
        """Return a stack with the same parameters whose single layers run in another way.

        Args:
            execute: Returns a layer as it is to be run; see ptb_lm.torch_backend.execution.
        """
        return RecurrentStack([layer.executed(execute) for layer in self.layers], cell=self.cell)

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name, as ptb_lm.model.parameters.stack_shapes does."""
        return {
            f"{self.cell}.{index}.{name}": parameter
            for index, layer in enumerate(self.layers)
            for name, parameter in layer.canonical().items()
        }

    def factors(self, masks: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
        """Return masks of trained parameters by the parameter, as it lies; other names are left alone.

        Args:
            masks: By canonical name, in canonical shape.
        """
        kept = {name: where for name, where in self.canonical().items() if name in masks}
        return {
            where.parameter: masks[name].T if where.transposed else masks[name]
            for name, where in kept.items()
        }

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that are trained; torch's second biases are not."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return the zero state for a batch."""
        return [state for layer in self.layers for state in layer.zero_state(batch_size)]

    def forward(
        self, x_TBI: Tensor, state: State, *, dropout: Dropout, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K], and the state after the sequence.

        Args:
            x_TBI: The input.
            state: The state before the sequence.
            dropout: What is done to the input, between the layers and to the top output.
            lengths_B: Valid steps of each sample, from 1 to T, on the CPU; None: all. What follows them is
                padding and influences nothing: a layer that reads backward begins at the last valid step,
                the output is zero beyond it, and so is the input's gradient.
        """
        lengths = None if lengths_B is None else Lengths(lengths_B, len(x_TBI), x_TBI.device)
        before, after = iter(state), list[LayerState]()
        output = dropout(x_TBI)
        for layer in self.layers:
            output, layer_after = layer(output, list(islice(before, layer.direction_count)), lengths)
            after.extend(layer_after)
            output = dropout(output)
        return output, after
