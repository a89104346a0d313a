"""Keras on JAX."""

import functools
import logging
import os
from typing import Any

from benchmarks.rivals.keras import choose

choose("jax")
# Take GPU memory as it is needed, not most of it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# JAX warns where it finds a GPU that it was not installed for; the classifier's engine says what computes.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)

import jax  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402


def _has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _peak_memory() -> int:
    """Return the peak of the bytes taken on the GPU since the process started: JAX cannot forget it."""
    return int((jax.devices("gpu")[0].memory_stats() or {})["peak_bytes_in_use"])


def _environment(gpu: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"jax": jax.__version__, "threads": "one a core"}
    if gpu:
        (device, *_) = jax.devices("gpu")
        facts |= {"device": device.device_kind, "platform": device.client.platform_version}
    return facts


JAX = classifier.Library(
    name="jax",
    has_gpu=_has_gpu,
    # cuDNN reads it too.
    compute_in_ieee_float32=functools.partial(jax.config.update, "jax_default_matmul_precision", "highest"),
    peak_memory=_peak_memory,
    environment=_environment,
)
build = functools.partial(classifier.build, library=JAX)
