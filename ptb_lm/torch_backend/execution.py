"""How a training step's layers are run: as they are, compiled, or scripted.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

import os
import shutil
import warnings
from typing import cast

import torch

from ptb_lm.errors import UserError
from ptb_lm.torch_backend.cells import Layer


def executed(layer: Layer, execution: str, *, steps: int, batch_size: int) -> Layer:
    """Return a layer as --execution wants it run; it has the parameters of the one given.

    Args:
        layer: The layer, on its device.
        execution: "eager": as it is; "compile": torch.compile; "jit": TorchScript.
        steps: T, of the windows it will be given.
        batch_size: B, likewise.

    Raises:
        UserError: torch.compile would find no C++ compiler.
    """
    if execution == "compile":
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            raise UserError("--execution compile needs a C++ compiler; install g++ or set CXX")
        return cast(Layer, torch.compile(layer))
    if execution == "jit":
        return _scripted(layer, steps, batch_size)
    return layer


def _scripted(layer: Layer, steps: int, batch_size: int) -> Layer:
    with warnings.catch_warnings():
        # That TorchScript is deprecated is known; it is here to be measured while it exists.
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = cast(Layer, torch.jit.script(layer))
    # The first run is profiled and rounds otherwise than the optimised ones that follow. It is made here, so
    # that a resumed run computes what one that never stopped does.
    zeros = next(layer.parameters()).new_zeros
    x_TBI = zeros(steps, batch_size, layer.input_size).requires_grad_()
    h_BH = zeros(batch_size, layer.hidden_size)
    output_TBH, _ = scripted(x_TBI, (h_BH, h_BH))
    output_TBH.sum().backward()
    layer.zero_grad()
    return scripted
