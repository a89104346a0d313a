"""A file of tensors: atomic, checked, without pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write
from ptb_lm.model.backend import Arrays

KEY = "ptb_lm"  # one key, because safetensors writes several in no fixed order


def save(path: Path, arrays: Arrays, metadata: Mapping[str, Any]) -> None:
    """Write arrays and metadata (any JSON) to a safetensors file, atomically.

    Raises:
        OSError: The file cannot be written; an older one is as it was.
    """
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    atomic_write(path, safetensors.numpy.save(contiguous, metadata={KEY: json.dumps(metadata)}))


def load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read what `save` wrote: (arrays, metadata).

    Raises:
        UserError: The file is missing, truncated, or was not written by `save`.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get(KEY, "null"))
            if not isinstance(metadata, dict):
                raise UserError(f"{path} was not written by ptb_lm")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for name, array in arrays.items():
                if array.dtype.kind not in "biuf":  # where ml_dtypes is installed, bfloat16 is read
                    raise TypeError(f"{name}: {array.dtype}")
            return arrays, metadata
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    # TypeError: a kind of number that NumPy lacks. OSError: a folder, or no permission.
    except (safetensors.SafetensorError, ValueError, TypeError, OSError) as error:
        raise UserError(f"{path} is truncated or not a safetensors file ({error})") from None
