"""The speed of the machine: of products of matrices, and of copies of memory.

    python -m ptb_lm.torch_backend.machine_speed cpu

Each line on stdin is a request in JSON; a line of JSON is the reply.

| request | reply |
|---|---|
| {"what": "device"} | {"device": ..., "gpu": its name, "threads": ..., "cpu": ...}; or {"trouble": why not} |
| {"what": "gemm", "precision": ..., "products": [[m, k, n, transposed], ...]} | `measure_products` |
| {"what": "copy"} | {"gbytes": bytes read and written / second / 1e9} |

"cpu" is how torch's models compute on a CPU (cpu.facts); on a GPU it is empty.

The rate of matrix multiplication is that of the best library at the best of the products, each of an [m, k]
and a [k, n] matrix. Every library multiplies every product for a moment. The fastest pair is then measured
for a quarter of a second, at each request.
"""

import contextlib
import functools
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu, gpu, native
from ptb_lm.torch_backend.precision import PRECISIONS, gpu_settings
from ptb_lm.torch_backend.settings import hold_settings

SCAN_SECONDS, MEASUREMENT_SECONDS = 0.05, 0.25  # at least
SCANS = 2
# The longest time of a product; the smallest product may take any. In bfloat16, where the processor has no
# instructions for it, a large product takes half a minute, and is no faster than a small one.
PRODUCT_SECONDS = 5.0
# Operations for each time that the device is waited for: a GPU does one too soon for a clock.
OPERATIONS_PER_WAIT = {"cpu": 1, "cuda": 16}
# The pause after a measurement: the threads of some libraries spin for a while before they sleep.
PAUSE_SECONDS = 0.05
COPY_BYTES = 2**27  # more than caches hold
COPIES = 3

Product = tuple[int, int, int, str]  # m, k, n; which factor lies transposed: "first", "second" or ""
Operands = tuple[Tensor, Tensor, Tensor]  # a, b and a matrix for a @ b


class Library(NamedTuple):
    """A library that multiplies matrices."""

    name: str
    multiply: Callable[[Tensor, Tensor, Tensor], object]  # a, b, and where to put a @ b
    context: Callable[[], contextlib.AbstractContextManager[object]]  # for the calls of `multiply`
    threads: Callable[[], int | None]  # None where the number is not known


def main() -> None:
    """Answer until stdin ends."""
    (name,) = sys.argv[1:]
    device = ("cuda" if gpu.is_usable() else "cpu") if name == "auto" else name
    for line in sys.stdin:
        print(json.dumps(_reply(device, json.loads(line))), flush=True)


def _reply(device: str, request: dict[str, Any]) -> dict[str, Any]:
    if device == "cuda" and not gpu.is_usable():
        return {"trouble": f"torch {torch.__version__} finds no CUDA device here"}
    if request["what"] == "device":
        name = torch.cuda.get_device_name() if device == "cuda" else None
        facts = cpu.facts() if device == "cpu" else {}
        return {"device": device, "gpu": name, "threads": torch.get_num_threads(), "cpu": facts}
    if request["what"] == "copy":
        return {"gbytes": _measure_copy(device)}
    products = tuple((m, k, n, transposed) for m, k, n, transposed in request["products"])
    return measure_products(device, request["precision"], products)


