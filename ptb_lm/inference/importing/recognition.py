"""Which tensors of a model from elsewhere are its embedding, its recurrent layers and its softmax.

The ends of their names and their shapes tell.

Shapes: V = vocabulary, N = units that meet a word: the embedding's width, or the top layer's units.
"""

import re
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.errors import UserError
from ptb_lm.model import cells, parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.config import Config

CELL_OF_GATES = {4: cells.LSTM, 3: "gru"}  # torch has their gates in the canonical order
KERAS_GRU = (1, 0, 2)  # where Keras' GRU has the canonical gates r, z, n; its LSTM has them in order
# A layer's kernel, recurrent kernel and biases. Keras' GRU has two biases in one tensor.
TORCH_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
KERAS_NAMES = ("kernel", "recurrent_kernel", "bias")
SHOWN = 6  # tensors in an error

_TORCH_NAME = re.compile(r"((?:weight|bias)_(?:ih|hh))(?:_l(\d+))?")
_WRAPPER = re.compile(r"(^|\.)module\.")  # what DataParallel and AWD-LSTM's weight drop call what they wrap
_RAW = "_raw"  # how weight drop names the weights without dropout, which are those of evaluation
_EMBEDDING = re.compile("emb|encoder|lookup|wte", re.IGNORECASE)


def recognize(tensors: Arrays, vocabulary_size: int) -> tuple[dict[str, Any], Arrays, list[str]]:
    """Return a model from elsewhere as a run keeps it.

    All layers of a run are equally wide. A layer with fewer units gets further ones, whose weights are zero:
    their state stays zero, and so does the gradient with respect to these weights.

    Args:
        tensors: The model's parameters, by the names that its program gave them.
        vocabulary_size: V.

    Returns:
        The hyper-parameters that the shapes determine, by name; the parameters in canonical names and
        layouts; and sentences about what was recognized.

    Raises:
        UserError: It is no such model, or the part that a tensor has in it is not clear.
    """
    kind, weights = "ptb_lm", tensors
    if "embedding" not in tensors or not any(map(parameters.owner, tensors)):
        kind, weights = _translate(tensors, vocabulary_size)
    cell, tied = parameters.cell_of(weights).name, "softmax.kernel" not in weights
    recurrent = (f"{cell}.{number}.recurrent_kernel" for number in range(len(weights)))
    units = [len(weights[name]) for name in recurrent if name in weights] or [1]
    hidden, width = max(units), units[-1] if tied else weights["embedding"].shape[-1]
    expected = parameters.shapes_of_sizes(vocabulary_size, width, units, cell=cell, tie_weights=tied)
    parameters.check_shapes(weights, expected)
    sizes: dict[str, Any] = {
        "cell": cell,
        "num_layers": len(units),
        "hidden_size": hidden,
        "embedding_size": 0 if tied or width == hidden else width,
        "tie_weights": tied,
    }
    sentences = [
        f"tensors of {kind}: {vocabulary_size:,} words, embedding {width:,}, {cell} layers of "
        f"{', '.join(f'{each:,}' for each in units)} units, softmax {'' if tied else 'not '}tied to the "
        f"embedding; {parameters.count(weights):,} parameters"
    ]
    if len({*units}) > 1:
        sentences.append(
            f"a run's layers are equally wide: each has {hidden:,} units here, and the weights of units that "
            "the file lacks are zero, which changes no score"
        )
    if zeros := [name for name, array in weights.items() if name.endswith("bias") and not array.any()]:
        sentences.append(f"biases that the file lacks, or that are zero there: {', '.join(zeros)}")
    shapes = parameters.shapes(Config(**sizes), vocabulary_size)
    # The columns of a gate; other parameters have no gates.
    columns = {name: units[int(name.split(".")[1])] for name in weights if parameters.owner(name)}
    widened = {
        name: array if array.shape == shape else _widen(array, shape, columns.get(name) or array.shape[-1])
        for name, shape in shapes.items()
        for array in (weights[name],)
    }
    return sizes, widened, sentences


