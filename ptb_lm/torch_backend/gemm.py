"""The machine's own rate of matrix multiplication: python -m ptb_lm.torch_backend.gemm cpu fp32.

For each line on stdin, it multiplies and prints a line of JSON.
"""

import json
import statistics
import sys
import time

import torch

from ptb_lm.torch_backend.precision import PRECISIONS

WIDTH = {"cpu": 2048, "cuda": 8192}
TIMES = 3


def main() -> None:
    """Answer until stdin ends: {"device": ..., "gflops": 2 * multiply-adds / second / 1e9}."""
    asked, precision = sys.argv[1:]
    device = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    chosen = PRECISIONS[precision]
    torch.backends.cuda.matmul.fp32_precision = "tf32" if chosen.tf32 else "ieee"
    width = WIDTH[device]
    a, b, c = (torch.rand(width, width, device=device, dtype=chosen.compute) for _ in range(3))
    torch.mm(a, b, out=c)
    for _ in sys.stdin:
        rates = []
        for _ in range(TIMES):
            start = time.perf_counter()
            torch.mm(a, b, out=c)
            c[0, 0].item()  # waits for the device
            rates.append(2 * width**3 / (time.perf_counter() - start) / 1e9)
        print(json.dumps({"device": device, "gflops": statistics.median(rates)}), flush=True)


if __name__ == "__main__":
    main()
