"""The ends of the network by hand: softmax cross-entropy, the embedding's gradient, and the global norm.

Between them lies autograd. The two ends touch every word of the vocabulary: there, autograd's own tensors and
passes over memory (fresh logits, a separate log-softmax, dense embedding gradients) would cost as much as the
LSTM itself on a CPU.

Shapes: N = tokens of a window, H = hidden units, V = vocabulary, E = embedding width.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ptb_lm.model.backend import max_tokens_per_call
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.precision import Masters, Precision

# [3]: negative log likelihood, gradient norm, and float16's loss scale of the next step if this one was
# skipped, else 0; in float64, as their sums over a split must be.
Loss = Tensor


# The tensors in which a number of tokens is computed, in the compute precision: inputs [N, H + 1], logits_NV.
Buffers = tuple[Tensor, Tensor]

NORM_PIECE = 1024  # numbers that torch sums in float32 with a relative error below 1e-6


class SoftmaxLayer:
    """The projection onto the vocabulary with softmax and cross-entropy, over reused buffers.

    `losses` and `loss_and_gradients` share training's buffers and are for one thread. Any number of threads
    may call `losses_in_any_thread` and `log_probabilities`: each call borrows buffers that no other call has.

    The bias is the row after the kernel's, and the input has a column of ones there: the products compute
    the bias and its gradient on the way, and no pass over the logits is spent on either.

    Attributes:
        weight: The master weight, [H + 1, V]; more rows on a GPU, of zeros, which stay zeros. After it was
            set from outside, `masters` must be refreshed.
        gradient: Gradient of the last `loss_and_gradients`, in the shape of `weight` and the compute
            precision.
        masters: The master weight, with the copy that is computed with.

    Args:
        hidden_size: H.
        vocabulary_size: V.
        device: Device to compute on.
        precision: Types of the master weight and of its products.
        words_contiguous: True if a word's weights are contiguous in memory, as in an embedding [V, H]: with
            tied weights the kernel's transpose then is the embedding.
    """

    def __init__(
        self,
        hidden_size: int,
        vocabulary_size: int,
        *,
        device: torch.device,
        precision: Precision,
        words_contiguous: bool = False,
    ) -> None:
        self.hidden_size = hidden_size
        # A GPU's matrix units take eight numbers at a time, and rows that begin at a multiple of eight.
        multiple = 8 if device.type == "cuda" else 1
        rows = -(-(hidden_size + 1) // multiple) * multiple
        options: dict[str, Any] = {"device": device, "dtype": precision.compute}
        if words_contiguous:
            self._compute_weight = torch.zeros(vocabulary_size, rows, **options).T
        else:
            self._compute_weight = torch.zeros(rows, vocabulary_size, **options)
        self.masters = Masters([self._compute_weight], precision.master)
        self.weight = self.masters[self._compute_weight]
        self.gradient = torch.zeros_like(self._compute_weight)
        self._buffers: dict[int, Buffers] = {}
        self._free: dict[int, list[Buffers]] = {}  # by a GPU's stream, whose work is done in order

    @property
    def kernel(self) -> Tensor:
        """The master kernel, [H, V]."""
        return self.weight[: self.hidden_size]

    @property
    def bias(self) -> Tensor:
        """The master bias, [V]."""
        return self.weight[self.hidden_size]

    def losses(self, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
        """Return the negative log likelihood of each target [N], in nats."""
        return self._losses(self._logits(hidden_NH)[1], targets_N)

    def losses_in_any_thread(self, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
        """Return the same as `losses`; any thread may call it. The buffers are borrowed from a pool."""
        with self._borrow_buffers(len(hidden_NH)) as buffers:
            return self._losses(self._logits(hidden_NH, buffers)[1], targets_N)

    def _losses(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Return the negative log likelihoods [N] without gradients; the logits are used up."""
        if logits_NV.device.type != "cpu" or cpu.find_kernels(logits_NV) is not None:
            return self._cross_entropy(logits_NV, targets_N, gradient=False)
        # Not torch's log-softmax: on a CPU its sum over the words rounds away 1e-5 of a log-probability. The
        # largest logit is subtracted first: if it were 200, float32 would round away as much beside it.
        logits_NV = logits_NV.to(self.weight.dtype)
        logits_NV -= logits_NV.amax(1, keepdim=True)
        targets_N1 = logits_NV.gather(1, targets_N[:, None])
        return logits_NV.exp_().sum(1).log_() - targets_N1[:, 0]

    def log_probabilities(self, hidden_NH: Tensor) -> Tensor:
        """Return the log-probability of every word [N, V], in nats, in float64."""
        with self._borrow_buffers(len(hidden_NH)) as buffers:
            _, logits_NV = self._logits(hidden_NH, buffers)
            return torch.log_softmax(logits_NV, 1, dtype=torch.float64)

    def loss_and_gradients(
        self, hidden_NH: Tensor, targets_N: Tensor, scale: float, *, fraction: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (negative log likelihoods [N], gradient with respect to hidden_NH); set `gradient`.

        Args:
            hidden_NH: The top layer's output.
            targets_N: Target word ids.
            scale: Factor of the sum of the negative log likelihoods, whose gradients are computed.
            fraction: A power of two that multiplies the scale, [], on the device.
        """
        inputs, logits_NV = self._logits(hidden_NH)
        nll_N = self._cross_entropy(logits_NV, targets_N, gradient=True)
        # The scale goes into the narrow factor of each product rather than into the wide one.
        scaled = inputs * scale
        d_hidden_NH = cpu.multiply(logits_NV, self._compute_weight[: self.hidden_size].T).mul_(scale)
        if fraction is not None:  # by itself, because float16 would round the scale as a tensor
            scaled.mul_(fraction)
            d_hidden_NH.mul_(fraction)
        cpu.multiply_transposed(scaled, logits_NV, out=self.gradient)
        return nll_N, d_hidden_NH

    def _logits(self, hidden_NH: Tensor, buffers: Buffers | None = None) -> Buffers:
        tokens = len(hidden_NH)
        inputs, logits_NV = buffers or self._reuse_buffers(tokens)
        inputs[:tokens, : self.hidden_size] = hidden_NH
        # Borrowed buffers may have more rows, in which an earlier call has left something.
        cpu.multiply(inputs, self._compute_weight, out=logits_NV)
        return inputs[:tokens], logits_NV[:tokens]

    def _cross_entropy(self, logits_NV: Tensor, targets_N: Tensor, *, gradient: bool) -> Tensor:
        """Return the negative log likelihoods [N]; if `gradient`, replace the logits by their gradient."""
        if (kernels := cpu.find_kernels(logits_NV)) is not None:
            return kernels.cross_entropy(logits_NV, targets_N, gradient=gradient)
        if self.weight.dtype == self._compute_weight.dtype:
            # In place: the softmax is bound by how much memory it passes over.
            log_p_NV = torch.log_softmax(logits_NV, 1, out=logits_NV)
        else:
            log_p_NV = torch.log_softmax(logits_NV, 1, dtype=self.weight.dtype)
        nll_N = log_p_NV.gather(1, targets_N[:, None])[:, 0].neg_()
        if gradient:
            torch.exp(log_p_NV, out=logits_NV)
            # Not the probability less 1: it is next to 1 where the model is sure, and rounded there.
            at_targets_N = torch.expm1(-nll_N).to(logits_NV.dtype)
            logits_NV.scatter_(1, targets_N[:, None], at_targets_N[:, None])
        return nll_N

    def _reuse_buffers(self, tokens: int) -> Buffers:
        """Return the first rows of the smallest buffers that have enough; none is ever given up.

        Logits are the largest tensors of a step; fresh ones would be page-faulted in at every step. A CUDA
        graph goes on with those that it was captured with. Buffers that do not suffice are followed by ones
        that are larger by a part: windows of many lengths must not leave some for each length.
        """
        fitting = [rows for rows in self._buffers if rows >= tokens]
        if not fitting:
            rows = max(tokens, *(rows * 5 // 4 for rows in self._buffers), 0)
            self._buffers[rows] = self._new_buffers(rows)
            fitting = [rows]
        inputs, logits_NV = self._buffers[min(fitting)]
        return inputs[:tokens], logits_NV[:tokens]

    @contextlib.contextmanager
    def _borrow_buffers(self, tokens: int) -> Iterator[Buffers]:
        """Return a context with buffers that no other call has: new ones, or those of a call that ended.

        They may have more rows than there are tokens: see `cpu.round_rows`.
        """
        device = self._compute_weight.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        free = self._free.setdefault(stream, [])
        try:
            largest = free.pop()
        except IndexError:
            largest = self._new_buffers(0)
        most = max(tokens, max_tokens_per_call(self._compute_weight.shape[1], self.hidden_size))
        rows = min(cpu.round_rows(tokens, self._compute_weight), most)
        if len(largest[0]) < rows:
            # Sizes are powers of two, at most what a call may need, and the old buffers are freed first: many
            # sizes that differ a little would leave holes in memory.
            largest = self._new_buffers(0)
            largest = self._new_buffers(min(1 << (rows - 1).bit_length(), most))
        try:
            yield largest[0][:rows], largest[1][:rows]
        finally:
            free.append(largest)

    def _new_buffers(self, tokens: int) -> Buffers:
        rows, width = self._compute_weight.shape
        inputs = self._compute_weight.new_zeros(tokens, rows)
        inputs[:, self.hidden_size] = 1
        return inputs, self._compute_weight.new_empty(tokens, width)


def pack_loss(nll_N: Tensor, norm: Tensor, new_loss_scale: Tensor) -> Loss:
    """Return a window's loss.

    Args:
        nll_N: Negative log likelihood of each target.
        norm: Norm of the gradient, [].
        new_loss_scale: Loss scale of the next step if this one was skipped, else 0, [].
    """
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    return torch.stack([nll_N.sum(dtype=torch.float64), norm, new_loss_scale])


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together, [], in float64.

    Torch's own norm on a CPU is off by up to 4e-4 over some million float32 numbers, or over 100,000 that do
    not lie side by side, and each clipped step with it. So pieces of memory are summed in float32 at least,
    and their norms in float64.
    """
    if (kernels := cpu.find_kernels(*gradients)) is not None:
        total = sum(map(kernels.sum_of_squares, gradients))
        return torch.tensor(math.sqrt(total), device="cpu", dtype=torch.float64)
    norms: list[Tensor] = []  # not list[Tensor](), which torch.compile cannot trace
    for gradient in gradients:
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        # As it lies in memory: that of a tied softmax is transposed.
        flat = (gradient if gradient.is_contiguous() else gradient.movedim(-1, 0)).reshape(-1)
        whole = len(flat) - len(flat) % NORM_PIECE
        for pieces in (flat[:whole].view(-1, NORM_PIECE), flat[None, whole:]):
            if pieces.numel():
                norms.append(torch.linalg.vector_norm(pieces, dim=-1, dtype=dtype))
    return torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64)


