"""The record of a run of the benchmark: OUT/rows.jsonl, to which rows are added, and OUT/bench.json.

bench.json has the settings that must not change while rows are added: those of the request, the program and
the machine.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from ptb_lm.bench import rows
from ptb_lm.bench.checkout import FOLDER, HAS_CHECKOUT
from ptb_lm.bench.rows import Row
from ptb_lm.bench.selection import Options
from ptb_lm.bench.variants import original
from ptb_lm.common import files, host, json_files
from ptb_lm.common.errors import UserError

SETTINGS = "bench.json"
_REMEDY = "choose another --out, or remove that folder"

PACKAGES = (
    *("torch", "tensorflow", "tensorflow-cpu", "keras", "numpy"),
    *("jax", "jaxlib", "pytensor", "numba", "scipy-openblas32"),
)
# A program's text: Python, kernels with what they include, and what benchmarks/ declares.
KERNELS = ("*.c", "*.cc", "*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp", "*.pyx", "*.so")
SOURCES = ("*.py", *KERNELS, "*.toml")
# Variables that begin so change what is computed, by which kernels, or with which threads and memory.
PREFIXES = (
    *("ATEN_", "CUBLAS", "CUDA_", "CUDNN_", "CXX", "DNNL_", "GLIBC_TUNABLES", "GLOO_", "GOMP_", "JAX_"),
    "KERAS_",
    *("KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "NCCL_", "NUMBA_", "NVIDIA_TF32", "OMP_", "ONEDNN_"),
    *("OPENBLAS_", "PTB_LM_BEFORE", "PTB_LM_KERNELS", "PYTENSOR_", "PYTORCH_", "TF_", "TORCH", "TRITON_"),
    "XLA_",
)
# Exception: these change only messages, and the TensorFlow backend sets them itself.
MESSAGES = "TF_CPP_"

# Options that are no settings: a run may go on with other patterns, and each --add is there with its digest.
_LEFT_OUT = ("workloads", "variants", "added")
_CPU_KEYS = ("kernels", "float32_products")
# Not the commit: a commit of results changes no source. Each row has its own.
_MACHINE_KEYS = ("ptb_lm", "python", "processor", "cores", "cpu_quota")

Key = tuple[str, str, str, int]  # workload, pass, variant, round


class Record:
    """Rows, added one by one; an interrupted run finds its own rows again.

    Attributes:
        folder: The folder.
        path: The file with the rows.
        rows: All rows.

    Args:
        folder: Folder OUT, which exists.
        settings: Settings that all rows must share (run_settings), kept in bench.json.

    Raises:
        UserError: The folder holds figures of other settings, or a line of it is broken.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.path = folder / rows.FILE
        found, texts, _ = rows.read_lines(self.path) if self.path.exists() else ([], [], False)
        if disagreement := _disagreement(folder / SETTINGS, settings):
            if any(row.is_measured or row.status == rows.WRONG for row in found):
                raise UserError(f"{folder} {disagreement}; {_REMEDY}")
            found, texts = [], []  # they say why nothing was measured, by other settings
            files.atomic_write(folder / SETTINGS, json.dumps(settings, indent=1) + "\n")
        self.rows = found
        # Lines are kept as they are: a run that finds nothing to do changes no byte of them.
        files.atomic_write(self.path, b"".join(text + b"\n" for text in texts))

    def add(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns.

        The row replaces refusals of the same variant and pass from earlier sessions, and if it is measured,
        its note tells the newest: what fails now and then is no clean result. They stay if it only repeats
        one of them, or measures a round that was measured before. A `wrong` row always stays: whoever tries
        until it passes would time it in the end.

        Raises:
            OSError: The disk is full, for example; `filename` is set.
        """
        earlier = [each for each in self.rows if _is_earlier_refusal(each, row)]
        if earlier and row.is_measured and _key(row) in self.measured_rows():
            earlier = []
        if any((each.status, each.reason) == (row.status, row.reason) for each in earlier):
            return
        if earlier and row.is_measured:
            before = f"{earlier[-1].status} before: {earlier[-1].reason}"
            row = msgspec.structs.replace(row, note=f"{row.note}; {before}" if row.note else before)
        line = rows.to_lines([row])  # before anything changes, as it may hold what no line can
        self.rows = [*(each for each in self.rows if each not in earlier), row]
        if earlier:
            files.atomic_write(self.path, rows.to_lines(self.rows))
            return
        with files.name_in_errors(self.path), self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def rows_of(self, workload: str) -> list[Row]:
        """Return all rows of a workload."""
        return [row for row in self.rows if row.workload == workload]

    def measured_rows(self) -> dict[Key, Row]:
        """Return the measured rows by workload, pass, variant and round."""
        return {_key(row): row for row in self.rows if row.is_measured}

    def wrong_programs(self, workload: str) -> dict[str, str]:
        """Return the first reason for each program that computed something else than the reference.

        A program that is measured twice, by two names, is listed by the first.
        """
        return {
            original(row.variant): row.reason
            for row in reversed(self.rows_of(workload))
            if row.status == rows.WRONG
        }


def _disagreement(path: Path, settings: Mapping[str, Any]) -> str:
    """Describe all differences from the settings that were kept; "" if there is none."""
    if not path.exists():
        return f"has rows, but no {path.name}"
    found = json_files.parse(path.read_bytes(), path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object")
    # What only one of the two says counts too: a variable that was set and is not, or the reverse.
    pairs = {name: (found.get(name), settings.get(name)) for name in {**settings, **found}}
    changed = "; ".join(
        f"{name} was {was!r}, now {now!r}" for name, (was, now) in pairs.items() if was != now
    )
    return f"holds rows of another measurement ({changed})" if changed else ""


def _key(row: Row) -> Key:
    return row.workload, row.pass_name, row.variant, row.round


def _is_earlier_refusal(row: Row, now: Row) -> bool:
    """Return whether a row says why what another one is about was not possible in an earlier session."""
    same = (row.workload, row.variant, row.pass_name) == (now.workload, now.variant, now.pass_name)
    return same and row.session != now.session and not row.is_measured and row.status != rows.WRONG


def run_settings(
    options: Options, *, gpu: str | None, cpu: Mapping[str, str], added: Mapping[str, str]
) -> dict[str, Any]:
    """Return the settings that all rows of a record share: the request, the program and the machine.

    Nothing is imported to find them out: a framework that is measured is loaded by its workers alone.

    Args:
        options: Options of the run.
        gpu: Name of the CUDA device; None on a CPU.
        cpu: Kernels and library by which torch's models compute on a CPU: a compiler may have come or gone.
        added: Digest of the source of each NAME=MODULE:FUNCTION in `options.added`.
    """
    environment = host.environment()
    sources = [Path(__file__).resolve().parents[2], *[FOLDER, FOLDER.parent / "examples"] * HAS_CHECKOUT]
    return {
        **{name: value for name, value in asdict(options).items() if name not in _LEFT_OUT},
        **{name: environment.get(name) for name in _MACHINE_KEYS},
        "gpu": gpu,
        **versions(),
        "source": " ".join(map(sources_digest, sources)),
        **{f"--add {given}": found for given, found in added.items()},
        **variables(),
        **{name: cpu.get(name) for name in _CPU_KEYS},
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute, by name; of those that are installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def variables() -> dict[str, str]:
    """Return the variables of this process that may change what is measured."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) and not name.startswith(MESSAGES)
    }


