"""The choice of kernels and of the library for float32 products on a CPU, made once per process.

The choice depends on the machine alone, not on a measurement, so that a run computes alike wherever it is
started again. A resumed run keeps its own.
"""

import contextlib
import functools
import os
import platform
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend import native
from ptb_lm.torch_backend.native import library
from ptb_lm.torch_backend.settings import hold_settings

KERNELS = ("native", "torch")
FLOAT32_LIBRARIES = ("MKL", "oneDNN", "OpenBLAS")
KERNELS_VARIABLE = "PTB_LM_KERNELS"
MOST_ADDED = 64  # rows that `round_rows` adds to a product


@dataclass(frozen=True)
class Implementation:
    """How a CPU computes.

    Attributes:
        kernels: Kernels of ptb_lm.torch_backend.native ("native"), or torch's operations ("torch").
        float32_library: Library of float32 products: "MKL", which stands for torch's default, "oneDNN" or
            "OpenBLAS".
    """

    kernels: str
    float32_library: str


_process_choice: Implementation | None = None  # by `set_implementation`
_run_choice: Implementation | None = None  # by `restore_implementation`, from the state of a resumed run
_pads_rows: ContextVar[bool] = ContextVar("_pads_rows", default=False)  # in `use_few_shapes`


def get_implementation() -> Implementation:
    """Return how this process computes on a CPU: by the run's choice, the process's choice or the default."""
    return _run_choice or _process_choice or default_implementation()


def set_implementation(choice: Implementation) -> None:
    """Compute by this choice from now on, as far as this machine can."""
    global _process_choice, _run_choice
    _process_choice, _run_choice = _limit_to_machine(choice), None


def export_implementation(ranks: Ranks = SINGLE_PROCESS) -> NDArray[np.uint8]:
    """Return the choice as a state holds it, [2]; of R ranks, [R, 2].

    The numbers are indices into KERNELS and FLOAT32_LIBRARIES.
    """
    choice = get_implementation()
    indices = np.array(
        [KERNELS.index(choice.kernels), FLOAT32_LIBRARIES.index(choice.float32_library)], np.uint8
    )
    return indices if ranks.size == 1 else np.stack(ranks.gather(indices))


def restore_implementation(indices: NDArray[Any], ranks: Ranks = SINGLE_PROCESS) -> None:
    """Compute by a run's saved choice, as far as this machine can, until `reset_implementation` is called.

    It is that of this rank if as many saved it, else the first rank's.

    Raises:
        UserError: The array is no such choice.
    """
    global _run_choice
    try:
        by_rank = np.atleast_2d(indices)
        kernels, float32_library = by_rank[ranks.rank if len(by_rank) == ranks.size else 0]
        # The variable has priority over the run's choice.
        name = dict(enumerate(KERNELS))[kernels] if not os.environ.get(KERNELS_VARIABLE) else "native"
        _run_choice = _limit_to_machine(
            Implementation(name, dict(enumerate(FLOAT32_LIBRARIES))[float32_library])
        )
    except (ValueError, TypeError, LookupError):
        raise UserError("the tensor 'torch.cpu' does not name a way to compute on a CPU") from None


def reset_implementation() -> None:
    """Forget the choice of a resumed run: the next run in this process is another one."""
    global _run_choice
    _run_choice = None


@functools.cache
def default_implementation() -> Implementation:
    """Return this machine's choice.

    On Intel's processors MKL is faster than oneDNN. It is not made for others: oneDNN is faster there with
    AVX-512, where torch offers it, and OpenBLAS without (docs/performance.md).
    """
    float32_library = "MKL" if is_intel() else "oneDNN" if is_onednn_exact() else "OpenBLAS"
    return _limit_to_machine(Implementation(kernels="native", float32_library=float32_library))


def _limit_to_machine(choice: Implementation) -> Implementation:
    """Return the choice, with torch's kernels or MKL in place of what the user or the machine does not allow.

    The kernels are compiled only if they are chosen.
    """
    native_ones = (
        not _is_switched_off() and choice.kernels == "native" and native.unavailable_reason() is None
    )
    possible: dict[str, Callable[[], bool]] = {
        "MKL": lambda: True,
        "oneDNN": is_onednn_exact,
        "OpenBLAS": lambda: native_ones and library.find_sgemm() is not None,  # the kernels call it
    }
    return Implementation(
        kernels="native" if native_ones else "torch",
        float32_library=choice.float32_library if possible[choice.float32_library]() else "MKL",
    )


def kernels_unavailable_reason() -> str | None:
    """Return why there are no kernels of our own; None if there are, or if the user turned them off."""
    return None if _is_switched_off() else native.unavailable_reason()


def _is_switched_off() -> bool:
    """Return whether the user turned off our own kernels.

    Raises:
        UserError: The variable has another value than KERNELS.
    """
    name = os.environ.get(KERNELS_VARIABLE) or "native"
    if name not in KERNELS:
        raise UserError(f"{KERNELS_VARIABLE}={name}: choose from {', '.join(KERNELS)}")
    return name == "torch"


