"""Kernels of our own for a CPU, in C++ (kernels.cpp): compiled at their first use, and kept in a cache.

They need a C++ compiler at their first use, and a few functions that torch exports for extensions. Where
either is missing, torch's own operations compute the same, more slowly; `unavailable_reason` says why.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ptb_lm.torch_backend.native import library

TYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
WIDTH_MULTIPLE = 32  # bfloat16 numbers that a matrix unit takes from a row at once


class Kernels:
    """The compiled kernels, for tensors on a CPU.

    Shapes: T = time steps, B = batch, P = steps of all samples, H = hidden units, G = 4 H, N = tokens, V =
    vocabulary; sequences are packed as ptb_lm.torch_backend.lstm_fused describes.

    Args:
        kernels: The shared library.

    Attributes:
        lanes: Number of float32 values in a vector of the processor that it was compiled for, at most 16.
        recurrent: Types that the kernels of the LSTM and the Mogrifier take.
    """

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self._library = kernels
        self.lanes: int = kernels.lanes()
        self.recurrent = {
            dtype for dtype, name in TYPE_NAMES.items() if library.find_kernel(kernels, "supported", name)()
        }

    def share_float_environment(self) -> None:
        """Give this thread's rounding and flushing of denormal numbers to the threads that share its work."""
        self._library.share_float_environment(ctypes.c_int64(torch.get_num_threads()))

    def state_width(self, hidden: int, dtype: torch.dtype) -> int:
        """Return the width of the rows of h in `lstm_forward`; the columns beyond H must be zero."""
        return round_up(hidden, WIDTH_MULTIPLE) if dtype == torch.bfloat16 else hidden

    def lstm_forward(
        self,
        gates_PG: Tensor,
        bias_G: Tensor,
        kernel_HG: Tensor,
        h: Tensor,
        c: Tensor,
        batch_sizes: Sequence[int],
    ) -> None:
        """Run a layer's recurrence.

        Args:
            gates_PG: The gates. In: x @ kernel. Out: the activations.
            bias_G: The bias.
            kernel_HG: The recurrent kernel.
            h: [B + P, H], a part of a matrix whose rows are as wide as `state_width` says, with zeros beyond
                H. In: the first B rows are h_0. Out: the others are each step's h.
            c: [B + P, H] in float32. In: the first B rows are c_0. Out: the others are each step's c.
            batch_sizes: Number of samples that have a step, for each of T.
        """
        hidden, dtype = kernel_HG.shape[0], gates_PG.dtype
        steps, samples, width = sum(batch_sizes), batch_sizes[0], self.state_width(hidden, dtype)
        check(gates_PG, dtype, steps, 4 * hidden)
        check(bias_G, dtype, 4 * hidden)
        check(kernel_HG, dtype, hidden, 4 * hidden)
        check_strided(h, dtype, samples + steps, hidden, width)
        check(c, torch.float32, samples + steps, hidden)
        packed_kernel = kernel_HG.new_empty(round_up(hidden, self.lanes) * 4 * width)
        self.call(
            "lstm_forward",
            dtype,
            *(len(batch_sizes), list_integers(batch_sizes), hidden, width),
            *(gates_PG, bias_G, kernel_HG, packed_kernel, h, c),
        )

    def lstm_backward(
        self,
        gates_PG: Tensor,
        c: Tensor,
        d_output_PH: Tensor,
        kernel_HG: Tensor,
        d_c_BH: Tensor,
        batch_sizes: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients with respect to the gates before their nonlinearities, and h_0 in float32.

        They are [P, G] and [B, H].

        Args:
            gates_PG: The gates' activations, as `lstm_forward` left them.
            c: [B + P, H] in float32, as `lstm_forward` left it.
            d_output_PH: The gradient with respect to the outputs.
            kernel_HG: The recurrent kernel.
            d_c_BH: Float32. In: dL/dc_T, without the part through the outputs. Out: dL/dc_0.
            batch_sizes: Number of samples that have a step, for each of T.
        """
        hidden, dtype = kernel_HG.shape[0], gates_PG.dtype
        steps, samples = sum(batch_sizes), batch_sizes[0]
        check(gates_PG, dtype, steps, 4 * hidden)
        check(kernel_HG, dtype, hidden, 4 * hidden)
        check(c, torch.float32, samples + steps, hidden)
        check(d_c_BH, torch.float32, samples, hidden)
        check(d_output_PH, dtype, steps, hidden)
        width = round_up(hidden, 2 * self.lanes)  # of whole blocks
        packed_kernel = kernel_HG.new_empty(width * 4 * hidden)
        d_gates_PG = torch.empty_like(gates_PG)
        d_h = torch.zeros(samples, width, dtype=torch.float32, device="cpu")
        self.call(
            "lstm_backward",
            dtype,
            *(len(batch_sizes), list_integers(batch_sizes), hidden, gates_PG, c),
            *(d_output_PH, kernel_HG, packed_kernel, d_gates_PG, d_h, d_c_BH),
        )
        return d_gates_PG, d_h[:, :hidden]

    def cross_entropy(self, logits_NV: Tensor, targets_N: Tensor, *, gradient: bool) -> Tensor:
        """Return the negative log likelihood of each target [N], in nats and float32.

        Args:
            logits_NV: The logits. Out, with `gradient`: d(sum of the negative log likelihoods) / d(logits).
            targets_N: Word ids.
            gradient: True to replace the logits by their gradient.

        Raises:
            IndexError: A target is no word.
        """
        tokens, words = logits_NV.shape
        check(logits_NV, logits_NV.dtype, tokens, words)
        check(targets_N, torch.int64, tokens)
        if tokens and not (targets_N.min() >= 0 and targets_N.max() < words):
            raise IndexError(f"a target is not one of {words} words")
        nll_N = torch.empty(tokens, dtype=torch.float32, device="cpu")
        self.call(
            "cross_entropy", logits_NV.dtype, *logits_NV.shape, logits_NV, targets_N, nll_N, int(gradient)
        )
        return nll_N

    def multiply(self, a_MK: Tensor, b_KN: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a @ b, by OpenBLAS, in `out` if it is given; autograd does not record it.

        `can_multiply` must be true of all three.

        Args:
            a_MK: The left factor.
            b_KN: The right factor.
            out: Matrix that gets the product; it shares no memory with the factors.
        """
        if out is None:
            out = torch.empty(len(a_MK), b_KN.shape[1], dtype=torch.float32, device="cpu")
        if out.shape != (len(a_MK), b_KN.shape[1]) or a_MK.shape[1] != len(b_KN):
            raise ValueError(
                f"a product of {tuple(a_MK.shape)} and {tuple(b_KN.shape)} in {tuple(out.shape)}"
            )
        a, b, c = (a_MK, b_KN, out) if _is_plain(out) else (b_KN.T, a_MK.T, out.T)
        factors = [argument for factor in (a, b) for argument in _describe_layout(factor)]
        self.call(
            "multiply",
            torch.float32,
            *(ctypes.c_void_p(library.find_sgemm()), *c.shape, a.shape[1], *factors, c, c.stride(0)),
        )
        return out

    def sum_of_squares(self, values: Tensor) -> float:
        """Return the sum of squares of a tensor's numbers, summed in float64 over sums of float32."""
        values = values if _is_dense(values) else values.contiguous()
        return self.call("sum_of_squares", values.dtype, values.numel(), values)

    def mask(self, out: Tensor, random: Tensor, largest_kept: int, factor: float) -> None:
        """Set each number of `out` to `factor`, or to 0 where its 16-bit `random` is above `largest_kept`."""
        check(out, out.dtype, *out.shape)
        check(random, torch.uint16, *out.shape)
        self.call("mask", out.dtype, out.numel(), random, largest_kept, ctypes.c_float(factor), out)

    def update(
        self, master: Tensor, gradient: Tensor, weight: Tensor, scale: float, decay: float = 0.0
    ) -> None:
        """Add scale * gradient + decay * master to `master`, in float32, and copy the sum to `weight`.

        `weight` may be `master`. All three lie alike in memory, as a matrix or as its transpose.
        """
        for tensor, dtype in ((master, torch.float32), (weight, gradient.dtype)):
            has_layout = (tensor.dtype, tensor.shape, tensor.stride()) == (
                dtype,
                gradient.shape,
                gradient.stride(),
            )
            if not has_layout or not _is_dense(tensor):
                raise ValueError("a weight and its gradient do not lie alike")
        factors = ctypes.c_float(scale), ctypes.c_float(decay)
        self.call("update", gradient.dtype, master.numel(), master, gradient, weight, *factors)

    def call(self, function: str, dtype: torch.dtype, *arguments: Any) -> Any:
        """Call a kernel, and return what it returns.

        Args:
            function: The kernel's name in kernels.cpp.
            dtype: The type that it is compiled for.
            arguments: Arguments of the kernel but for the last, the number of threads; tensors stand for
                their numbers.
        """
        # Integers are as wide as pointers here: the kernels take int64_t.
        c_arguments = [_to_c(argument) for argument in (*arguments, torch.get_num_threads())]
        kernel = library.find_kernel(self._library, function, TYPE_NAMES[dtype])
        if not torch.autograd.profiler._is_profiler_enabled:
            return kernel(*c_arguments)
        with torch.autograd.profiler.record_function(f"ptb_lm::{function}"):
            return kernel(*c_arguments)


def can_multiply(*matrices: Tensor) -> bool:
    """Return whether `Kernels.multiply` takes such matrices: float32, with rows or columns in one piece."""
    return library.find_sgemm() is not None and all(
        matrix.dtype == torch.float32
        and matrix.device.type == "cpu"
        and matrix.ndim == 2
        and matrix.numel() > 0
        and not matrix.is_neg()
        and max(*matrix.shape, *matrix.stride()) < 2**31  # cblas takes integers of 32 bits
        and (_is_plain(matrix) or _is_plain(matrix.T))
        for matrix in matrices
    )


def _is_plain(matrix: Tensor) -> bool:
    return matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1]


