"""A trained model in the formats of other programs.

All have the same inputs: words [batch, time], and h and c [layers, batch, hidden] before the first word, both
zero where a text begins. All have the same outputs: logits [batch, time, vocabulary], and h and c after the
last word.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ptb_lm.common.files import atomic_write
from ptb_lm.model.config import Config


def write_model(
    path: Path,
    format_name: str,
    config: Config,
    weights: Mapping[str, NDArray[Any]],
    words: Sequence[str],
    *,
    steps: int | None,
) -> int | None:
    """Write a model.

    Args:
        path: The file; it is written completely or not at all.
        format_name: A key of ptb_lm.export.FORMATS.
        config: The hyper-parameters, of the cell lstm.
        weights: Canonical parameters (model/parameters.py).
        words: The vocabulary, in the order of the ids; each format keeps it, too.
        steps: The length of the time axis. None: any, or 1 for "torch-export".

    Returns:
        The length of the time axis in the file; None if it is any.

    Raises:
        OSError: The folder is not writable, or the disk is full.
    """
    # Each format imports its library alone.
    if format_name == "onnx":
        from ptb_lm.inference.export import onnx_graph

        atomic_write(path, onnx_graph.model(config, weights, words, steps=steps).SerializeToString())
        return steps
    from ptb_lm.inference.export import torch_module

    module = torch_module.to_torch(config, weights)
    if format_name == "torchscript":
        atomic_write(path, torch_module.to_torchscript(module, words))
        return None
    atomic_write(path, torch_module.to_program(module, words, steps=steps or 1))
    return steps or 1
