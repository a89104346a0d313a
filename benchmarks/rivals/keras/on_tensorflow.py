"""Keras on TensorFlow."""

import functools

from benchmarks.rivals.keras import choose

choose("tensorflow")

import ptb_lm.tf_backend  # noqa: E402, F401  (TensorFlow, quietly, after Triton)

# isort: split
import tensorflow as tf  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402
from ptb_lm.tf_backend.runtime import Device  # noqa: E402

# It warns of Keras's steps being traced, which only Keras could avoid.
tf.get_logger().setLevel("ERROR")


TENSORFLOW = classifier.Library(
    name="tensorflow",
    has_gpu=lambda: bool(tf.config.list_physical_devices("GPU")),
    compute_in_ieee_float32=functools.partial(
        tf.config.experimental.enable_tensor_float_32_execution, enabled=False
    ),
    peak_memory=Device(gpu=True).peak_memory,
    environment=lambda gpu: Device(gpu).environment(),
)
build = functools.partial(classifier.build, library=TENSORFLOW)
