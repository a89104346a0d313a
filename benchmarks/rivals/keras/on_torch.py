"""Keras on torch, as torch is by itself: without this package's settings of it."""

import functools
from typing import Any

from benchmarks.rivals.keras import choose

choose("torch")

import torch  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402


class Torch:
    """torch, for Keras."""

    name = "torch"
    unroll = "static"
    cudnn_masks = False
    hoists_on_cpu = True

    def has_gpu(self) -> bool:
        """Tell whether there is a CUDA device."""
        return torch.cuda.is_available()

    def compute_in_ieee_float32(self) -> None:
        """Have a GPU multiply in float32."""
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]

    def peak_memory(self) -> int:
        """Return the peak of the bytes taken on the GPU since it was last asked for."""
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    def environment(self, *, gpu: bool) -> dict[str, Any]:
        """Return the version, the threads, and of a GPU its name and libraries."""
        facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if gpu:
            facts |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
            facts["cudnn"] = torch.backends.cudnn.version()
        return facts


build = functools.partial(classifier.build, library=Torch())
