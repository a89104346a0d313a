"""What must not change while rows are added to one record: the request, the program and what it runs on.

Nothing is imported to find it out: a framework that is measured is loaded by its workers alone.
"""

import hashlib
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ptb_lm.bench import checkout
from ptb_lm.bench.selection import Options
from ptb_lm.common import host

PACKAGES = (
    *("torch", "tensorflow", "tensorflow-cpu", "keras", "numpy"),
    *("jax", "jaxlib", "pytensor", "numba", "scipy-openblas32"),
)
# A program's text: Python, the kernels that are compiled, and what benchmarks/ declares.
SOURCES = ("*.py", "*.cpp", "*.toml")
# Variables that begin so change what is computed, by which kernels, or with which threads and memory.
PREFIXES = (
    *("ATEN_", "CUBLAS", "CUDA_", "CUDNN_", "CXX", "DNNL_", "GLIBC_TUNABLES", "GOMP_", "JAX_", "KMP_"),
    *("LD_PRELOAD", "MALLOC_", "MKL_", "NUMBA_", "NVIDIA_TF32", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("PTB_LM_BEFORE", "PTB_LM_KERNELS", "PYTENSOR_", "PYTORCH_", "TF_", "TORCH", "XLA_"),
)
# Of these, what only changes messages; the TensorFlow backend sets it itself.
MESSAGES = "TF_CPP_"

_ASKED = (
    *("suite", "baseline", "rounds", "processes", "batch_size"),
    *("row_limit", "device", "precision", "seed"),
)
_OF_CPU = ("kernels", "float32_products")
# Not the commit: a commit of results changes no source. Each row has its own.
_OF_MACHINE = ("ptb_lm", "python", "processor", "cores")


def settings(
    options: Options, *, gpu: str | None, cpu: Mapping[str, str], added: Mapping[str, str]
) -> dict[str, Any]:
    """Return what rows that stand in one table have in common.

    Args:
        options: What was asked for.
        gpu: The name of the CUDA device; None on a CPU.
        cpu: How torch's models compute on a CPU: a compiler may have come or gone.
        added: A digest of the source of each NAME=MODULE:FUNCTION in `options.added`.
    """
    environment = host.environment()
    sources = [Path(__file__).resolve().parents[1], *[checkout.FOLDER] * checkout.IS_THERE]
    return {
        **{name: getattr(options, name) for name in _ASKED},
        **{name: environment[name] for name in _OF_MACHINE},
        "gpu": gpu,
        **versions(),
        "source": " ".join(map(digest, sources)),
        **{f"--add {given}": found for given, found in added.items()},
        **variables(),
        **{name: cpu.get(name) for name in _OF_CPU},
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute, by name; of those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def variables() -> dict[str, str]:
    """Return the variables of this process that may change what is measured."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) and not name.startswith(MESSAGES)
    }


def digest(folder: Path) -> str:
    """Return a SHA-256 of the names and the text of all sources in a folder."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
        total.update(f"{path.relative_to(folder).as_posix()}\n".encode(errors="backslashreplace"))
        total.update(f"{digest_of(path)}\n".encode())
    return total.hexdigest()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
