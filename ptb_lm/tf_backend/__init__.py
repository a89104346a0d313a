"""The TensorFlow backend. Importing it imports TensorFlow, quietly and without Keras."""

import os
from contextlib import nullcontext

from ptb_lm.common.host import hold_back_stderr

# The carried state and the variables are TensorFlow's, even if Keras uses another backend elsewhere.
os.environ["KERAS_BACKEND"] = "tensorflow"
# Take GPU memory as it is needed, not all of it.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
_quiet = "TF_CPP_MIN_LOG_LEVEL" not in os.environ  # nobody asked for TensorFlow's log
if _quiet:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# TensorFlow imports all of Keras at once unless it is told to use another. That takes seconds, and only
# `--model cudnn` on a CPU needs it. tf.keras, which reads this variable when it is first used, is as ever.
_chosen = "TF_USE_LEGACY_KERAS" in os.environ
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
try:
    with hold_back_stderr() if _quiet else nullcontext():
        import tensorflow  # noqa: F401
finally:
    if not _chosen:
        del os.environ["TF_USE_LEGACY_KERAS"]
