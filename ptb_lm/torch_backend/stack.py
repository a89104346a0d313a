"""The middle of a network: a stack of recurrent layers with inverted dropout in all its places.

Dropout has its own random stream. So the masks are the same for every layer implementation, and a run is
resumable. Masks are drawn on the device, by nothing that waits for it.

Shapes: T = time steps, B = batch, I = input width, H = a layer's hidden units, K = the top layer's output
width: H, or 2H if each layer reads the sequence in both directions.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.model import cells
from ptb_lm.model.cells.cell import Cell
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, Place, places
from ptb_lm.model.parameters import DEFAULT_CELL
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.cells import PREFIXES, Canonical, Layer, LayerState, Lengths, StackLayer

State = Sequence[LayerState]  # of each layer and direction: layer 0 forward, layer 0 reverse, layer 1 ...
Dropout = Callable[[Tensor], Tensor]

# Smallest probability that 16 random bits meet to a thousandth of itself.
MIN_KEEP_PROB_OF_16_BITS = 0.01


class Directions(StackLayer):
    """A layer that reads a sequence forward, or that and another one that reads it backward.

    Args:
        layers: The layer that reads forward, and the one that reads backward, if there is one.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.directions: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.direction_count = len(self.directions)

    @override
    def zero_state(self, batch_size: int) -> list[LayerState]:
        return [layer.zero_state(batch_size) for layer in self.directions]

    @override
    def canonical(self) -> dict[str, Canonical]:
        return {
            prefix + name: parameter
            for prefix, layer in zip(PREFIXES, self.directions, strict=False)
            for name, parameter in layer.canonical().items()
        }

    @override
    def with_execution(self, execute: Callable[[Layer], Layer]) -> StackLayer:
        return Directions(map(execute, self.directions))

    @override
    def forward(
        self, x_TBI: Tensor, state: Sequence[LayerState], lengths: Lengths | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        outputs: list[Tensor] = []  # torch.compile cannot trace list[Tensor]()
        after: list[LayerState] = []
        for layer, before in zip(self.directions, state, strict=True):
            backwards = len(outputs) == 1
            if lengths is not None:
                output_TBH, last = lengths.run(layer, x_TBI, before, backwards=backwards)
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

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name, in the order of ptb_lm.model.parameters."""
        return {
            f"{self.cell.name}.{index}.{name}": parameter
            for index, layer in enumerate(self.layers)
            for name, parameter in layer.canonical().items()
        }

    def masks_by_parameter(self, masks: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
        """Return masks of trained parameters, each by its parameter and in its shape.

        Args:
            masks: Masks by canonical name, in canonical shape; those of other names are left out.
        """
        if not masks:
            return {}
        places = {name: place for name, place in self.canonical().items() if name in masks}
        return {
            place.parameter: masks[name].T if place.transposed else masks[name]
            for name, place in places.items()
        }

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained; torch's second biases are not."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def zero_state(self, batch_size: int) -> list[LayerState]:
        """Return the zero state for a batch."""
        return [zeros for layer in self.layers for zeros in layer.zero_state(batch_size)]

    def forward(
        self, x_TBI: Tensor, state: State, *, dropout: Dropout, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, list[LayerState]]:
        """Return the output [T, B, K], and the state after the sequence.

        Args:
            x_TBI: The input.
            state: The state before the sequence.
            dropout: Function that is applied to the input of each layer.
            lengths_B: Valid steps of each sample, from 1 to T, on the CPU; None: all. The steps after them
                are padding and influence nothing: a layer that reads backward begins at the last valid step,
                the output is zero beyond it, and so is the gradient with respect to the input.
        """
        lengths = None if lengths_B is None else Lengths(lengths_B, len(x_TBI), x_TBI.device)
        before, after = iter(state), list[LayerState]()
        output = x_TBI
        for layer in self.layers:
            output, layer_after = layer(dropout(output), list(islice(before, layer.direction_count)), lengths)
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
        layer: StackLayer = layer_type(input_size, hidden_size, cell, bidirectional=bidirectional)
        return layer
    return Directions(layer_type(input_size, hidden_size, cell) for _ in range(2 if bidirectional else 1))


class InvertedDropout:
    """Dropout with a fresh mask at each call.

    Args:
        keep_prob: Probability that a unit is kept; kept units are divided by it.
        device: Device on which the masks are drawn.
        seed: Seed of the stream.
    """

    def __init__(self, keep_prob: float, *, device: torch.device, seed: int) -> None:
        self.keep_prob = keep_prob
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x with a fresh mask applied."""
        if self.keep_prob == 1:
            return x
        return x * draw_mask(Place(tuple(x.shape), self.keep_prob), self.generator, x.dtype)


class WindowDropout:
    """The masks of a language model, drawn window by window.

    Args:
        config: Hyper-parameters.
        vocabulary_size: V.
        device: Device on which the masks are drawn.
        dtype: Type of the masks.
        seed: Seed of the stream.
    """

    def __init__(
        self, config: Config, vocabulary_size: int, *, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.dtype = dtype
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)
        self._places: dict[tuple[int, int], Masks[Place]] = {}

    def draw(self, batch: int, steps: int) -> Masks[Tensor]:
        """Return the next window's masks; see ptb_lm.model.dropout_places.

        Args:
            batch: B.
            steps: T.
        """
        if (batch, steps) not in self._places:
            self._places[batch, steps] = places(self.config, self.vocabulary_size, batch=batch, steps=steps)
        masks = self._places[batch, steps]
        return Masks(
            {name: draw_mask(place, self.generator, self.dtype) for name, place in masks.weights.items()},
            [draw_mask(place, self.generator, self.dtype) for place in masks.units],
        )

    def preview(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that the next window's masks will keep, without advancing the random stream."""
        state = self.generator.get_state()
        masks = self.draw(batch, steps)
        self.generator.set_state(state)
        return Masks(
            {name: (mask != 0).cpu().numpy() for name, mask in masks.weights.items()},
            [(mask != 0).cpu().numpy() for mask in masks.units],
        )


def no_dropout(x: Tensor) -> Tensor:
    """Return x unchanged; evaluation uses this."""
    return x


def apply_in_order(masks: Sequence[Tensor]) -> Dropout:
    """Return a function that applies one mask per call; without masks it changes nothing."""
    if not masks:
        return no_dropout
    remaining = iter(masks)
    return lambda x: x * next(remaining)


@contextlib.contextmanager
def mask_weights(masks: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Multiply parameters by masks inside this context. After it they have their old values, to the bit.

    In place, so that every layer computes with its weights as they lie, cuDNN's too, whatever runs it.
    """
    kept = {parameter: parameter.detach().clone() for parameter in masks}
    with torch.no_grad():
        for parameter, mask in masks.items():
            parameter.mul_(mask)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)


def draw_mask(place: Place, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return a mask: 0 with probability 1 - keep_prob, else 1 / keep_prob."""
    mask = torch.empty(place.shape, device=generator.device, dtype=dtype)
    if generator.device.type != "cpu" or place.keep_prob < MIN_KEEP_PROB_OF_16_BITS:
        return mask.bernoulli_(place.keep_prob, generator=generator).div_(place.keep_prob)
    # bernoulli_ draws in double precision, one number after the other. Here a random word serves four units,
    # 16 bits for each: the probability is right to 2^-17.
    words = torch.empty(-(-mask.numel() // 4), device="cpu", dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    most = round(place.keep_prob * 2**16) - 1
    random = words.view(torch.uint16)[: mask.numel()].view(mask.shape)
    if (kernels := cpu.find_kernels(mask)) is not None:
        kernels.mask(mask, random, most, mask.new_ones(()).div_(place.keep_prob).item())
        return mask
    # torch can compare signed words alone.
    kept = (random.view(torch.int16) ^ -(2**15)) <= most - 2**15
    return mask.copy_(kept).div_(place.keep_prob)


def embed(embedding_VE: Tensor, ids_N: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """Return the embeddings of words in time-major order, [T, B, E]."""
    return embedding_VE[ids_N].to(dtype).view(-1, batch, embedding_VE.shape[1])
