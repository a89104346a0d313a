"""JAX, set up before it is imported, and its device: what the rivals in JAX share."""

import logging
import os
import platform
from typing import Any

# Take GPU memory as it is needed, not most of it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# JAX warns where it finds a GPU that it was not installed for; a rival's engine says what computes.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)

import jax  # noqa: E402


def has_gpu() -> bool:
    """Return whether JAX computes on a CUDA device."""
    return jax.default_backend() == "gpu"


def compute_in_ieee_float32() -> None:
    """Multiply in float32 on a GPU, and do not round to TF32; cuDNN reads it too."""
    jax.config.update("jax_default_matmul_precision", "highest")


def peak_memory() -> int:
    """Return the peak of the bytes taken on the GPU since the process started: JAX cannot forget it."""
    return int((jax.devices("gpu")[0].memory_stats() or {})["peak_bytes_in_use"])


def environment(gpu: bool) -> dict[str, Any]:
    """Return the version, the device and the threads."""
    facts = {"jax": jax.__version__, "threads": "one a core", "device": f"cpu ({platform.machine()})"}
    if gpu:
        (device, *_) = jax.devices("gpu")
        facts |= {"device": device.device_kind, "platform": device.client.platform_version}
    return facts