def _widen(array: NDArray[Any], shape: tuple[int, ...], columns: int) -> NDArray[Any]:
    """Return a parameter in a larger shape, with zeros where it has none; each gate has so many columns."""
    gates = array.shape[-1] // columns
    old, new = ((*each[:-1], gates, each[-1] // gates) for each in (array.shape, shape))
    return np.pad(array.reshape(old), [(0, n - o) for o, n in zip(old, new, strict=True)]).reshape(shape)


def _translate(tensors: Arrays, vocabulary_size: int) -> tuple[str, Arrays]:
    """Return the program whose names tensors have, and the tensors in canonical names and layouts."""
    tensors = {_WRAPPER.sub(r"\1", name): array for name, array in tensors.items()}
    modules: dict[str, Arrays] = defaultdict(dict)
    for name, array in tensors.items():
        module = _module(name)
        leaf = name.removeprefix(module)
        if match := _TORCH_NAME.fullmatch(leaf.removesuffix(_RAW)):
            module, leaf = f"{module}l{match[2] or 0}", match[1]
        if name + _RAW not in tensors:  # else it is what dropout has left of the raw weights
            modules[module][leaf] = array
    layers = [name for name, leaves in modules.items() if {TORCH_NAMES[1], KERAS_NAMES[1]} & leaves.keys()]
    if len({re.sub(r"_?\d+", "", name) for name in layers}) != 1:
        raise UserError(
            "there must be recurrent layers (weight_hh_l0, recurrent_kernel), counted by their names; there "
            f"are {', '.join(layers) or _shown(tensors)}"
        )
    layers.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    is_raw, is_torch = any(name.endswith(_RAW) for name in tensors), TORCH_NAMES[1] in modules[layers[0]]
    kind = "AWD-LSTM" if is_raw else "torch.nn" if is_torch else "Keras"
    others = [module for module in modules if module not in layers]
    outer = {module + leaf: array for module in others for leaf, array in modules[module].items()}
    weights = _embedding_and_softmax(outer, vocabulary_size)
    for number, name in enumerate(layers):
        cell, layer = _canonical_layer(name, modules[name])
        weights |= {f"{cell}.{number}.{short}": array for short, array in layer.items()}
    return kind, weights


def _canonical_layer(name: str, leaves: Arrays) -> tuple[str, Arrays]:
    """Return the cell of a layer, and its parameters by the cell's names."""
    is_torch = TORCH_NAMES[1] in leaves
    names = TORCH_NAMES if is_torch else KERAS_NAMES
    if leaves.keys() not in ({*names}, {*names[:2]}):
        raise UserError(f"the layer {name} must have {', '.join(names)}, or no bias; it has {_shown(leaves)}")
    kernel, recurrent = (leaves[each].T if is_torch else leaves[each] for each in names[:2])
    biases = [row for each in names[2:] if each in leaves for row in np.atleast_2d(leaves[each])]
    hidden, width = recurrent.shape if recurrent.ndim == 2 else (0, 0)
    cell = CELL_OF_GATES.get(width // hidden if hidden and width % hidden == 0 else 0)
    if cell is None or len(biases) > 2 or {kernel.shape[1:], *map(np.shape, biases)} != {(width,)}:
        raise UserError(f"the layer {name} is no LSTM or GRU by its shapes: {_shown(leaves)}")
    if cell != cells.LSTM and not is_torch:
        if len(biases) != 2:
            raise UserError(
                f"the layer {name} is a GRU without reset_after=True, which no cell has: {_shown(leaves)}"
            )
        parts = [np.split(array, 3, axis=-1) for array in (kernel, recurrent, *biases)]
        ordered = (np.concatenate([part[gate] for gate in KERAS_GRU], axis=-1) for part in parts)
        kernel, recurrent, *biases = ordered
    first, second = [*biases, *np.zeros((2, width), np.float32)][:2]
    layer = {"kernel": kernel, "recurrent_kernel": recurrent, "bias": first + second}
    if cell != cells.LSTM:  # the reset gate multiplies the candidate's second bias
        layer["bias"][2 * hidden :], layer["recurrent_bias"] = first[2 * hidden :], second[2 * hidden :]
    return cell, layer


def _embedding_and_softmax(others: Arrays, vocabulary_size: int) -> Arrays:
    """Return the parameters outside of the layers; without `softmax.kernel` if it is the embedding."""
    tables: Arrays = {}
    biases: Arrays = {}
    for name, array in others.items():
        if array.shape == (vocabulary_size,):
            biases[name] = array
        elif array.ndim == 2 and vocabulary_size in array.shape:
            is_kernel = name.endswith("kernel") or len(array) != vocabulary_size
            table_VN = array.T if is_kernel else array
            if not any(np.array_equal(table_VN, known_VN) for known_VN in tables.values()):  # else tied
                tables[name] = table_VN
        else:
            raise UserError(
                f"the tensor {name!r} of shape {array.shape} has no part in a language model of "
                f"{vocabulary_size:,} words (the vocabulary's lines): an embedding, LSTM or GRU layers that "
                "read forwards, a softmax"
            )
    with_bias = [name for name in tables if f"{_module(name)}bias" in biases]
    softmax = with_bias if len(with_bias) == 1 else [name for name in tables if not _EMBEDDING.search(name)]
    if len(biases) > 1 or (len(tables) != 1 and (len(tables), len(softmax)) != (2, 1)):
        raise UserError(
            f"which tensor is the embedding of {vocabulary_size:,} words, and which the softmax's kernel or "
            f"bias, is not clear: {_shown(others)}"
        )
    found = {"softmax.bias": sum(biases.values(), np.zeros(vocabulary_size, np.float32))}
    for name, table_VN in tables.items():
        is_softmax = len(tables) == 2 and name in softmax
        found["softmax.kernel" if is_softmax else "embedding"] = table_VN.T if is_softmax else table_VN
    return found


def _module(name: str) -> str:
    """Return a tensor's name up to its last part."""
    return name[: max(name.rfind("."), name.rfind("/")) + 1]


def _shown(tensors: Arrays) -> str:
    """Return names and shapes, for an error."""
    shown = [f"{name} {array.shape}" for name, array in tensors.items()]
    return ", ".join([*shown[:SHOWN], *["..."][: len(shown) - SHOWN]]) or "none"
