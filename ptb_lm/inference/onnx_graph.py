"""A trained model as an ONNX graph with standard operators only.

It is written operator by operator, because torch's exporter fixes the number of time steps.

Shapes: B = batch, T = time steps, V = vocabulary, E = embedding width, I = a layer's input width, H = hidden
units, L = layers. ONNX has gates in the order i, o, f, g; canonical weights in the order i, f, g, o.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model.config import Config

OPSET = 17
IR_VERSION = 8  # the one of runtimes that know this opset
INPUTS, OUTPUTS = ("words", "h", "c"), ("logits", "h_after", "c_after")
LARGEST_FILE = (1 << 31) - 1  # bytes: protobuf counts them in 32 bits
LAYER_BYTES = 1 << 12  # largest description of a layer, besides its numbers


def model(
    config: Config, weights: Mapping[str, NDArray[Any]], words: Sequence[str], *, steps: int | None
) -> onnx.ModelProto:
    """Return the model; its batch is of any size.

    Args:
        config: The hyper-parameters, of the cell lstm.
        weights: Canonical parameters (model/parameters.py).
        words: The vocabulary, in the order of the ids; it is kept in the file's metadata.
        steps: T. None: any.

    Raises:
        UserError: It would be larger than a file of this format can be.
    """
    vocabulary = json.dumps(list(words))
    _check_size(config, weights, vocabulary)
    arrays, nodes = _network(config, weights)
    graph = helper.make_graph(
        nodes,
        "ptb_lm",
        *_values(config, len(words), "time" if steps is None else steps),
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()],
    )
    onnx_model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ptb_lm",
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


def _network(
    config: Config, weights: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], list[onnx.NodeProto]]:
    """Return the parameters and nodes of the whole network, from words to logits."""
    arrays: dict[str, NDArray[Any]] = {
        "embedding": weights["embedding"],
        "softmax.bias": weights["softmax.bias"],
        "one": np.array([1], np.int64),
    }
    layers = range(config.num_layers)
    nodes = [
        helper.make_node("Transpose", ["words"], ["words_TB"], perm=[1, 0]),
        helper.make_node("Gather", ["embedding", "words_TB"], ["output_TBE"]),
        helper.make_node("Split", ["h"], [f"h.{layer}" for layer in layers], axis=0),
        helper.make_node("Split", ["c"], [f"c.{layer}" for layer in layers], axis=0),
    ]
    top = "output_TBE"
    for layer in layers:
        layer_arrays, layer_nodes, top = _layer(layer, top, weights)
        arrays |= layer_arrays
        nodes += layer_nodes
    kernel = "softmax.kernel"
    if config.tie_weights:
        nodes.append(helper.make_node("Transpose", ["embedding"], [kernel], perm=[1, 0]))
    else:
        arrays[kernel] = weights[kernel]
    nodes += [
        helper.make_node("Concat", [f"h_after.{layer}" for layer in layers], ["h_after"], axis=0),
        helper.make_node("Concat", [f"c_after.{layer}" for layer in layers], ["c_after"], axis=0),
        helper.make_node("Transpose", [top], ["output_BTH"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["output_BTH", kernel], ["products_BTV"]),
        helper.make_node("Add", ["products_BTV", "softmax.bias"], ["logits"]),
    ]
    return arrays, nodes


def _layer(
    layer: int, below: str, weights: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], list[onnx.NodeProto], str]:
    """Return a layer's parameters and nodes, and the name of its output.

    Args:
        layer: Counted from 0, from the bottom.
        below: The name of its input.
        weights: Canonical parameters.
    """
    name = f"lstm.{layer}."
    bias = _gates(weights[name + "bias"])
    arrays = {
        name + "W": _gates(weights[name + "kernel"]).T[None],
        name + "R": _gates(weights[name + "recurrent_kernel"]).T[None],
        name + "B": np.pad(bias, (0, len(bias)))[None],  # the second bias, of the recurrence, is zero
    }
    inputs = [below, *arrays, "", f"h.{layer}", f"c.{layer}"]
    outputs = [name + "Y", f"h_after.{layer}", f"c_after.{layer}"]
    output = name + "output_TBH"
    nodes = [
        helper.make_node("LSTM", inputs, outputs, hidden_size=len(bias) // 4),
        helper.make_node("Squeeze", [name + "Y", "one"], [output]),  # the axis of directions
    ]
    return arrays, nodes, output


def _values(
    config: Config, vocabulary_size: int, time: str | int
) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Return the descriptions of the inputs and of the outputs; an axis with a name is of any length."""
    state: list[str | int | None] = [config.num_layers, "batch", config.hidden_size]
    number = TensorProto.FLOAT
    return (
        [
            helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", time]),
            *(helper.make_tensor_value_info(name, number, state) for name in INPUTS[1:]),
        ],
        [
            helper.make_tensor_value_info("logits", number, ["batch", time, vocabulary_size]),
            *(helper.make_tensor_value_info(name, number, state) for name in OUTPUTS[1:]),
        ],
    )


def _gates(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with its gates, along the last axis, in the order of ONNX."""
    i, f, g, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, o, f, g], axis=-1)
