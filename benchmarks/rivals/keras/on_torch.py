"""Keras on torch, as torch is by itself: without this package's settings of it."""

import functools
import platform
from typing import Any

from benchmarks.rivals.keras import choose

choose("torch")

import torch  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402


def _compute_in_ieee_float32() -> None:
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]


def _peak_memory() -> int:
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


def _environment(gpu: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    facts["device"] = f"cpu ({platform.machine()})"
    if gpu:
        facts |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


TORCH = classifier.Library(
    name="torch",
    unroll="static",
    hoists_on_cpu=True,
    has_gpu=torch.cuda.is_available,
    compute_in_ieee_float32=_compute_in_ieee_float32,
    peak_memory=_peak_memory,
    environment=_environment,
)
build = functools.partial(classifier.build, library=TORCH)