@functools.cache
def is_intel() -> bool:
    """Return whether the processor is Intel's; True if unknown, so that torch's default stays."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    text = host.read_cpuinfo()
    return "GenuineIntel" in text or "vendor_id" not in text


@functools.cache
def is_onednn_exact() -> bool:
    """Return whether `use_onednn` makes oneDNN compute float32 products, and in float32.

    torch has no setting that names the library. One that allows oneDNN to round factors to bfloat16 makes
    torch take it; a CPU without matrix units for bfloat16 then does not round, and one with them does. On one
    without AVX-512 torch takes MKL in spite of that setting.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # what torch asks before it takes oneDNN
        return False
    stream = torch.Generator("cpu").manual_seed(1)
    options: dict[str, Any] = {"generator": stream, "device": "cpu", "dtype": torch.float32}
    for m, k, n in ((96, 96, 96), (20, 650, 2600), (700, 650, 1000)):
        a, b = (torch.randn(shape, **options) for shape in ((m, k), (k, n)))
        with use_onednn():
            found = torch.mm(a, b)
        exact = a.double() @ b.double()
        if not (found - exact).abs().max() < 1e-5 * exact.abs().max():
            return False
    return True


def use_float32_library(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """Return a context in which products of such a tensor go to the library that was chosen for float32."""
    return use_onednn() if _takes_onednn_in_float32(x) else contextlib.nullcontext()


def _takes_onednn_in_float32(x: Tensor) -> bool:
    is_ours = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()
    return is_ours and get_implementation().float32_library == "oneDNN"


@contextlib.contextmanager
def use_few_shapes() -> Iterator[None]:
    """Return a context, of this thread, in which `pad_rows` pads: for scoring, not for training's windows."""
    token = _pads_rows.set(True)
    try:
        yield
    finally:
        _pads_rows.reset(token)


def pad_rows(x_MK: Tensor) -> Tensor:
    """Return a product's left factor with rows of zeros after its own, [`round_rows`, K], or as it is."""
    if torch.compiler.is_compiling() or not _pads_rows.get():
        return x_MK
    missing = round_rows(len(x_MK), x_MK) - len(x_MK)
    return functional.pad(x_MK, (0, 0, 0, missing)) if missing else x_MK


def round_rows(rows: int, like: Tensor) -> int:
    """Return the number of rows, an eighth more at most, that a product should have if it is oneDNN's.

    oneDNN makes code for each number of rows, and keeps that of many. Texts have almost any number of words.
    Here there are eight numbers between a power of two and the next, and from 512 on one in MOST_ADDED: with
    larger steps the large products of long texts take more memory than the code.

    Args:
        rows: Number of rows that are needed.
        like: Tensor of the type and the device of the product.
    """
    in_half = like.device.type == "cpu" and like.dtype.itemsize == 2 and has_onednn(like.dtype)
    if not in_half and not _takes_onednn_in_float32(like):
        return rows
    return native.round_up(rows, min(MOST_ADDED, 1 << max(0, rows.bit_length() - 4)))


def find_openblas_kernels(*matrices: Tensor) -> native.Kernels | None:
    """Return our kernels if OpenBLAS is to multiply these matrices.

    None if a gradient is needed: autograd does not see such a product.
    """
    if torch.compiler.is_compiling() or any(
        matrix.device.type != "cpu" or matrix.dtype != torch.float32 for matrix in matrices
    ):
        return None
    needs_gradient = torch.is_grad_enabled() and any(matrix.requires_grad for matrix in matrices)
    if (
        needs_gradient
        or get_implementation().float32_library != "OpenBLAS"
        or not native.can_multiply(*matrices)
    ):
        return None
    return native.load()


def use_onednn() -> contextlib.AbstractContextManager[None]:
    """Return a context in which torch gives float32 products to oneDNN."""
    return hold_settings({(torch.backends.mkldnn.matmul, "fp32_precision"): "bf16"})  # type: ignore[attr-defined]


def _name_float32_library() -> str:
    name = get_implementation().float32_library
    return name if name != "MKL" else name_torch_library(torch.float32)  # which may lack MKL


def facts() -> dict[str, str]:
    """Return the choice as records of runs have it, and why kernels of our own are missing, if they are."""
    float32_library = _name_float32_library()
    if float32_library == "OpenBLAS":  # whose version torch's does not tell
        float32_library += f" {metadata.version('scipy-openblas32')}"
    found = {"kernels": get_implementation().kernels, "float32_products": float32_library}
    reason = kernels_unavailable_reason() if found["kernels"] == "torch" else None
    return found | ({"no_kernels": reason} if reason else {})


def describe_implementation(dtype: torch.dtype) -> str:
    """Return the end of the line that names the engine: "products by MKL, native kernels"."""
    products_library = _name_float32_library() if dtype == torch.float32 else name_torch_library(dtype)
    kernels = get_implementation().kernels if dtype in native.TYPE_NAMES else "torch"
    return f"products by {products_library}, {kernels} kernels"


def name_torch_library(dtype: torch.dtype) -> str:
    """Return the library that torch itself multiplies with."""
    if dtype in (torch.float32, torch.float64):
        return "MKL" if torch.backends.mkl.is_available() else "BLAS"
    return "oneDNN" if has_onednn(dtype) else "ATen"


def has_onednn(dtype: torch.dtype) -> bool:
    """Return whether oneDNN computes torch's layers and half-precision products of a type."""
    if not torch.backends.mkldnn.is_available():  # nor are there the operators that tell
        return False
    ours = torch.ops.mkldnn
    supported: dict[torch.dtype, Callable[[], bool]] = {
        torch.float32: lambda: True,
        torch.bfloat16: ours._is_mkldnn_bf16_supported,
        torch.float16: ours._is_mkldnn_fp16_supported,
    }
    # It has no double precision.
    return dtype in supported and bool(supported[dtype]())


def bfloat16_products() -> str:
    """Return the name of the processor's instructions for bfloat16 products; "" if none are used.

    ONEDNN_MAX_CPU_ISA can keep oneDNN from them. Our kernels ask oneDNN; without them nobody can.
    """
    types = recurrence_types()
    if types and torch.bfloat16 not in types:
        return ""
    checks = {"_is_amx_tile_supported": "AMX", "_is_avx512_bf16_supported": "AVX512_BF16"}
    return next((name for check, name in checks.items() if getattr(torch.cpu, check, lambda: False)()), "")


def is_bfloat16_fast() -> bool:
    """Return whether products in bfloat16 are faster than in float32.

    Intel's processors since Sapphire Rapids have AMX for them, which some virtual machines hide. By
    AVX512_BF16 they have half of float32's rate (results/bench: precisions-xeon-without-amx-cpu), and AMD's
    have twice that rate. So has Intel's Cooper Lake by its maker's word; it lacks AVX512_FP16.
    """
    hides_amx = is_intel() and "avx512_fp16" in host.read_cpuinfo()
    products = bfloat16_products()
    return products == "AMX" or (products == "AVX512_BF16" and not hides_amx)


def has_bfloat16_lstm() -> bool:
    """Return whether torch.nn.LSTM runs in bfloat16 under torch.autocast, which always gives it to oneDNN."""
    return not torch.backends.mkldnn.is_available() or has_onednn(torch.bfloat16)


def find_kernels(*tensors: Tensor) -> native.Kernels | None:
    """Return our own kernels if they are chosen and take such tensors; those of the recurrence may not."""
    # This comes first: where a GPU computes, nothing is compiled for the CPU.
    if torch.compiler.is_compiling() or any(
        tensor.device.type != "cpu" or tensor.dtype not in native.TYPE_NAMES for tensor in tensors
    ):
        return None
    return native.load() if get_implementation().kernels == "native" else None


def find_recurrence_kernels(x: Tensor) -> native.Kernels | None:
    """Return our own kernels if they are chosen and run the recurrence of such an input."""
    found = find_kernels(x)
    # With AVX-512 their products are oneDNN's. Where torch may not use it, those of bfloat16 would end the
    # process.
    runs = found is not None and x.dtype in found.recurrent and torch.backends.mkldnn.enabled
    return found if runs else None


def recurrence_types() -> set[torch.dtype]:
    """Return the types in which our own kernels, if they are chosen, run a recurrence. This compiles them."""
    return {
        dtype
        for dtype in native.TYPE_NAMES
        if find_recurrence_kernels(torch.empty(0, dtype=dtype, device="cpu")) is not None
    }


def multiply(a_MK: Tensor, b_KN: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a @ b, in `out`, of its shape, if it is given; on a GPU the product is torch's own."""
    if (kernels := find_openblas_kernels(a_MK, b_KN, *([] if out is None else [out]))) is not None:
        return kernels.multiply(a_MK, b_KN, out)
    with use_float32_library(a_MK):
        return torch.mm(a_MK, b_KN) if out is None else torch.mm(a_MK, b_KN, out=out)


def multiply_transposed(a_KM: Tensor, b_KN: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a.T @ b, in `out` if it is given; `a` is usually the narrower one."""
    # If the first factor lies transposed, oneDNN takes two to three times as long in bfloat16, and up to half
    # as long again in float32, where to copy a wider factor may take longer than that.
    in_bfloat16 = a_KM.dtype == torch.bfloat16 and a_KM.device.type == "cpu"
    copied = in_bfloat16 or (a_KM.shape[1] <= b_KN.shape[1] and _takes_onednn_in_float32(a_KM))
    return multiply(a_KM.T.contiguous() if copied else a_KM.T, b_KN, out=out)
