"""What the ranks exchange in a training step, so that each then moves its weights as one rank would.

The softmax's gradient is ready before the backward pass through the layers, and is on its way
meanwhile. The layers' gradients follow in one piece. The embedding's go as they are, a row for each word of
the window, unless the whole matrix is less; with them go the words and the loss.

Shapes: N = tokens of this rank's window, E = embedding width, V = vocabulary, R = ranks, M = tokens of all
ranks' windows, or V.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ptb_lm.model.ranks import Ranks
from ptb_lm.torch_backend.precision import Precision
from ptb_lm.torch_backend.ranks import TorchRanks
from ptb_lm.torch_backend.window import NoExchange, Window


class _Begun(NamedTuple):
    """A sum over the ranks that is under way."""

    work: Any
    wire: Tensor
    gradient: Tensor


class Exchange(NoExchange):
    """Sums gradients over ranks.

    Args:
        ranks: This process and the others.
        device: Where the gradients are.
        precision: Of the model; numbers are sent and summed as its weights are kept, unless the ranks were
            told otherwise.
        vocabulary_size: V.
    """

    def __init__(
        self, ranks: Ranks, *, device: torch.device, precision: Precision, vocabulary_size: int
    ) -> None:
        assert isinstance(ranks, TorchRanks)
        self.size = ranks.size
        self._ranks, self._vocabulary_size = ranks, vocabulary_size
        self._wire = torch.bfloat16 if ranks.reduce_precision == "bf16" else precision.master
        self._device, self._group = device, ranks.device_group(device)
        self._begun: list[_Begun] = []
        self._waiting: list[Tensor] | None = []  # for the other ranks' first step; None after it
        self._buffers: dict[str, Tensor] = {}

    def environment(self) -> dict[str, Any]:
        """Return how many processes there are, and what their gradients are sent and summed in."""
        return {"processes": self.size, "reduce_precision": str(self._wire).removeprefix("torch.")}

    def begin(self, gradient: Tensor) -> None:
        """Begin to sum a gradient over the ranks, in place."""
        if self._waiting is not None:
            self._waiting.append(gradient)
            return
        wire = gradient if gradient.is_contiguous() else gradient.T  # as it lies in memory
        if wire.dtype != self._wire:
            wire = self._buffer("softmax", wire.numel()).view(wire.shape).copy_(wire)
        work = self._sum(wire, wait=False)
        self._begun.append(_Begun(work, wire, gradient))

    def finish(self, window: Window) -> Window:
        """Return what the windows of all ranks are together."""
        self._meet()
        nll = window.nll.sum(dtype=torch.float64)[None]
        if rows_are_less(self.size * len(window.ids), window.d_embedded.shape[1], self._vocabulary_size):
            nll, ids, d_embedded = self._gathered(nll, window.ids, self._sent(window.d_embedded))
            d_embedded = d_embedded.to(window.d_embedded.dtype)
        else:
            (nll,) = self._gathered(nll)
            ids = torch.arange(self._vocabulary_size, device=window.ids.device)
            d_embedded = self._whole(window)
        gradients = self._summed(window.gradients)
        for begun in self._begun:
            with self._ranks.collective(after_step=True):
                begun.work.wait()
            if begun.wire.dtype != begun.gradient.dtype:
                back = begun.gradient if begun.gradient.is_contiguous() else begun.gradient.T
                back.copy_(begun.wire)
        self._begun = []
        return Window(nll, ids, d_embedded, gradients)

    def agreed(self, norm: Tensor) -> Tensor:
        """Return the first rank's norm, so that all clip alike, and no rank skips a step or diverges alone.

        Ranks with the same gradients may find norms that differ in the last bits: a GPU adds in any order.
        """
        with self._ranks.collective(after_step=True):
            dist.broadcast(norm, src=0, group=self._group)
        return norm

    def _meet(self) -> None:
        """Wait for all ranks before the first exchange: one of them may compile much longer than another."""
        if self._waiting is not None:
            self._ranks.barrier()
            waiting, self._waiting = self._waiting, None
            for gradient in waiting:
                self.begin(gradient)

    def _sent(self, rows_NE: Tensor) -> Tensor:
        """Return rows in the narrower of their own precision and that of the wire: nothing is summed."""
        return rows_NE if rows_NE.dtype.itemsize <= self._wire.itemsize else rows_NE.to(self._wire)

    def _whole(self, window: Window) -> Tensor:
        """Return the embedding's whole gradient, summed over the ranks, [V, E].

        It keeps the precision of the sum, which may be more than that of its terms. What the occurrences of a
        word add on one rank is rounded to the wire's precision once.
        """
        d_embedded = window.d_embedded
        kept, width = torch.promote_types(self._wire, d_embedded.dtype), d_embedded.shape[1]
        sums_VE = self._buffer("embedding", self._vocabulary_size * width).view(-1, width)
        exact = torch.promote_types(kept, torch.float32)
        if exact == self._wire:
            sums_VE.zero_().index_add_(0, window.ids, d_embedded.to(exact))
        else:
            own_VE = sums_VE.new_zeros(sums_VE.shape, dtype=exact)
            sums_VE.copy_(own_VE.index_add_(0, window.ids, d_embedded.to(exact)))
        self._sum(sums_VE)
        return sums_VE.to(kept)

    def _summed(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return gradients summed over the ranks, sent in one piece."""
        bucket = self._buffer("layers", sum(gradient.numel() for gradient in gradients))
        parts = bucket.split([gradient.numel() for gradient in gradients])
        views = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
        for view, gradient in zip(views, gradients, strict=True):
            view.copy_(gradient)
        self._sum(bucket)
        return [
            view if view.dtype == gradient.dtype else gradient.copy_(view)
            for view, gradient in zip(views, gradients, strict=True)
        ]

    def _gathered(self, *tensors: Tensor) -> list[Tensor]:
        """Return tensors with those of the other ranks behind each other, in the order of ranks.

        They go as the bytes of one message; the longer numbers come first, so that all lie where they may.
        """
        pieces = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        sent = torch.cat(pieces)
        received = sent.new_empty(self.size, len(sent))
        with self._ranks.collective(after_step=True):
            dist.all_gather(list(received.unbind()), sent, group=self._group)
        parts = received.split([len(piece) for piece in pieces], dim=1)
        return [
            part.contiguous().view(-1).view(tensor.dtype).view(-1, *tensor.shape[1:])
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def _sum(self, tensor: Tensor, *, wait: bool = True) -> Any:
        with self._ranks.collective(after_step=True):
            return dist.all_reduce(tensor, group=self._group, async_op=not wait)

    def _buffer(self, name: str, numbers: int) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.empty(numbers, dtype=self._wire, device=self._device)
        return self._buffers[name][:numbers]


def rows_are_less(tokens: int, width: int, vocabulary_size: int) -> bool:
    """Return whether an embedding's gradient is less to send as a row for each token than as a matrix.

    A sum over R ranks sends each number 2 (R - 1) / R times, and a row goes to all others: (R - 1) / R times.

    Args:
        tokens: Of the windows of all ranks, M.
        width: E.
        vocabulary_size: V.
    """
    return tokens * (width + 2) < 2 * vocabulary_size * width
