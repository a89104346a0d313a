"""The weights in a file of Keras, by name, of a model whose layers a run can have."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ptb_lm.common.errors import UserError

# What a model of Keras can be made of to become a run, with the values of a setting, the default first.
LAYERS: dict[str, dict[str, tuple[Any, ...]]] = {
    **{
        name: {
            "activation": ("tanh",),
            "recurrent_activation": ("sigmoid",),
            "go_backwards": (False,),
            "reset_after": (True,),
        }
        for name in ("LSTM", "GRU", "LSTMCell", "GRUCell")
    },
    **{name: {"activation": ("linear", "softmax")} for name in ("Dense", "Activation")},
    **{name: {} for name in ("InputLayer", "Embedding", "Dropout", "SpatialDropout1D")},
    "Softmax": {"axis": (-1,)},
    # What these hold has a row.
    **{name: {} for name in ("Sequential", "Functional", "Model", "TimeDistributed", "StackedRNNCells")},
    "RNN": {"go_backwards": (False,)},
    # What mask_zero adds to a Functional: of Keras 3, and of Keras 2.
    "NotEqual": {},
    "TFOpLambda": {"function": ("math.not_equal",)},
}
PARTS = ("layers", "cells", "layer", "cell")  # settings that hold such parts


def read_keras(path: Path) -> dict[str, Any]:
    """Return the arrays of a `.keras` file by name, as `read_hdf5` does."""
    with zipfile.ZipFile(path) as archive:
        return read_hdf5(io.BytesIO(archive.read("model.weights.h5")), archive.read("config.json"))


def read_hdf5(file: Path | BinaryIO, config: bytes = b"null") -> dict[str, Any]:
    """Return the arrays of an HDF5 file by name; the numbers in the names give the order of the layers.

    Args:
        file: The file, or its content.
        config: The model's configuration, in JSON, where the file itself has none.

    Raises:
        UserError: The configuration has a layer that a run cannot have, or an array lies in another file.
        ModuleNotFoundError: h5py is not installed.
    """
    import h5py

    names: list[str] = []
    with h5py.File(file, "r") as archive:
        model = json.loads(archive.attrs.get("model_config", config), object_hook=_check_object)
        _check_softmax(model or {})
        archive.visit(names.append)
        # In order; a layer's own number tells only when it was made. Nothing lists the layers of .weights.h5,
        # where they are numbered in order.
        listed = archive.get("model_weights", archive).attrs.get("layer_names", ())
        layers = [name.decode() if isinstance(name, bytes) else name for name in listed]
        # Recurrent layers may have any names, of which the number remains.
        recurrent = {part for name in names if "recurrent_kernel" in name for part in name.split("/")}
        order = {
            name: str(number) if name in recurrent else f"{number}/{name}"
            for number, name in enumerate(layers)
        }
        arrays = {
            name: archive[name]
            for name in names
            if isinstance(archive[name], h5py.Dataset) and not name.startswith(("optimizer", "metrics/"))
        }
        # HDF5 reads any file of this machine that a dataset names.
        if elsewhere := [name for name, array in arrays.items() if array.external or array.is_virtual]:
            raise UserError(f"the tensor {elsewhere[0]!r} lies in another file, which is not read")
        return {
            "/".join(order.get(part, part) for part in name.split("/")): array[()]
            for name, array in arrays.items()
        }


def _check_object(values: dict[str, Any]) -> dict[str, Any]:
    """Check an object of a model's configuration: each layer that it is or holds must be one of a run.

    Only `.keras` says that an object is a layer, and only of Keras' own. All others are recognized by what
    holds them: a user's own layers, operators such as +, and every layer in `.h5`.
    """
    for layer in [*_parts(values), *[values] * (values.get("module") == "keras.layers")]:
        _check_layer(str(layer.get("class_name")), layer.get("config", {}))
        nodes, name = layer.get("inbound_nodes") or [], layer.get("name")
        if len(nodes) > 1:
            raise UserError(f"the layer {name} is used twice, which a run cannot express")
        if any(_count_inputs(node) > 1 for node in nodes):
            raise UserError(f"the layer {name} is given its initial state, which a run cannot express")
    return values


def _parts(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers that an object of a model's configuration holds."""
    config = values.get("config")
    if isinstance(config, list):  # a Sequential of the first Keras
        config = {"layers": config}
    held = [config.get(part) for part in PARTS] if isinstance(config, dict) else []
    layers = [layer for part in held for layer in (part if isinstance(part, list) else [part])]
    return [layer for layer in layers if isinstance(layer, dict)]


def _count_inputs(node: Any) -> int:
    """Return how many tensors a layer is called with; a mask is none of them."""
    if isinstance(node, dict):  # of Keras 3
        arguments = [node.get("args"), {**node.get("kwargs", {}), "mask": None}]
        return json.dumps(arguments).count('"keras_history":')
    # Of Keras 2, which has a list for each tensor, but an operator's tensor alone.
    return 1 if isinstance(node[0], str) else len(node)


def _check_softmax(model: dict[str, Any]) -> None:
    """Check that a softmax is the last layer of a model; dropout and linear functions may follow it."""
    layers = [(str(layer.get("class_name")), layer.get("config", {})) for layer in _innermost(model)]
    functions = [
        (config.get("name"), "softmax" if kind == "Softmax" else config.get("activation"))
        for kind, config in layers
        if "Dropout" not in kind and (kind, config.get("activation")) != ("Activation", "linear")
    ]
    if wrong := [name for name, function in functions[:-1] if function == "softmax"]:
        raise UserError(f"{wrong[0]} is a softmax before the last layer, which a run cannot express")


def _innermost(layer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the layers of a model that hold no others, in order."""
    parts = _parts(layer)
    for part in parts:
        yield from _innermost(part)
    if not parts:
        yield layer


def _check_layer(kind: str, config: dict[str, Any]) -> None:
    settings = LAYERS.get(kind, {}).items()
    wrong = [
        f"{name}={config[name]!r}" for name, usual in settings if config.get(name, usual[0]) not in usual
    ]
    if wrong or kind not in LAYERS:
        raise UserError(
            f"a run cannot express the layer {config.get('name', kind)}: {' '.join([kind, *wrong])}"
        )