def _describe_layout(matrix: Tensor) -> tuple[int, Tensor, int]:
    """Return whether a matrix lies transposed, its numbers, and how far apart its rows or columns are."""
    plain = _is_plain(matrix)
    return int(not plain), matrix, matrix.stride(0 if plain else 1)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is no less than a number."""
    return -(-number // multiple) * multiple


def list_integers(values: Sequence[int]) -> Any:
    """Return integers as a kernel takes them."""
    return (ctypes.c_int64 * len(values))(*values)


def _to_c(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int64(argument) if isinstance(argument, int) else argument


def check(tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Raise ValueError unless a tensor is contiguous, on the CPU, and of this type and shape.

    Otherwise a kernel would read or write outside of it.
    """
    if (
        tensor.device.type != "cpu"
        or not tensor.is_contiguous()
        or (tensor.dtype, tensor.shape) != (dtype, shape)
    ):
        raise ValueError(f"a tensor of {tensor.dtype} {tuple(tensor.shape)} where {dtype} {shape} is needed")


def check_strided(tensor: Tensor, dtype: torch.dtype, rows: int, width: int, stride: int) -> None:
    """Raise ValueError unless a tensor is a matrix [rows, width] of this type on the CPU.

    Its rows must begin `stride` numbers apart: it may be a part of a wider matrix.
    """
    found = (tensor.device.type, tensor.dtype, tuple(tensor.shape), tensor.stride())
    if found != ("cpu", dtype, (rows, width), (stride or 1, 1)):
        raise ValueError(f"a tensor {found} where {dtype} {(rows, width)} in rows of {stride} is needed")


def _is_dense(tensor: Tensor) -> bool:
    # A transposed matrix, too, has each number once, and nothing between them.
    return tensor.is_contiguous() or (tensor.ndim == 2 and tensor.T.is_contiguous())


@functools.cache
def load() -> Kernels:
    """Return the kernels; compile them first if needed.

    Raises:
        MissingError: This machine has no kernels.
    """
    return Kernels(library.load_kernels())


@functools.cache
def unavailable_reason() -> str | None:
    """Return why there are no kernels; None if there are."""
    try:
        load()
    except library.MissingError as error:
        return str(error)
    return None
