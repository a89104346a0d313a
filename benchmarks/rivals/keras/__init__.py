"""The classifier as users of Keras write it, on each of the libraries that Keras computes with.

A process has one Keras on one of them. Importing on_jax, on_torch or on_tensorflow chooses it, so that they
exclude each other; importing this package alone imports neither Keras nor any of them.
"""

import os
import sys

from ptb_lm.common.errors import UserError


def choose(backend: str) -> None:
    """Have Keras compute with a library, before it is imported: it asks once.

    Raises:
        UserError: Keras has been imported, for another one.
    """
    keras = sys.modules.get("keras")
    if keras is not None and keras.config.backend() != backend:
        raise UserError(
            f"this process has Keras on {keras.config.backend()} already; start another one for {backend}"
        )
    os.environ["KERAS_BACKEND"] = backend
