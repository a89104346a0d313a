"""The shared libraries: our kernels, compiled for this machine at their first use and cached, and OpenBLAS.

OpenBLAS is that of the package scipy-openblas32. NumPy and SciPy carry it, too, but promise no way to call
it.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ptb_lm.common import files, host

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
# What kernels return; the others return nothing.
RESULT_TYPES: Mapping[str, Any] = {"supported": ctypes.c_int, "sum_of_squares": ctypes.c_double}
SEAL_BYTES = hashlib.sha256().digest_size
_environment_lock = threading.Lock()  # to set a variable of the environment, and to restore it


class MissingError(Exception):
    """This machine has no kernels; the message says why."""


def load_kernels() -> ctypes.CDLL:
    """Return the library of our kernels; compile it first if needed.

    Without a compiler it is one that was compiled here before.

    Raises:
        MissingError: This machine has no kernels.
    """
    if sys.platform != "linux":
        raise MissingError("they exist only for Linux")
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
    try:
        # All that decides which machine code a compiler makes of the source; and then, which compiler.
        source = SOURCE.read_text(encoding="utf-8")
        name = f"kernels-{_digest(source, *FLAGS, *libraries, torch.__version__, _describe_processor())}"
        compiler = _find_compiler()
        if not compiler:
            return _open_compiled(name)
        version = _run([*compiler, "--version"], seconds=60).stdout
        path = files.cache_folder() / f"{name}-{_digest(*compiler, version)}.so"
        with contextlib.suppress(OSError):  # it is not there, or damaged
            return _open(path)
        _compile(compiler, libraries, path)
    except OSError as error:
        raise MissingError(f"the kernels cannot be compiled: {error}") from None
    try:
        return _open(path)
    except OSError as error:
        raise MissingError(f"the compiled kernels cannot be loaded: {error}") from None


def _open_compiled(name: str) -> ctypes.CDLL:
    """Load a library of this name that any compiler has made."""
    for path in files.cache_folder().glob(f"{name}-*.so"):
        with contextlib.suppress(OSError):
            return _open(path)
    raise MissingError("there is no C++ compiler; install g++ or set CXX")


def _open(path: Path) -> ctypes.CDLL:
    """Load a compiled library: a temporary copy of it where the cache's file system is mounted noexec.

    Raises:
        OSError: The file is damaged, or no library that can be loaded.
        MissingError: The temporary folder's file system is mounted noexec, too.
    """
    content = path.read_bytes()
    if content != _seal(content[:-SEAL_BYTES]):
        raise OSError(f"{path} is damaged")
    if not _is_noexec(path):
        return ctypes.CDLL(str(path))
    with tempfile.TemporaryDirectory() as folder:  # once it is loaded, the file is not needed any more
        if _is_noexec(Path(folder)):
            raise MissingError(
                f"{path.parent} and {tempfile.gettempdir()} are mounted noexec; let XDG_CACHE_HOME or TMPDIR "
                "name a folder that is not"
            )
        return ctypes.CDLL(shutil.copy(path, folder))


def _is_noexec(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def _find_compiler() -> list[str]:
    """Return the compiler's command, empty if there is none; CXX may give it arguments, as in `ccache g++`.

    Raises:
        MissingError: CXX names one that does not exist.
    """
    cxx = os.environ.get("CXX")
    for command in [[cxx], cxx.split()] if cxx else [["g++"], ["clang++"], ["c++"]]:
        if command and (found := shutil.which(command[0])):
            return [found, *command[1:]]
    if cxx:
        raise MissingError(f"CXX names {(cxx.split() or [cxx])[0]}, which does not exist")
    return []


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _run(command: Sequence[str], *, seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the compiler, which speaks English then.

    Raises:
        MissingError: It cannot be run, or takes longer.
    """
    environment = {**os.environ, "LC_ALL": "C", **variables}
    try:
        return subprocess.run(
            command, capture_output=True, errors="replace", timeout=seconds, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"the C++ compiler failed: {error}") from None


def _describe_processor() -> str:
    """Return the facts about the processor that -march=native depends on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    return platform.machine() + "\n".join(dict.fromkeys(line for line in lines if line.startswith(names)))


def _compile(compiler: Sequence[str], libraries: Sequence[str], path: Path) -> None:
    # The compiler does not write into the cache, where its output would stay if it is killed.
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / path.name
        command = [*compiler, *FLAGS, "-o", str(output), str(SOURCE), *libraries]
        done = _run(command, seconds=300, TMPDIR=folder)  # where its own files are removed if it is killed
        if done.returncode:
            # A linker's own line often lacks that word, and the compiler's last line has it.
            lines = [
                line for line in done.stderr.splitlines() if re.search("error|cannot find|failed:", line)
            ]
            reason = lines[0] if lines else f"{shlex.join(compiler)} ended with status {done.returncode}"
            raise MissingError(f"the C++ compiler failed: {reason}")
        if not output.exists():
            raise MissingError(f"the C++ compiler failed: {shlex.join(compiler)} wrote no file")
        files.atomic_write(path, _seal(output.read_bytes()))


def _seal(library: bytes) -> bytes:
    """Return a library with its digest after its end, where no loader looks.

    A library that was cut off or changed in the cache would end every process that loads it.
    """
    return library + hashlib.sha256(library).digest()


@functools.cache
def find_kernel(kernels: ctypes.CDLL, function: str, type_name: str) -> Any:
    """Return a kernel of the library, which keeps its address in a variable.

    Args:
        kernels: Result of `load_kernels`.
        function: The kernel's name in kernels.cpp.
        type_name: The name of the type that it is compiled for.
    """
    address: Any = ctypes.c_void_p.in_dll(kernels, f"{function}_{type_name}").value
    return ctypes.CFUNCTYPE(RESULT_TYPES.get(function))(address)


@functools.cache
def find_sgemm() -> int | None:
    """Return the address of OpenBLAS's `cblas_sgemm`, one thread a call; None where there is none."""
    # The kernels call it from OpenMP's threads. Its own, if it started any, would take their cores.
    with _environment_lock, host.set_variables({"OPENBLAS_NUM_THREADS": "1"}):
        try:
            package = importlib.import_module("scipy_openblas32")
            openblas = ctypes.CDLL(str(Path(package.get_lib_dir()) / package.get_library(fullname=True)))
            return ctypes.cast(openblas.scipy_cblas_sgemm, ctypes.c_void_p).value
        except (ImportError, OSError, AttributeError, IndexError):
            return None