def sum_by_word(gradient_NE: Tensor, ids_N: Tensor) -> Tensor:
    """Return the rows of an embedding's gradient [N, E], with zero rows where words repeat.

    The global norm needs the sum over the occurrences of each word. Shapes are static (no torch.unique), so
    that no step waits for the device to learn how many words differ.
    """
    return torch.zeros_like(gradient_NE).index_add_(0, _row_of_word(ids_N), gradient_NE)


def add_by_word(sums_VE: Tensor, ids_N: Tensor, gradient_NE: Tensor) -> None:
    """Add an embedding's gradient [N, E] to the rows of its words, in float32 at least; in place.

    In half precision many small terms added one by one would be lost in a sum that is rounded after each.
    """
    if sums_VE.dtype.itemsize > 2:
        sums_VE.index_add_(0, ids_N, gradient_NE)
        return
    row_N, gradient_NE = _row_of_word(ids_N), gradient_NE.float()
    sums_NE = torch.zeros_like(gradient_NE).index_add_(0, row_N, gradient_NE)
    # Every occurrence of a word brings the same row: which one is copied last makes no difference.
    rows_NE = sums_VE[ids_N].float() + sums_NE[row_N]
    sums_VE.index_copy_(0, ids_N, rows_NE.to(sums_VE.dtype))


def _row_of_word(ids_N: Tensor) -> Tensor:
    """Return a row for each word, the same for each of its occurrences, from 0 on."""
    sorted_ids, order = ids_N.sort()
    group_N = torch.zeros_like(ids_N)
    group_N[1:] = (sorted_ids[1:] != sorted_ids[:-1]).cumsum(0)
    row_N = torch.empty_like(group_N)
    row_N[order] = group_N
    return row_N
