"""The kernels' shared library: compiled for this machine at its first use, and kept in a cache."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ptb_lm.common import files

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")


class MissingError(Exception):
    """This machine has no kernels; the message says why."""


def load() -> ctypes.CDLL:
    """Return the library; compile it first if needed.

    Raises:
        MissingError: This machine has no library.
    """
    if sys.platform != "linux":
        raise MissingError("they exist only for Linux")
    try:
        compiler = _compiler()
        libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
        path = files.cache_folder() / f"kernels-{_key(compiler, libraries)}.so"
        if path.exists():
            try:
                return _loaded(path)
            except OSError:  # a crash of the machine may have cut it off
                path.unlink(missing_ok=True)
        _compile(compiler, libraries, path)
    except OSError as error:
        raise MissingError(f"the kernels cannot be compiled: {error}") from None
    try:
        return _loaded(path)
    except OSError as error:
        raise MissingError(f"the compiled kernels cannot be loaded: {error}") from None


def _loaded(path: Path) -> ctypes.CDLL:
    """Load the library: a temporary copy of it where the cache's file system is mounted noexec.

    Raises:
        OSError: It is no library that can be loaded.
        MissingError: The temporary folder's file system is mounted noexec, too.
    """
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


def _compiler() -> list[str]:
    """Return the command of the compiler: CXX may give it arguments, as in `ccache g++`."""
    wanted = os.environ.get("CXX")
    for command in [[wanted], wanted.split()] if wanted else [["g++"], ["clang++"], ["c++"]]:
        if command and (found := shutil.which(command[0])):
            return [found, *command[1:]]
    if wanted:
        raise MissingError(f"CXX names {(wanted.split() or [wanted])[0]}, which does not exist")
    raise MissingError("there is no C++ compiler; install g++ or set CXX")


def _key(compiler: Sequence[str], libraries: Sequence[str]) -> str:
    """Return a name for what the compiler makes of the source on this machine."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    source, command = SOURCE.read_text(encoding="utf-8"), [*compiler, *FLAGS, *libraries]
    facts = [source, *command, version.stdout, torch.__version__, _processor()]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what -march=native depends on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    kept = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    return platform.machine() + "\n".join(dict.fromkeys(line for line in lines if line.startswith(kept)))


def _compile(compiler: Sequence[str], libraries: Sequence[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*compiler, *FLAGS, "-o", str(made), str(SOURCE), *libraries]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingError(f"the C++ compiler failed: {error}") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["without a word"]
            raise MissingError(f"the C++ compiler failed: {lines[0]}")
        with made.open("rb") as file:
            os.fsync(file.fileno())  # half a library would end every later process that loads it
        made.replace(path)  # at once, whoever else compiles it now
