"""Run the layers of a training step as they are, compiled, or scripted.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

import dataclasses
import os
import shutil
import warnings
from typing import cast

import torch

from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.ranks import Ranks
from ptb_lm.torch_backend.cells import Layer


def of_ranks(choice: Choice, ranks: Ranks) -> Choice:
    """Return the choice as several ranks compute it: not as a CUDA graph, which has not been tried yet.

    Raises:
        UserError: It asks for one.
    """
    if ranks.size == 1:
        return choice
    if choice.execution == "graph":
        raise UserError("--execution graph is for one process: several exchange gradients within the step")
    return dataclasses.replace(choice, execution="eager") if choice.execution == "auto" else choice


def executed(layer: Layer, execution: str, *, window: tuple[int, int] | None = None) -> Layer:
    """Return a layer that runs as --execution says, with the same parameters.

    Args:
        layer: The layer, on its device.
        execution: "eager": as it is; "compile": torch.compile; "jit": TorchScript.
        window: (B, T) of its inputs, if a resumed run must compute what a run that never stopped
            does, to the bit.

    Raises:
        UserError: torch.compile would find no C++ compiler.
    """
    if execution == "compile":
        check_compiler()
        # Layers of all sizes share a cache. Above its limit torch would silently not compile them.
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        # fp32 means exact float32, even if a GPU could be faster; --precision tf32 is the faster choice.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        # Compile each shape separately; otherwise a second size would make it compile for variable sizes.
        return cast(Layer, torch.compile(layer, dynamic=False))
    if execution == "jit":
        with warnings.catch_warnings():
            # TorchScript is deprecated. It is offered so that it can be measured.
            warnings.filterwarnings("ignore", r"`torch\.jit\.")
            scripted = cast(Layer, torch.jit.script(layer))
        if window is not None:
            _profile(scripted, layer, *window)
        return scripted
    return layer


def check_compiler() -> None:
    """Check that torch.compile will find its C++ compiler, which CXX names without arguments.

    Raises:
        UserError: It will not.
    """
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise UserError(
            "--execution compile needs a C++ compiler; install g++ or set CXX to one, without arguments"
        )


def _profile(scripted: Layer, layer: Layer, batch_size: int, steps: int) -> None:
    """Run the steps that TorchScript profiles. They round differently from the optimised steps after them.

    Steps with a gradient and steps without one are optimised separately.
    """
    zeros = next(layer.parameters()).new_zeros
    x_TBI = zeros(steps, batch_size, layer.input_size)
    state = layer.zero_state(batch_size)
    output_TBH, _ = scripted(x_TBI.clone().requires_grad_(), state)
    output_TBH.sum().backward()
    layer.zero_grad()
    with torch.no_grad():
        scripted(x_TBI, state)