def sources_digest(folder: Path) -> str:
    """Return a SHA-256 of the names and the text of all sources in a folder."""
    return _digest(folder, (path for pattern in SOURCES for path in folder.rglob(pattern)))


def module_digest(name: str) -> str:
    """Return a SHA-256 of the text of a module of the user's own, which this process has imported.

    Returns:
        That of all sources of its package. Or that of its file, of what it imports from beside it, and of the
        kernels there; "" where it has no file.
    """
    top, *_ = name.split(".")
    if folders := getattr(sys.modules[top], "__path__", None):
        return " ".join(sources_digest(Path(folder)) for folder in folders)
    # Not as an attribute, at which a lazy module may begin an import.
    scopes = {each: getattr(module, "__dict__", {}) for each, module in sys.modules.copy().items()}
    located = {each: Path(str(scope.get("__file__") or "")) for each, scope in scopes.items()}
    files = {each: path for each, path in located.items() if path.is_file()}
    if top not in files:
        return ""
    folder = files[top].parent
    texts = {
        path
        for each, path in files.items()
        if path.parent == folder or folder / each.partition(".")[0] in path.parents
    }
    places = {path.parent for path in texts}
    kernels = (path for place in places for pattern in KERNELS for path in place.glob(pattern))
    return _digest(folder, (*texts, *kernels))


def _digest(folder: Path, paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    # Emacs marks a file that is edited by a link to nothing, of nearly the same name.
    for path in sorted({path for path in paths if path.is_file()}):
        total.update(f"{path.relative_to(folder).as_posix()}\n".encode(errors="backslashreplace"))
        total.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
