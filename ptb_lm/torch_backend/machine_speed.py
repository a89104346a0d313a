"""How fast the machine multiplies matrices and copies memory.

    python -m ptb_lm.torch_backend.machine_speed cpu

Each line on stdin is a question in JSON; a line of JSON answers it.

| question | answer |
|---|---|
| {"what": "device"} | {"device": ..., "gpu": its name, "threads": ..., "cpu": ...}; or {"trouble": why not} |
| {"what": "gemm", "precision": ..., "products": [[m, k, n, transposed], ...]} | a gemm.Rate |
| {"what": "copy"} | {"gbytes": bytes read and written / second / 1e9} |

"cpu" is how torch's models compute on a CPU (cpu.facts); on a GPU it is empty.
"""

import functools
import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor

from ptb_lm.torch_backend import cpu, gemm, gpu

COPIED = 2**27  # bytes: more than caches hold
TIMES = 3


def main() -> None:
    """Answer until stdin ends."""
    (asked,) = sys.argv[1:]
    device = ("cuda" if gpu.usable() else "cpu") if asked == "auto" else asked
    for line in sys.stdin:
        print(json.dumps(_answer(device, json.loads(line))), flush=True)


def _answer(device: str, question: dict[str, Any]) -> dict[str, Any]:
    if device == "cuda" and not gpu.usable():
        return {"trouble": f"torch {torch.__version__} finds no CUDA device here"}
    if question["what"] == "device":
        name = torch.cuda.get_device_name() if device == "cuda" else None
        facts = cpu.facts() if device == "cpu" else {}
        return {"device": device, "gpu": name, "threads": torch.get_num_threads(), "cpu": facts}
    if question["what"] == "copy":
        return {"gbytes": _copy_gbytes(device)}
    products = tuple((m, k, n, transposed) for m, k, n, transposed in question["products"])
    return gemm.measure(device, question["precision"], products)._asdict()


def _copy_gbytes(device: str) -> float:
    source, target = _buffers(device)
    at_once, rates = gemm.AT_ONCE[device], []
    for _ in range(TIMES):
        start = time.perf_counter()
        for _ in range(at_once):
            target.copy_(source)
        target[0].item()  # waits for the device
        rates.append(2 * COPIED * at_once / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


@functools.cache
def _buffers(device: str) -> tuple[Tensor, Tensor]:
    """Return what is copied and where to, copied once so that all pages are there."""
    source, target = (torch.ones(COPIED, device=device, dtype=torch.uint8) for _ in range(2))
    target.copy_(source)
    return source, target


if __name__ == "__main__":
    main()
