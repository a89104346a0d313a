"""A trained model as an ONNX graph with standard operators only.

It is written operator by operator, because torch's exporter fixes the number of time steps.

Shapes: B = batch, T = time steps, V = vocabulary, E = embedding width, I = a layer's input width, H = hidden
units, L = layers. ONNX has gates in the order i, o, f, g; canonical weights in the order i, f, g, o.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx.checker
import onnx.parser
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.config import Config

OPSET = 17
IR_VERSION = 8  # the one of runtimes that know this opset
LARGEST_FILE = (1 << 31) - 1  # bytes: protobuf counts them in 32 bits
LAYER_BYTES = 1 << 12  # largest description of a layer, besides its numbers

# ONNX's own notation (onnx.parser). Axes with a name are of any length.
_NETWORK = """
<ir_version: {ir_version}, opset_import: ["" : {opset}], producer_name: "ptb_lm">
ptb_lm (int64[batch, {time}] words, {state} h, {state} c)
    => (float[batch, {time}, {vocabulary_size}] logits, {state} h_after, {state} c_after) {{
  words_TB = Transpose <perm = [1, 0]> (words)
  output_TBE = Gather (embedding, words_TB)
  {h} = Split <axis = 0> (h)
  {c} = Split <axis = 0> (c)
  {layers}
  {softmax_kernel}
  h_after = Concat <axis = 0> ({h_after})
  c_after = Concat <axis = 0> ({c_after})
  output_BTH = Transpose <perm = [1, 0, 2]> ({top})
  products_BTV = MatMul (output_BTH, "softmax.kernel")
  logits = Add (products_BTV, "softmax.bias")
}}
"""
_LAYER = """
  "lstm.{number}.Y", "h_after.{number}", "c_after.{number}" = LSTM <hidden_size = {hidden}> (
    {below}, "lstm.{number}.W", "lstm.{number}.R", "lstm.{number}.B", , "h.{number}", "c.{number}")
  {output} = Squeeze ("lstm.{number}.Y", one)
"""  # Squeeze: without the axis of directions
_TIED_KERNEL = '"softmax.kernel" = Transpose <perm = [1, 0]> (embedding)'


def model(
    config: Config, weights: Mapping[str, NDArray[Any]], words: Sequence[str], *, steps: int | None
) -> onnx.ModelProto:
    """Return the model; its batch is of any size.

    Layers of different widths are made equally wide (parameters.widen_layers).

    Args:
        config: The hyper-parameters, of the cell lstm.
        weights: Canonical parameters (model/parameters.py).
        words: The vocabulary, in the order of the ids; it is kept in the file's metadata.
        steps: T. None: any.

    Raises:
        UserError: It would be larger than a file of this format can be.
    """
    vocabulary = json.dumps(list(words))
    config, weights = parameters.widen_layers(config, weights)
    _check_size(config, weights, vocabulary)
    onnx_model = onnx.parser.parse_model(_network(config, len(words), "time" if steps is None else steps))
    onnx_model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(array), name)
        for name, array in _parameters(config, weights).items()
    )
    helper.set_model_props(onnx_model, {"vocabulary": vocabulary})
    onnx.checker.check_model(onnx_model, full_check=True)
    return onnx_model


def _check_size(config: Config, weights: Mapping[str, NDArray[Any]], vocabulary: str) -> None:
    """Check, before anything is copied, that the model fits into a file."""
    # A layer has two biases in ONNX. The two ends of the network are described in less than a layer's room.
    biases = sum(array.nbytes for name, array in weights.items() if name.endswith(".bias"))
    numbers = sum(array.nbytes for array in weights.values()) + biases
    if numbers + len(vocabulary) + (config.num_layers + 1) * LAYER_BYTES > LARGEST_FILE:
        raise UserError(
            f"the model takes {host.format_size(numbers)}, and a file of the format onnx holds less than "
            "2 GiB; --format torchscript has no such limit"
        )


def _network(config: Config, vocabulary_size: int, time: str | int) -> str:
    """Return the whole network, from words to logits, in ONNX's notation."""
    layers = range(config.num_layers)
    outputs = ["output_TBE", *(f'"lstm.{number}.output_TBH"' for number in layers)]
    states = {
        name: ", ".join(f'"{name}.{number}"' for number in layers)
        for name in ("h", "c", "h_after", "c_after")
    }
    written = [
        _LAYER.format(
            number=number, hidden=config.hidden_size, below=outputs[number], output=outputs[number + 1]
        )
        for number in layers
    ]
    return _NETWORK.format(
        ir_version=IR_VERSION,
        opset=OPSET,
        time=time,
        state=f"float[{config.num_layers}, batch, {config.hidden_size}]",
        vocabulary_size=vocabulary_size,
        layers="".join(written),
        softmax_kernel=_TIED_KERNEL if config.tie_weights else "",
        top=outputs[-1],
        **states,
    )


def _parameters(config: Config, weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the parameters of the network, by their names in it."""
    arrays: dict[str, NDArray[Any]] = {
        "embedding": weights["embedding"],
        "softmax.bias": weights["softmax.bias"],
        "one": np.array([1], np.int64),
    }
    for number in range(config.num_layers):
        name = f"lstm.{number}."
        bias = _gates(weights[name + "bias"])
        arrays[name + "W"] = _gates(weights[name + "kernel"]).T[None]
        arrays[name + "R"] = _gates(weights[name + "recurrent_kernel"]).T[None]
        arrays[name + "B"] = np.pad(bias, (0, len(bias)))[None]  # the second bias, of the recurrence, is zero
    if not config.tie_weights:
        arrays["softmax.kernel"] = weights["softmax.kernel"]
    return arrays


def _gates(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with its gates, along the last axis, in the order of ONNX."""
    i, f, g, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, o, f, g], axis=-1)
