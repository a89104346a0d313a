"""OpenBLAS's product of float32 matrices, from the package scipy-openblas32.

NumPy and SciPy carry OpenBLAS, too, but promise no way to call it.
"""

import ctypes
import functools
import importlib
from pathlib import Path


@functools.cache
def sgemm() -> int | None:
    """Return the address of `cblas_sgemm`, which uses one thread a call; None where there is none."""
    try:
        package = importlib.import_module("scipy_openblas32")
        library = ctypes.CDLL(str(Path(package.get_lib_dir()) / package.get_library(fullname=True)))
        # The kernels call it from OpenMP's threads. Its own would take their cores.
        library.scipy_openblas_set_num_threads(1)
        return ctypes.cast(library.scipy_cblas_sgemm, ctypes.c_void_p).value
    except (ImportError, OSError, AttributeError):
        return None
