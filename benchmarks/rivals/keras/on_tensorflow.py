"""Keras on TensorFlow."""

import functools
import os
from typing import Any

import ptb_lm.tf_backend  # noqa: F401  (imports TensorFlow, quietly)
from benchmarks.rivals.keras import choose

choose("tensorflow")

import tensorflow as tf  # noqa: E402

from benchmarks.rivals.keras import classifier  # noqa: E402

# It warns of Keras's steps being traced, which only Keras could avoid.
tf.get_logger().setLevel("ERROR")


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _peak_memory() -> int:
    peak = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    tf.config.experimental.reset_memory_stats("GPU:0")
    return peak


def _environment(gpu: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "tensorflow": tf.__version__,
        "threads": tf.config.threading.get_intra_op_parallelism_threads()
        or os.environ.get("TF_NUM_INTRAOP_THREADS")
        or "one a core",
    }
    if gpu:
        (device, *_) = tf.config.list_physical_devices("GPU")
        build_info = tf.sysconfig.get_build_info()
        details = tf.config.experimental.get_device_details(device)
        facts["device"] = details.get("device_name", device.name)
        facts |= {"cuda": build_info["cuda_version"], "cudnn": build_info["cudnn_version"]}
    return facts


TENSORFLOW = classifier.Library(
    name="tensorflow",
    cudnn_masks=True,
    has_gpu=_has_gpu,
    compute_in_ieee_float32=functools.partial(
        tf.config.experimental.enable_tensor_float_32_execution, enabled=False
    ),
    peak_memory=_peak_memory,
    environment=_environment,
)
build = functools.partial(classifier.build, library=TENSORFLOW)
