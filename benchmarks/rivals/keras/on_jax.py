"""Keras on JAX."""

import functools

from benchmarks.rivals import jax_device
from benchmarks.rivals.keras import choose

choose("jax")

from benchmarks.rivals.keras import classifier  # noqa: E402

JAX = classifier.Library(
    name="jax",
    has_gpu=jax_device.has_gpu,
    compute_in_ieee_float32=jax_device.compute_in_ieee_float32,
    peak_memory=jax_device.peak_memory,
    environment=jax_device.environment,
)
build = functools.partial(classifier.build, library=JAX)
