"""Files of tensors: atomic, without pickle, with a hash of all they say; a training state is such a file."""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write, refuse_pipe
from ptb_lm.model.backend import Arrays
from ptb_lm.training.metrics import JsonObject, Progress

DIGEST_KEY = "content_sha256"  # a key of the metadata; to change a file on purpose, remove it
SPARE_BYTES = 2**26  # more than reading needs in addition to the tensors
METADATA_KEY = "ptb_lm"  # one key, because safetensors writes several in no fixed order
STATE_METADATA = ("config", "progress", "corpus_sha256")  # keys of the metadata of a training state


def save(path: Path, arrays: Arrays, metadata: Mapping[str, Any]) -> None:
    """Write arrays and metadata (any JSON) to a safetensors file, atomically.

    Raises:
        OSError: The file cannot be written; an older one is as it was.
    """
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    check_room(2 * sum(array.nbytes for array in contiguous.values()))
    values = json.dumps({DIGEST_KEY: _digest(contiguous, metadata), **metadata})
    atomic_write(path, safetensors.numpy.save(contiguous, metadata={METADATA_KEY: values}))


def load(
    path: Path, *, known: Collection[str] | None = None, remedy: str = "restore it"
) -> tuple[Arrays, dict[str, Any]]:
    """Read a file that `save` wrote: (arrays, metadata).

    Args:
        path: The file.
        known: Keys that the metadata may have; None: any. A hash with a damaged name is not a known key.
        remedy: Advice for a file that another program wrote or changed, for the error.

    Raises:
        UserError: The file is missing, truncated, changed, or was not written by `save`.
    """
    refuse_pipe(path)
    try:
        check_room(2 * path.stat().st_size)
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
            if not isinstance(metadata, dict):
                raise UserError(f"{path} has no metadata of ptb_lm: {remedy}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for name, array in arrays.items():
                if array.dtype.kind not in "biuf":  # where ml_dtypes is installed, bfloat16 is read
                    raise TypeError(f"{name}: {array.dtype}")
    except FileNotFoundError:
        # safetensors raises it, too, for a file that may not be read.
        problem = "may not be read" if path.exists() else "is missing"
        raise UserError(f"{path} {problem}") from None
    # TypeError: a kind of number that NumPy lacks. OSError: a folder, or no permission.
    except (safetensors.SafetensorError, ValueError, TypeError, OSError, RecursionError) as error:
        raise UserError(f"{path} is truncated or not a safetensors file ({error})") from None
    digest = metadata.pop(DIGEST_KEY, None)
    if known is not None and (others := sorted(metadata.keys() - set(known))):
        raise UserError(f"{path} has an unknown key {others[0]!r} in its metadata")
    if digest is not None and digest != _digest(arrays, metadata):
        raise UserError(f"{path} has changed since it was saved (the SHA-256 differs): {remedy}")
    return arrays, metadata


class SavedState(NamedTuple):
    """The newest training state. A file of tensors holds it with a prefix for each kind of array."""

    weights: Arrays  # by canonical name
    training: Arrays  # the backend's other arrays
    progress: Progress
    averages: Arrays  # of the weights, by canonical name; none if none are kept, or not yet

    @classmethod
    def load(cls, path: Path) -> tuple["SavedState", JsonObject]:
        """Read what `save` wrote: the state, and the metadata of its file.

        Raises:
            UserError: The file is missing, truncated, damaged or foreign.
        """
        arrays, metadata = load(path)
        try:
            progress = Progress.from_json(metadata.get("progress"))
        except ValueError as error:
            raise UserError(f"{path} does not hold a training state: {error}") from None
        if others := sorted(metadata.keys() - set(STATE_METADATA)):
            raise UserError(f"{path} has an unknown key {others[0]!r} in its metadata")
        weights, training, averages = (
            {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
            for kind in ("weights.", "training.", "averages.")
        )
        return cls(weights, training, progress, averages), metadata

    def save(self, path: Path, *, config: JsonObject, corpus_sha256: str) -> None:
        """Write the state, and the configuration and the data that it belongs to, to a file of tensors."""
        kinds = {"weights": self.weights, "training": self.training, "averages": self.averages}
        arrays = {f"{kind}.{name}": array for kind, group in kinds.items() for name, array in group.items()}
        metadata = {"config": config, "progress": self.progress.to_json(), "corpus_sha256": corpus_sha256}
        save(path, arrays, metadata)


def _digest(arrays: Arrays, metadata: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that a file says: names, types, shapes, bytes and metadata."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype.name} {array.shape}\n".encode(errors="surrogatepass"))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_room(size: int) -> None:
    """Raise MemoryError if the process cannot get this many bytes: safetensors would hang, panic or abort."""
    np.empty(size + SPARE_BYTES, np.uint8)
