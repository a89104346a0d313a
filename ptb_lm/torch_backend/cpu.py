"""The choice of kernels and of the library for float32 products on a CPU, made once per process.

The choice depends on the machine alone, not on a measurement, so that a run computes alike wherever it is
started again. A resumed run keeps its own.
"""

import contextlib
import dataclasses
import functools
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.torch_backend import native
from ptb_lm.torch_backend.native import openblas
from ptb_lm.torch_backend.settings import held

KERNELS = ("native", "torch")
PRODUCTS = ("MKL", "oneDNN", "OpenBLAS")
VARIABLE = "PTB_LM_KERNELS"


@dataclass(frozen=True)
class Implementation:
    """How a CPU computes.

    Attributes:
        kernels: "native": those of ptb_lm.torch_backend.native; "torch": torch's operations.
        products: The library of float32 products: "MKL", which stands for torch's default, "oneDNN" or
            "OpenBLAS".
    """

    kernels: str
    products: str


_asked: Implementation | None = None  # by `use`
_restored: Implementation | None = None  # of the run that is resumed


def chosen() -> Implementation:
    """Return how this process computes on a CPU: the machine's default, unless `use` or a run set another."""
    return _restored or _asked or default()


def use(choice: Implementation) -> None:
    """Use this choice from now on, as far as this machine can."""
    global _asked, _restored
    _asked, _restored = _possible(choice), None


@contextlib.contextmanager
def using(**changes: str) -> Iterator[Implementation]:
    """Return a context that computes in another way: `using(kernels="torch")`."""
    global _asked, _restored
    before = _asked, _restored
    use(dataclasses.replace(chosen(), **changes))
    try:
        yield chosen()
    finally:
        _asked, _restored = before


def saved() -> NDArray[np.uint8]:
    """Return the choice as a run's state holds it: places in KERNELS and PRODUCTS."""
    choice = chosen()
    return np.array([KERNELS.index(choice.kernels), PRODUCTS.index(choice.products)], np.uint8)


def restore(places: NDArray[Any]) -> None:
    """Use the saved choice of a run from now on, as far as this machine can, until `forget` is called.

    Raises:
        UserError: It says nothing of the kind.
    """
    global _restored
    try:
        kernels, products = (int(place) for place in places)
        # The variable has priority over the run's choice.
        wanted = KERNELS[kernels] if not os.environ.get(VARIABLE) else "native"
        _restored = _possible(Implementation(wanted, PRODUCTS[products]))
    except (ValueError, TypeError, IndexError):
        raise UserError("the tensor 'torch.cpu' does not name a way to compute on a CPU") from None


def forget() -> None:
    """Forget the choice of the run that was resumed: the next run in this process is another one."""
    global _restored
    _restored = None


@functools.cache
def default() -> Implementation:
    """Return this machine's choice.

    On Intel's processors MKL is faster than oneDNN. It is not made for others: oneDNN is faster there with
    AVX-512, where torch offers it, and OpenBLAS without (docs/performance.md).
    """
    products = "MKL" if is_intel() else "oneDNN" if onednn_is_exact() else "OpenBLAS"
    return _possible(Implementation(kernels="native", products=products))


def _possible(choice: Implementation) -> Implementation:
    """Return the choice as far as the user and this machine allow it. Compile no kernels but chosen ones."""
    native_ones = not _switched_off() and choice.kernels == "native" and native.trouble() is None
    possible: dict[str, Callable[[], bool]] = {
        "MKL": lambda: True,
        "oneDNN": onednn_is_exact,
        "OpenBLAS": lambda: native_ones and openblas.sgemm() is not None,  # the kernels call it
    }
    return Implementation(
        kernels="native" if native_ones else "torch",
        products=choice.products if possible[choice.products]() else "MKL",
    )


def trouble() -> str | None:
    """Return why there are no kernels of our own; None if there are, or if the user turned them off."""
    return None if _switched_off() else native.trouble()


def _switched_off() -> bool:
    """Return whether the user turned off our own kernels.

    Raises:
        UserError: The variable says something else.
    """
    wanted = os.environ.get(VARIABLE) or "native"
    if wanted not in KERNELS:
        raise UserError(f"{VARIABLE}={wanted}: choose from {', '.join(KERNELS)}")
    return wanted == "torch"


