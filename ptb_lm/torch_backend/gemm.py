"""The machine's own rate of matrix multiplication: python -m ptb_lm.torch_backend.gemm cpu.

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
TIMES = 3


def main() -> None:
    """Answer until stdin ends: {"device": ..., "gflops": 2 * multiply-adds / second / 1e9}."""
    (asked,) = sys.argv[1:]
    device = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    for line in sys.stdin:
        print(json.dumps({"device": device, "gflops": _gflops(device, line.strip())}), flush=True)


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


@functools.cache
def _factors(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return two factors and where their product goes, multiplied once so that nothing is set up later."""
    width = WIDTH[device]
    a, b, c = (torch.rand(width, width, device=device, dtype=dtype) for _ in range(3))
    torch.mm(a, b, out=c)
    return a, b, c


if __name__ == "__main__":
    main()
