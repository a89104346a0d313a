"""The TensorFlow backend. Importing it imports TensorFlow, quietly."""

import os

from ptb_lm.host import held_back_stderr

# The carried state and the variables are TensorFlow's, even if Keras uses another backend elsewhere.
os.environ["KERAS_BACKEND"] = "tensorflow"
# Take GPU memory as it is needed, not all of it.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:  # nobody asked for TensorFlow's log
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with held_back_stderr():
        import tensorflow  # noqa: F401
