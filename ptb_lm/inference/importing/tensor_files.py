"""Read the tensors of a file that another program wrote. No Python object in it is built or run."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch  # safetensors.numpy lacks bfloat16
import torch

from ptb_lm.errors import UserError
from ptb_lm.inference.importing.recognition import KERAS_NAMES
from ptb_lm.model.backend import Arrays

HDF5 = b"\x89HDF"  # how a file of Keras 2 begins, and one of Keras' weights alone
KERAS_WEIGHTS = "model.weights.h5"  # in a .keras file, which is a zip archive
# Keras' defaults for its LSTM and GRU, which are what a run's cells compute.
KERAS_DEFAULTS = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "go_backwards": False,
    "reset_after": True,
}


def read(path: Path) -> Arrays:
    """Return the floating-point tensors of a file by name, in float32; numbers and empty ones are left out.

    Its content tells what it is: torch's state_dict, safetensors, NumPy's .npz, Keras' .keras or .h5.

    Raises:
        UserError: It is none of these, is truncated, or has a number that is not finite.
        OSError: It cannot be opened.
    """
    with path.open("rb") as file:
        head = file.read(9)
    try:
        read_tensors = _reader(path, head)
        tensors = {name: torch.as_tensor(tensor).detach() for name, tensor in read_tensors(path).items()}
        floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        arrays: Arrays = {
            n: tensor.float().numpy() for n, tensor in floats.items() if tensor.ndim and len(tensor)
        }
    except (UserError, MemoryError):
        raise
    except Exception as error:  # whatever a library raises where a file is not what it seems
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise UserError(f"the weights in {path} cannot be read ({reason})") from None
    if wrong := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise UserError(f"{path}: the tensor {wrong[0]!r} has a number that is not finite")
    return arrays


def _reader(path: Path, head: bytes) -> Callable[[Path], Mapping[str, Any]]:
    members = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else []
    if KERAS_WEIGHTS in members:
        return _read_keras
    if any(name.endswith(".npy") for name in members):
        return lambda path: dict(np.load(path, allow_pickle=False))
    if head.startswith(HDF5):
        return _read_hdf5
    return safetensors.torch.load_file if head[8:] == b"{" else _read_torch


def _read_torch(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} is no state_dict. Whole models are not read, because that would run code from the file: "
            "save the tensors alone with torch.save(model.state_dict(), FILE)"
        ) from None
    inner = found.values() if isinstance(found, dict) else ()  # of a checkpoint: the model, the optimizer
    tables = [table for table in (found, *inner) if isinstance(table, dict)]
    states = [*filter(None, ({n: x for n, x in t.items() if isinstance(x, torch.Tensor)} for t in tables))]
    if len(states) != 1:
        raise UserError(f"{path} must hold the state_dict of one model, and holds {len(states)}")
    return states[0]


def _read_keras(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        json.loads(archive.read("config.json"), object_hook=_check_keras_layer)
        return _read_hdf5(io.BytesIO(archive.read(KERAS_WEIGHTS)))


def _read_hdf5(file: Path | BinaryIO) -> Arrays:
    import h5py  # TensorFlow and Keras bring it

    found: Arrays = {}

    def keep(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and not name.startswith("optimizer"):
            found[name.partition(":")[0]] = node[()]  # Keras 2 has names such as kernel:0

    with h5py.File(file, "r") as archive:
        json.loads(archive.attrs.get("model_config", "null"), object_hook=_check_keras_layer)
        archive.visititems(keep)
    return {_keras_name(name, found): array for name, array in found.items()}


def _keras_name(name: str, found: Arrays) -> str:
    """Return the name of a parameter that Keras 3 saves under its number among those of its layer."""
    folder, _, number = name.rpartition("/")
    second = found.get(f"{folder}/1")
    if second is None or not number.isdigit():  # an embedding's table is alone
        return name
    names = KERAS_NAMES if second.ndim == 2 else KERAS_NAMES[::2]
    return f"{folder}/{names[int(number)] if int(number) < len(names) else number}"


def _check_keras_layer(values: dict[str, Any]) -> dict[str, Any]:
    """Check a part of a model's configuration: a recurrent layer must be as Keras' defaults are."""
    for name, usual in KERAS_DEFAULTS.items():
        if "recurrent_activation" in values and values.get(name, usual) != usual:
            raise UserError(f"the layer {values.get('name')} has {name}={values[name]!r}, not {usual!r}")
    return values