def _measure_copy(device: str) -> float:
    """Return the median rate of copying, in 1e9 bytes read and written a second."""
    source, target = _buffers(device)
    per_wait, rates = OPERATIONS_PER_WAIT[device], []
    for _ in range(COPIES):
        start = time.perf_counter()
        for _ in range(per_wait):
            target.copy_(source)
        target[0].item()  # waits for the device
        rates.append(2 * COPY_BYTES * per_wait / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


@functools.cache
def _buffers(device: str) -> tuple[Tensor, Tensor]:
    """Return the source and the target of copies, copied once so that all pages are there."""
    source, target = (torch.ones(COPY_BYTES, device=device, dtype=torch.uint8) for _ in range(2))
    target.copy_(source)
    return source, target


def measure_products(device: str, precision: str, products: tuple[Product, ...]) -> dict[str, Any]:
    """Return the rate of the fastest library and product, measured now.

    Args:
        device: "cpu" or "cuda".
        precision: A name in PRECISIONS.
        products: The products to choose from.

    Returns:
        gflops: 2 * multiply-adds a second / 1e9; product: the index of the product among those that were
        given; library: its name; threads: the number of its threads, None where that is not known.
    """
    with hold_settings(gpu_settings(PRECISIONS[precision])):
        library, index = _find_fastest(device, precision, products)
        with library.context():
            gflops = _gflops(
                library, _cached_operands(products[index], device, precision), MEASUREMENT_SECONDS
            )
    time.sleep(PAUSE_SECONDS)
    return {"gflops": gflops, "product": index, "library": library.name, "threads": library.threads()}


@functools.cache
def _find_fastest(device: str, precision: str, products: tuple[Product, ...]) -> tuple[Library, int]:
    """Return the fastest library, and the index of the product at which it is."""
    rates: dict[tuple[Library, int], float] = {}
    smallest = min(range(len(products)), key=lambda index: math.prod(products[index][:3]))
    for _ in range(SCANS):  # another process may hold up one of them
        for index, product in enumerate(products):
            operands = draw_operands(product, device, precision)
            for library in list_libraries(device, precision):
                with library.context():
                    if index != smallest and not _is_short(library, operands):
                        continue
                    rate = _gflops(library, operands, SCAN_SECONDS)
                rates[library, index] = max(rate, rates.get((library, index), 0.0))
    return max(rates, key=lambda pair: rates[pair])


def _is_short(library: Library, operands: Operands) -> bool:
    """Return whether a product takes no longer than PRODUCT_SECONDS, judged by some of its rows."""
    a_MK, b_KN, c_MN = operands
    if c_MN.device.type != "cpu":
        return True
    rows = len(a_MK) // 64 or 1
    library.multiply(a_MK[:rows], b_KN, c_MN[:rows])  # the first one sets the library up
    start = time.perf_counter()
    library.multiply(a_MK[:rows], b_KN, c_MN[:rows])
    return (time.perf_counter() - start) * len(a_MK) / rows <= PRODUCT_SECONDS


def list_libraries(device: str, precision: str) -> list[Library]:
    """Return the libraries that multiply in a precision on a device."""
    dtype, plain = PRECISIONS[precision].compute, contextlib.nullcontext
    if device == "cuda":
        return [Library("torch.mm (cuBLAS)", _multiply_by_torch, plain, lambda: None)]
    threads = torch.get_num_threads
    found = [Library(f"torch.mm ({cpu.name_torch_library(dtype)})", _multiply_by_torch, plain, threads)]
    if dtype == torch.float32 and cpu.is_onednn_exact():
        found.append(Library("torch.mm (oneDNN)", _multiply_by_torch, cpu.use_onednn, threads))
    if dtype == torch.float32 and native.unavailable_reason() is None and native.can_multiply():
        found.append(Library("OpenBLAS", native.load().multiply, plain, threads))
    if dtype in (torch.float32, torch.float64):
        found.append(Library("NumPy", _multiply_by_numpy, plain, _count_threads_of_numpy))
    return found


def draw_operands(product: Product, device: str, precision: str) -> Operands:
    """Return random factors of a product, laid out as it says."""
    m, k, n, transposed = product
    options: dict[str, Any] = {"device": device, "dtype": PRECISIONS[precision].compute}
    a_MK = torch.rand(k, m, **options).T if transposed == "first" else torch.rand(m, k, **options)
    b_KN = torch.rand(n, k, **options).T if transposed == "second" else torch.rand(k, n, **options)
    return a_MK, b_KN, torch.empty(m, n, **options)


_cached_operands = functools.lru_cache(maxsize=len(PRECISIONS))(draw_operands)


def _gflops(library: Library, operands: Operands, seconds: float) -> float:
    """Multiply for the given time, after one product for setup; return the rate."""
    a_MK, b_KN, c_MN = operands
    (m, k), n = a_MK.shape, b_KN.shape[1]
    per_wait, count, duration = OPERATIONS_PER_WAIT[c_MN.device.type], 0, 0.0
    library.multiply(a_MK, b_KN, c_MN)
    c_MN[0, 0].item()  # waits for the device
    start = time.perf_counter()
    while duration < seconds:
        for _ in range(per_wait):
            library.multiply(a_MK, b_KN, c_MN)
        c_MN[0, 0].item()
        duration, count = time.perf_counter() - start, count + per_wait
    return 2 * m * k * n * count / duration / 1e9


def _multiply_by_torch(a_MK: Tensor, b_KN: Tensor, c_MN: Tensor) -> None:
    torch.mm(a_MK, b_KN, out=c_MN)


def _multiply_by_numpy(a_MK: Tensor, b_KN: Tensor, c_MN: Tensor) -> None:
    np.matmul(a_MK.numpy(), b_KN.numpy(), out=c_MN.numpy())


def _count_threads_of_numpy() -> int | None:
    """Return the number of threads that NumPy multiplies with; None without threadpoolctl, which knows it."""
    try:
        pools = importlib.import_module("threadpoolctl").threadpool_info()
    except ModuleNotFoundError:
        return None
    threads = (p["num_threads"] for p in pools if p["user_api"] == "blas" and "numpy" in p["filepath"])
    return next(threads, None)


if __name__ == "__main__":
    main()
