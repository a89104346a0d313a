"""The machine's rate of matrix multiplication: the best of its libraries, at the best of some shapes.

Every library multiplies every shape for a moment. The fastest pair is then measured for half a second,
whenever it is asked for.

A product is of an [m, k] and a [k, n] matrix.
"""

import contextlib
import functools
import importlib
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu, native
from ptb_lm.torch_backend.precision import PRECISIONS, settings_of
from ptb_lm.torch_backend.settings import held

SCANNED, MEASURED = 0.05, 0.5  # seconds, at least
SCANS = 2
# Seconds that a product may take; the smallest may take any. In bfloat16, where the processor has no
# instructions for it, a large product takes half a minute, and is no faster than a small one.
BEARABLE = 5.0
# Products for each time that the device is waited for: a GPU does one too soon for a clock.
AT_ONCE = {"cpu": 1, "cuda": 16}
# Seconds after a measurement: the threads of some libraries spin for a while before they sleep.
SETTLED = 0.05

Product = tuple[int, int, int, str]  # m, k, n; which factor lies transposed: "first", "second" or ""


class Library(NamedTuple):
    """What multiplies."""

    name: str
    multiply: Callable[[Tensor, Tensor, Tensor], object]  # a, b, and where to put a @ b
    setting: Callable[[], contextlib.AbstractContextManager[object]]  # in which it does
    threads: Callable[[], int | None]  # None where that is not known


class Factors(NamedTuple):
    """Two factors and the place of their product."""

    a_MK: Tensor
    b_KN: Tensor
    c_MN: Tensor


class Rate(NamedTuple):
    """What was measured."""

    gflops: float  # 2 * multiply-adds a second / 1e9
    product: int  # the place of the product among those that were given
    library: str
    threads: int | None


def measure(device: str, precision: str, products: tuple[Product, ...]) -> Rate:
    """Return the rate of the fastest library and product, measured now.

    Args:
        device: "cpu" or "cuda".
        precision: A name in PRECISIONS.
        products: What to choose from.
    """
    with held(settings_of(PRECISIONS[precision])):
        library, place = _fastest(device, precision, products)
        with library.setting():
            gflops = _gflops(library, _kept(products[place], device, precision), MEASURED)
    time.sleep(SETTLED)
    return Rate(gflops, place, library.name, library.threads())


@functools.cache
def _fastest(device: str, precision: str, products: tuple[Product, ...]) -> tuple[Library, int]:
    """Return the fastest library, and the place of the product at which it is."""
    rates: dict[tuple[Library, int], float] = {}
    smallest = min(range(len(products)), key=lambda place: math.prod(products[place][:3]))
    for _ in range(SCANS):  # another process may hold up one of them
        for place, product in enumerate(products):
            of = factors(product, device, precision)
            for library in libraries(device, precision):
                with library.setting():
                    if place != smallest and not _is_bearable(library, of):
                        continue
                    rate = _gflops(library, of, SCANNED)
                rates[library, place] = max(rate, rates.get((library, place), 0.0))
    return max(rates, key=lambda pair: rates[pair])


def _is_bearable(library: Library, of: Factors) -> bool:
    """Return whether a product takes no longer than BEARABLE, judged by some of its rows."""
    if of.c_MN.device.type != "cpu":
        return True
    rows = len(of.a_MK) // 64 or 1
    part = Factors(of.a_MK[:rows], of.b_KN, of.c_MN[:rows])
    library.multiply(*part)  # the first one sets the library up
    start = time.perf_counter()
    library.multiply(*part)
    return (time.perf_counter() - start) * len(of.a_MK) / rows <= BEARABLE


def libraries(device: str, precision: str) -> list[Library]:
    """Return the libraries that multiply in a precision on a device."""
    dtype, plain = PRECISIONS[precision].compute, contextlib.nullcontext
    if device == "cuda":
        return [Library("torch.mm (cuBLAS)", _torch, plain, lambda: None)]
    found = [Library(f"torch.mm ({_of_torch(dtype)})", _torch, plain, torch.get_num_threads)]
    if dtype == torch.float32 and cpu.onednn_is_exact():
        found.append(Library("torch.mm (oneDNN)", _torch, cpu.onednn, torch.get_num_threads))
    if dtype == torch.float32 and native.trouble() is None and native.multiplies():
        found.append(Library("OpenBLAS", _openblas, plain, torch.get_num_threads))
    if dtype in (torch.float32, torch.float64):
        found.append(Library("NumPy", _numpy, plain, _numpy_threads))
    return found


@functools.lru_cache(maxsize=len(PRECISIONS))
def _kept(product: Product, device: str, precision: str) -> Factors:
    return factors(product, device, precision)


def factors(product: Product, device: str, precision: str) -> Factors:
    """Return random factors of a product, laid out as it says."""
    m, k, n, transposed = product
    place: dict[str, Any] = {"device": device, "dtype": PRECISIONS[precision].compute}
    a_MK = torch.rand(k, m, **place).T if transposed == "first" else torch.rand(m, k, **place)
    b_KN = torch.rand(n, k, **place).T if transposed == "second" else torch.rand(k, n, **place)
    return Factors(a_MK, b_KN, torch.empty(m, n, **place))


def _gflops(library: Library, of: Factors, seconds: float) -> float:
    """Multiply for the given time, after one product for setup; return the rate."""
    (m, k), n = of.a_MK.shape, of.b_KN.shape[1]
    at_once, done, elapsed = AT_ONCE[of.c_MN.device.type], 0, 0.0
    library.multiply(*of)
    _wait(of)
    start = time.perf_counter()
    while elapsed < seconds:
        for _ in range(at_once):
            library.multiply(*of)
        _wait(of)
        elapsed, done = time.perf_counter() - start, done + at_once
    return 2 * m * k * n * done / elapsed / 1e9


def _wait(of: Factors) -> None:
    of.c_MN[0, 0].item()


def _torch(a_MK: Tensor, b_KN: Tensor, c_MN: Tensor) -> None:
    torch.mm(a_MK, b_KN, out=c_MN)


def _openblas(a_MK: Tensor, b_KN: Tensor, c_MN: Tensor) -> None:
    native.loaded().multiply(a_MK, b_KN, c_MN)


def _numpy(a_MK: Tensor, b_KN: Tensor, c_MN: Tensor) -> None:
    np.matmul(a_MK.numpy(), b_KN.numpy(), out=c_MN.numpy())


def _of_torch(dtype: torch.dtype) -> str:
    """Return the library that torch itself multiplies with on a CPU."""
    if dtype in (torch.float32, torch.float64):
        return "MKL" if torch.backends.mkl.is_available() else "BLAS"
    ours = torch.ops.mkldnn
    has = ours._is_mkldnn_bf16_supported if dtype == torch.bfloat16 else ours._is_mkldnn_fp16_supported
    return "oneDNN" if torch.backends.mkldnn.is_available() and has() else "ATen"


def _numpy_threads() -> int | None:
    """Return how many threads NumPy multiplies with; None without threadpoolctl, which can tell."""
    try:
        pools = importlib.import_module("threadpoolctl").threadpool_info()
    except ModuleNotFoundError:
        return None
    threads = (p["num_threads"] for p in pools if p["user_api"] == "blas" and "numpy" in p["filepath"])
    return next(threads, None)
