"""OpenBLAS's product of float32 matrices, from the package scipy-openblas32.

NumPy and SciPy carry OpenBLAS, too, but promise no way to call it.
"""

import ctypes
import functools
import importlib
import os
import threading
from pathlib import Path

THREADS = "OPENBLAS_NUM_THREADS"
_turn = threading.Lock()  # to set the variable, and to restore it


@functools.cache
def sgemm() -> int | None:
    """Return the address of `cblas_sgemm`, which uses one thread a call; None where there is none."""
    with _turn:
        return _loaded()


def _loaded() -> int | None:
    # The kernels call it from OpenMP's threads. Its own, which it would start now, would take their cores.
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        package = importlib.import_module("scipy_openblas32")
        library = ctypes.CDLL(str(Path(package.get_lib_dir()) / package.get_library(fullname=True)))
        return ctypes.cast(library.scipy_cblas_sgemm, ctypes.c_void_p).value
    except (ImportError, OSError, AttributeError, IndexError):
        return None
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before
