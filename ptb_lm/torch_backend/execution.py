"""How a training step's layers are run: as they are, compiled, or scripted."""

import os
import shutil
import warnings
from typing import cast

import torch

from ptb_lm.errors import UserError
from ptb_lm.torch_backend.cells import Layer


def executed(layer: Layer, execution: str) -> Layer:
    """Return a layer as --execution wants it run; it has the parameters of the one given.

    Args:
        layer: The layer.
        execution: "eager": as it is; "compile": torch.compile; "jit": TorchScript.

    Raises:
        UserError: torch.compile would find no C++ compiler.
    """
    if execution == "compile":
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            raise UserError("--execution compile needs a C++ compiler; install g++ or set CXX")
        return cast(Layer, torch.compile(layer))
    if execution == "jit":
        with warnings.catch_warnings():
            # That TorchScript is deprecated is known; it is here to be measured while it exists.
            warnings.simplefilter("ignore", DeprecationWarning)
            return cast(Layer, torch.jit.script(layer))
    return layer
