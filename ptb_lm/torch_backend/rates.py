"""How fast the machine multiplies matrices and copies memory: python -m ptb_lm.torch_backend.rates cpu.

Each line on stdin is a precision, in which it multiplies; it answers with a line of JSON.
"""

import functools
import json
import statistics
import sys
import time

import torch
from torch import Tensor

from ptb_lm.torch_backend.precision import PRECISIONS

WIDTH = {"cpu": 2048, "cuda": 8192}
COPIED = 2**27  # bytes: more than caches hold
# For each time that the device is waited for: a GPU does one too soon for a clock.
COPIES = {"cpu": 1, "cuda": 16}
TIMES = 3


def main() -> None:
    """Answer until stdin ends.

    {"device": ..., "gpu": its name, "gflops": 2 * multiply-adds / second / 1e9, "copy_gbytes": bytes read and
    written / second / 1e9}; or once {"trouble": why there are none}
    """
    (asked,) = sys.argv[1:]
    device = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    if device == "cuda" and not torch.cuda.is_available():
        sys.stdin.readline()
        print(json.dumps({"trouble": f"torch {torch.__version__} finds no CUDA device here"}))
        return
    facts = {"device": device, "gpu": torch.cuda.get_device_name() if device == "cuda" else None}
    for line in sys.stdin:
        rates = {"gflops": _gflops(device, line.strip()), "copy_gbytes": _copy_gbytes(device)}
        print(json.dumps({**facts, **rates}), flush=True)


def _gflops(device: str, precision: str) -> float:
    torch.backends.cuda.matmul.fp32_precision = "tf32" if PRECISIONS[precision].tf32 else "ieee"
    a, b, c = _factors(device, PRECISIONS[precision].compute)
    rates = []
    for _ in range(TIMES):
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        c[0, 0].item()  # waits for the device
        rates.append(2 * WIDTH[device] ** 3 / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


def _copy_gbytes(device: str) -> float:
    source, target = _buffers(device)
    rates = []
    for _ in range(TIMES):
        start = time.perf_counter()
        for _ in range(COPIES[device]):
            target.copy_(source)
        target[0].item()  # waits for the device
        rates.append(2 * COPIED * COPIES[device] / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


@functools.cache
def _buffers(device: str) -> tuple[Tensor, Tensor]:
    """Return what is copied and where to, copied once so that all pages are there."""
    source, target = (torch.ones(COPIED, device=device, dtype=torch.uint8) for _ in range(2))
    target.copy_(source)
    return source, target


@functools.cache
def _factors(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return two factors and where their product goes, multiplied once so that nothing is set up later."""
    width = WIDTH[device]
    a, b, c = (torch.rand(width, width, device=device, dtype=dtype) for _ in range(3))
    torch.mm(a, b, out=c)
    return a, b, c


if __name__ == "__main__":
    main()
