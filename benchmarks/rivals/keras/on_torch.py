"""Keras on torch, as torch is by itself: without this package's settings of it."""

import functools
from typing import Any

from typing_extensions import override

from benchmarks.rivals.keras import choose

choose("torch")

import torch  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402


class Torch(classifier.Library):
    """torch, for Keras."""

    name = "torch"
    unroll = "static"
    hoists_on_cpu = True

    @override
    def has_gpu(self) -> bool:
        return torch.cuda.is_available()

    @override
    def compute_in_ieee_float32(self) -> None:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]

    @override
    def peak_memory(self) -> int:
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    @override
    def environment(self, *, gpu: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if gpu:
            facts |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
            facts["cudnn"] = torch.backends.cudnn.version()
        return facts


build = functools.partial(classifier.build, library=Torch())