@functools.cache
def is_intel() -> bool:
    """Return whether the processor is Intel's; True if unknown, so that torch's default stays."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True
    return "GenuineIntel" in text or "vendor_id" not in text


@functools.cache
def onednn_is_exact() -> bool:
    """Return whether oneDNN computes float32 products, in float32, as `float32_products` asks it to.

    torch has no setting that names the library. One that allows oneDNN to round factors to bfloat16 makes
    torch take it; a CPU without matrix units for bfloat16 then does not round, and one with them does. On one
    without AVX-512 torch takes MKL in spite of that setting.
    """
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # what torch asks before it takes oneDNN
        return False
    stream = torch.Generator("cpu").manual_seed(1)
    drawn: dict[str, Any] = {"generator": stream, "device": "cpu", "dtype": torch.float32}
    for m, k, n in ((96, 96, 96), (20, 650, 2600), (700, 650, 1000)):
        a, b = (torch.randn(shape, **drawn) for shape in ((m, k), (k, n)))
        with onednn():
            found = torch.mm(a, b)
        exact = a.double() @ b.double()
        if not (found - exact).abs().max() < 1e-5 * exact.abs().max():
            return False
    return True


def float32_products(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """Return a context in which products of such a tensor go to the library that was chosen for float32."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.dtype != torch.float32:
        return contextlib.nullcontext()
    return onednn() if chosen().products == "oneDNN" else contextlib.nullcontext()


def by_openblas(*matrices: Tensor) -> native.Kernels | None:
    """Return our own kernels, if they are to multiply such matrices by OpenBLAS; they record no gradient."""
    if torch.compiler.is_compiling() or any(
        matrix.device.type != "cpu" or matrix.dtype != torch.float32 for matrix in matrices
    ):
        return None
    recorded = torch.is_grad_enabled() and any(matrix.requires_grad for matrix in matrices)
    if recorded or chosen().products != "OpenBLAS" or not native.multiplies(*matrices):
        return None
    return native.loaded()


def onednn() -> contextlib.AbstractContextManager[None]:
    """Return a context in which torch gives float32 products to oneDNN.

    Afterwards torch's setting is what it was; one that was inherited is then set to that value.
    """
    return held({(torch.backends.mkldnn.matmul, "fp32_precision"): "bf16"})  # type: ignore[attr-defined]


def library_of_float32() -> str:
    """Return the library of float32 products, with its version where torch's does not tell it."""
    version = f" {metadata.version('scipy-openblas32')}" if chosen().products == "OpenBLAS" else ""
    return chosen().products + version


def facts() -> dict[str, str]:
    """Return what a record says of the choice, and why kernels of our own are missing, if they are."""
    found = {"kernels": chosen().kernels, "float32_products": library_of_float32()}
    why_none = trouble() if found["kernels"] == "torch" else None
    return found | ({"no_kernels": why_none} if why_none else {})


def described(dtype: torch.dtype) -> str:
    """Return the choice as an engine line ends: "products by MKL, native kernels"."""
    ours = (
        torch.backends.mkldnn.is_available()
        and {
            torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
            torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
        }.get(dtype, lambda: False)()
    )
    library = "oneDNN" if ours else "ATen" if dtype.itemsize == 2 else "MKL"
    if dtype == torch.float32:
        library = chosen().products
    return f"products by {library}, {chosen().kernels if dtype in native.NAMES else 'torch'} kernels"


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16 products: AVX512_BF16, or AMX."""
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in asked)


def has_bfloat16_lstm() -> bool:
    """Return whether torch.nn.LSTM runs in bfloat16 under torch.autocast, which always gives it to oneDNN."""
    return not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def kernels(*tensors: Tensor) -> native.Kernels | None:
    """Return our own kernels, if they are chosen and take such tensors; those of the recurrence may not."""
    if torch.compiler.is_compiling():
        return None
    # Asked first: where a GPU computes, nothing is compiled for the CPU.
    if any(tensor.device.type != "cpu" or tensor.dtype not in native.NAMES for tensor in tensors):
        return None
    return native.loaded() if chosen().kernels == "native" else None


def recurrence(x: Tensor) -> native.Kernels | None:
    """Return our own kernels, if they are chosen and run the recurrence of such an input."""
    found = kernels(x)
    # With AVX-512 their products are oneDNN's. Where torch may not use it, those of bfloat16 would end the
    # process.
    runs = found is not None and x.dtype in found.recurrent and torch.backends.mkldnn.enabled
    return found if runs else None
