"""Keras on JAX."""

import functools
import logging
import os
from typing import Any

from typing_extensions import override

from benchmarks.rivals.keras import choose

choose("jax")
# Take GPU memory as it is needed, not most of it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# JAX warns where it finds a GPU that it was not installed for; the classifier's engine says what computes.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)

import jax  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402


class Jax(classifier.Library):
    """JAX, for Keras."""

    name = "jax"

    @override
    def has_gpu(self) -> bool:
        return jax.default_backend() == "gpu"

    @override
    def compute_in_ieee_float32(self) -> None:
        """Have a GPU multiply in float32; cuDNN reads it too."""
        jax.config.update("jax_default_matmul_precision", "highest")

    @override
    def peak_memory(self) -> int:
        """Return the peak of the bytes taken on the GPU since the process started: JAX cannot forget it."""
        return int((jax.devices("gpu")[0].memory_stats() or {})["peak_bytes_in_use"])

    @override
    def environment(self, *, gpu: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {"jax": jax.__version__, "threads": "one a core"}
        if gpu:
            (device, *_) = jax.devices("gpu")
            facts |= {"device": device.device_kind, "platform": device.client.platform_version}
        return facts


build = functools.partial(classifier.build, library=Jax())
