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


def executed(layer: Layer, execution: str, *, window: tuple[int, int] | None = None) -> Layer:
    """Return a layer as --execution wants it run; it has the parameters of the one given.

    Args:
        layer: The layer, on its device.
        execution: "eager": as it is; "compile": torch.compile; "jit": TorchScript.
        window: (B, T) of what it will be given, where a resumed run must compute what one that never stopped
            does, to the bit.

    Raises:
        UserError: torch.compile would find no C++ compiler.
    """
    if execution == "compile":
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            raise UserError("--execution compile needs a C++ compiler; install g++ or set CXX")
        # Layers of all sizes share a cache, and beyond its limit torch would quietly run them as they are.
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        # Who asks for fp32 means float32, whatever a GPU could do faster; --precision tf32 is there for more.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        # For each shape by itself: a layer of another size must not make it compile for sizes left open.
        return cast(Layer, torch.compile(layer, dynamic=False))
    if execution == "jit":
        with warnings.catch_warnings():
            # That TorchScript is deprecated is known; it is here to be measured while it exists.
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted = cast(Layer, torch.jit.script(layer))
        if window is not None:
            _profile(scripted, layer, *window)
        return scripted
    return layer


def _profile(scripted: Layer, layer: Layer, batch_size: int, steps: int) -> None:
    """Make the runs that TorchScript profiles, which round otherwise than the optimised ones that follow.

    Those with a gradient and those without are optimised apart.
    """
    zeros = next(layer.parameters()).new_zeros
    x_TBI = zeros(steps, batch_size, layer.input_size)
    state = layer.zero_state(batch_size)
    output_TBH, _ = scripted(x_TBI.clone().requires_grad_(), state)
    output_TBH.sum().backward()
    layer.zero_grad()
    with torch.no_grad():
        scripted(x_TBI, state)
