"""Sequences of different lengths in one batch, for layers that do not support lengths.

A layer is run over the valid steps alone, in the order of torch's packed sequences: the longest sample first,
the batch narrower wherever samples end. What the padding holds is never read.

Shapes: T = time steps, B = batch, P = valid steps of all samples together, I = input width, H = hidden units.
"""

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from ptb_lm.torch_backend.cells import BlockFusedLayer, Layer, LayerState


class Lengths:
    """How many steps of each sample are valid, and what follows from that for every layer.

    Args:
        lengths_B: Valid steps of each sample, from 1 to T; on the CPU, so that no device is waited for.
        steps: T.
        device: Where the samples are.
    """

    def __init__(self, lengths_B: Tensor, steps: int, device: torch.device) -> None:
        self.lengths_B = lengths_B
        self.steps = steps
        self.device = device

    def run(
        self, layer: Layer, x_TBI: Tensor, state: LayerState, *, backwards: bool
    ) -> tuple[Tensor, LayerState]:
        """Run a layer over the valid steps of each sample.

        Args:
            layer: Any layer.
            x_TBI: Its input.
            state: Before the first step that it reads.
            backwards: Whether it reads from the last valid step down to step 0.

        Returns:
            (output, state): the output [T, B, H], zero beyond a sample's length; and each sample's state
            after the last step that was read of it.
        """
        packed = self._packed
        assert packed.sorted_indices is not None
        assert packed.unsorted_indices is not None
        position_P = self._backwards if backwards else packed.data
        x_PI = x_TBI.flatten(0, 1).index_select(0, position_P)
        state = tuple(part_BH[packed.sorted_indices] for part_BH in state)
        last: LayerState
        if isinstance(layer, BlockFusedLayer):
            output_PH, last = layer.packed(x_PI, state, tuple(packed.batch_sizes.tolist()))
        else:
            output_PH, last = self._in_pieces(layer, x_PI, state)
        output = output_PH.new_zeros(self.steps * len(self.lengths_B), output_PH.shape[1])
        output = output.index_copy(0, position_P, output_PH)
        last = tuple(part_BH[packed.unsorted_indices] for part_BH in last)
        return output.view(self.steps, len(self.lengths_B), -1), last

    def _in_pieces(self, layer: Layer, x_PI: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Run a layer that needs rectangular input, one rectangle at a time; the samples stay sorted."""
        outputs, ended = [], []
        for (running, steps), (going_on, _) in zip(self._pieces, [*self._pieces[1:], (0, 0)], strict=True):
            piece_PI, x_PI = x_PI.tensor_split([running * steps])
            before = tuple(part_BH[:running] for part_BH in state)
            output, state = layer(piece_PI.view(steps, running, -1), before)
            outputs.append(output.flatten(0, 1))
            ended.append(tuple(part_BH[going_on:] for part_BH in state))
        # The shortest samples ended first, and are last in the order.
        return torch.cat(outputs), tuple(torch.cat(parts[::-1]) for parts in zip(*ended, strict=True))

    @cached_property
    def _packed(self) -> PackedSequence:
        """Where in the flattened [T * B] each valid step is, in the order of reading."""
        return self._pack(torch.arange(self.steps)[:, None].expand(-1, len(self.lengths_B)))

    @cached_property
    def _backwards(self) -> Tensor:
        """The same, where each sample is read from its last valid step."""
        return self._pack(self.lengths_B - 1 - torch.arange(self.steps)[:, None]).data

    @cached_property
    def _pieces(self) -> list[tuple[int, int]]:
        """(samples, steps) of each run of steps in which no sample ends."""
        running, steps = self._packed.batch_sizes.unique_consecutive(return_counts=True)
        return list(zip(running.tolist(), steps.tolist(), strict=True))

    def _pack(self, step_TB: Tensor) -> PackedSequence:
        batch = len(self.lengths_B)
        position_TB = step_TB * batch + torch.arange(batch)
        packed = pack_padded_sequence(position_TB, self.lengths_B, enforce_sorted=False)
        return packed.to(self.device)  # type: ignore[arg-type] # torch declares a dtype alone
