"""The exchange of gradients between ranks in a training step.

Each rank moves its weights as one rank would. The softmax's gradient is ready before the backward pass
through the layers, and is on its way meanwhile. The layers' gradients follow in one piece. The embedding's
gradient goes as it is, a row for each word of the window, unless the whole matrix is smaller; with it go the
words and the loss.

Shapes: N = tokens of this rank's window, E = embedding width, V = vocabulary, R = ranks, M = tokens of all
ranks' windows, or V.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ptb_lm.torch_backend.precision import Precision

if TYPE_CHECKING:
    # Not every build of torch has the library that this module imports.
    from ptb_lm.torch_backend.ranks import TorchRanks


class WindowGradients(NamedTuple):
    """The losses and gradients of a rank's window, or of all ranks' windows together.

    The softmax's gradient is in its `gradient`.
    """

    nll: Tensor  # [N], or [R] in float64, whose sum is the loss
    ids: Tensor  # word ids [N] or [M]
    # Gradients [N, E] or [M, E] with respect to the embedding of each id, as the bottom layer's input.
    d_embedded: Tensor
    layers: Sequence[Tensor]  # gradients with respect to the stack's parameters


class GradientExchange:
    """The sums of gradients over ranks.

    Args:
        ranks: Processes that exchange gradients.
        softmax_gradient: Gradient of the softmax, of V columns, which each step writes.
        precision: Precision of the model. Numbers are sent and summed in the type of its master weights,
            unless the ranks have another reduce precision.
    """

    def __init__(self, ranks: "TorchRanks", softmax_gradient: Tensor, precision: Precision) -> None:
        self.size = ranks.size
        self._ranks, self._vocabulary_size = ranks, softmax_gradient.shape[1]
        self._reduce_dtype = torch.bfloat16 if ranks.reduce_precision == "bf16" else precision.master
        self._device = softmax_gradient.device
        ranks.step_group(self._device)  # all make it here
        # As it lies in memory; and what is sent: the same tensor, or a copy of another type.
        self._softmax = softmax_gradient if softmax_gradient.is_contiguous() else softmax_gradient.T
        self._softmax_sent = self._softmax.to(self._reduce_dtype)
        self._exchanged = set[int]()  # numbers of words of windows whose gradients were exchanged
        self._buffers: dict[str, Tensor] = {}

    def environment(self) -> dict[str, Any]:
        """Return the number of processes, and the type in which their gradients are sent and summed."""
        return {"processes": self.size, "reduce_precision": str(self._reduce_dtype).removeprefix("torch.")}

    def start_reduce(self, words: int) -> None:
        """Start to sum the softmax's gradient over the ranks; `wait_and_merge` writes the sum back.

        For the first window of a length this does nothing: `wait_and_merge` then waits for all ranks and
        starts the sum.

        Args:
            words: N of the window.
        """
        if words in self._exchanged:
            self._softmax_sent.copy_(self._softmax)
            self._ranks.pending = self._sum(self._softmax_sent, wait=False)

    def wait_and_merge(self, window: WindowGradients) -> WindowGradients:
        """Wait for the sum that was started, and return the gradients of all ranks' windows together."""
        if len(window.ids) not in self._exchanged:  # one of the ranks may compile much longer than another
            self._ranks.barrier()
            self._exchanged.add(len(window.ids))
            self.start_reduce(len(window.ids))
        nll = window.nll.sum(dtype=torch.float64)[None]
        if are_rows_smaller(self.size * len(window.ids), window.d_embedded.shape[1], self._vocabulary_size):
            nll, ids, d_embedded = self._gather(nll, window.ids, self._narrow(window.d_embedded))
            d_embedded = d_embedded.to(window.d_embedded.dtype)
        else:
            (nll,) = self._gather(nll)
            ids = torch.arange(self._vocabulary_size, device=window.ids.device)
            d_embedded = self._sum_embedding_gradient(window)
        gradients = self._sum_in_one_piece(window.layers)
        with self._ranks.collective(after_step=True):
            self._ranks.pending.wait()
        self._ranks.pending = None  # a step that starts no sum must not take this one
        self._softmax.copy_(self._softmax_sent)
        return WindowGradients(nll, ids, d_embedded, gradients)

    def broadcast_norm(self, norm: Tensor) -> Tensor:
        """Return the first rank's norm, so that all clip alike, and no rank skips a step or diverges alone.

        Ranks with the same gradients may find norms that differ in the last bits: a GPU adds in any order.
        """
        with self._ranks.collective(after_step=True):
            dist.broadcast(norm, src=0, group=self._ranks.step_group(self._device))
        return norm

    def _narrow(self, rows_NE: Tensor) -> Tensor:
        """Return rows in the narrower of their own type and the reduce precision: they are not summed."""
        return (
            rows_NE
            if rows_NE.dtype.itemsize <= self._reduce_dtype.itemsize
            else rows_NE.to(self._reduce_dtype)
        )

    def _sum_embedding_gradient(self, window: WindowGradients) -> Tensor:
        """Return the embedding's whole gradient, summed over the ranks, [V, E].

        It keeps the precision of the sum, which may be more than that of its terms. The sum over a word's
        occurrences on one rank is rounded to the reduce precision once.
        """
        d_embedded = window.d_embedded
        kept, width = torch.promote_types(self._reduce_dtype, d_embedded.dtype), d_embedded.shape[1]
        sums_VE = self._buffer("embedding", self._vocabulary_size * width).view(-1, width)
        exact = torch.promote_types(kept, torch.float32)
        if exact == self._reduce_dtype:
            sums_VE.zero_().index_add_(0, window.ids, d_embedded.to(exact))
        else:
            own_VE = sums_VE.new_zeros(sums_VE.shape, dtype=exact)
            sums_VE.copy_(own_VE.index_add_(0, window.ids, d_embedded.to(exact)))
        self._sum(sums_VE)
        return sums_VE.to(kept)

    def _sum_in_one_piece(self, gradients: Sequence[Tensor]) -> list[Tensor]:
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

    def _gather(self, *tensors: Tensor) -> list[Tensor]:
        """Return tensors with those of the other ranks behind each other, in the order of ranks.

        They are sent as the bytes of one message; the longer numbers come first, so that all are aligned.
        """
        pieces = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        sent = torch.cat(pieces)
        received = sent.new_empty(self.size, len(sent))
        with self._ranks.collective(after_step=True):
            dist.all_gather(list(received.unbind()), sent, group=self._ranks.step_group(self._device))
        parts = received.split([len(piece) for piece in pieces], dim=1)
        return [
            part.contiguous().view(-1).view(tensor.dtype).view(-1, *tensor.shape[1:])
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def _sum(self, tensor: Tensor, *, wait: bool = True) -> Any:
        with self._ranks.collective(after_step=True):
            return dist.all_reduce(tensor, group=self._ranks.step_group(self._device), async_op=not wait)

    def _buffer(self, name: str, numbers: int) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = self._softmax.new_empty(numbers, dtype=self._reduce_dtype)
        return self._buffers[name][:numbers]


def are_rows_smaller(tokens: int, width: int, vocabulary_size: int) -> bool:
    """Return whether an embedding's gradient has fewer bytes to send as rows for the tokens than as a matrix.

    A sum over R ranks sends each number 2 (R - 1) / R times, and a row goes to all others: (R - 1) / R times.

    Args:
        tokens: Number of tokens in the windows of all ranks, M.
        width: E.
        vocabulary_size: V.
    """
    return tokens * (width + 2) < 2 * vocabulary_size * width
