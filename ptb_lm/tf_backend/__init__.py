"""The TensorFlow backend. Importing it imports TensorFlow, quietly, without Keras and after Triton."""

import importlib
import os
from contextlib import nullcontext, suppress

from ptb_lm.common.host import hold_back_stderr, set_variables

# Take GPU memory as it is needed, not all of it.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
_quiet = "TF_CPP_MIN_LOG_LEVEL" not in os.environ  # nobody asked for TensorFlow's log
if _quiet:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# TensorFlow imports all of Keras at once unless it is told to use another. That takes seconds, and only
# `--model cudnn` on a CPU needs it. tf.keras, which reads this variable when it is first used, is as ever.
_legacy = set_variables({"TF_USE_LEGACY_KERAS": os.environ.get("TF_USE_LEGACY_KERAS", "1")})
with _legacy, hold_back_stderr() if _quiet else nullcontext():
    # Torch's builds for CUDA bring Triton, and import it late. If TensorFlow is there by then, Triton calls
    # TensorFlow's LLVM in place of its own, and the process ends (tensorflow/tensorflow, issue 124205).
    with suppress(Exception):  # whatever is wrong with Triton, TensorFlow does not need it
        importlib.import_module("triton")
    import tensorflow  # noqa: F401
