"""Which tensors of a model from elsewhere are its embedding, its recurrent layers and its softmax.

The ends of their names and their shapes tell.

Shapes: V = vocabulary, H = hidden units, N = units that meet a word: the embedding's width, or the top
layer's units.
"""

import re
import textwrap
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.model import cells, parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.config import Config

# The names of a layer's parameters: kernel, recurrent kernel and biases. Keras' GRU has two biases in one
# tensor. Keras 3 numbers a layer's parameters in HDF5.
TORCH, KERAS = "torch.nn", "Keras"
NAMES = {
    TORCH: ("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
    KERAS: ("kernel", "recurrent_kernel", "bias"),
}
PARAMETER_INDEX = {name: index for names in (*NAMES.values(), "012") for index, name in enumerate(names)}
# By program and number of gates: the cell, how many biases there may be, and where the canonical gates are.
CELLS = {
    (TORCH, 4): (cells.LSTM, (0, 2), [0, 1, 2, 3]),
    (TORCH, 3): ("gru", (0, 2), [0, 1, 2]),
    (KERAS, 4): (cells.LSTM, (0, 1), [0, 1, 2, 3]),
    (KERAS, 3): ("gru", (2,), [1, 0, 2]),
}
ERROR_CHARACTERS = 400  # characters of names and shapes in an error

# The number of a layer may follow its parameter's name, as in weight_hh_l0. Weight drop calls the weights
# without dropout, which are those of evaluation, weight_hh_l0_raw. Keras 2 ends a name with :0.
_NAME = re.compile(r"(?P<module>(?:.*[./])?)(?P<leaf>.*?)(?P<layer>_l\d+)?(?P<raw>_raw)?(?::0)?", re.DOTALL)
_CANONICAL = re.compile(r"\.\d+\.recurrent_kernel$")
_EMBEDDING = re.compile("emb|encoder|lookup|wte", re.IGNORECASE)
# The names of a softmax that have such a part, too: unembed, output_embedding, embed_out.
_SOFTMAX = re.compile(r"(?:\b|_)(?:(?:un|de)_?emb|out(?:put)?(?:\b|_|emb))", re.IGNORECASE)
_BIAS = re.compile(r"bias|(?:\b|_)b(?:\b|_)", re.IGNORECASE)  # also softmax_b, out.b


def recognize(tensors: Arrays, vocabulary_size: int) -> tuple[dict[str, Any], Arrays, str]:
    """Return a model from elsewhere in a run's form.

    Args:
        tensors: The model's parameters, by the names that its program gave them.
        vocabulary_size: V.

    Returns:
        The hyper-parameters that the shapes determine, by name; the parameters in canonical names and
        layouts; and a sentence about what was recognized.

    Raises:
        UserError: It is no such model, or the part that a tensor has in it is not clear.
    """
    is_canonical = (
        "embedding" in tensors
        and any(parameters.owner(name) and _CANONICAL.search(name) for name in tensors)
        and all(array.ndim for array in tensors.values())
    )
    kind, weights = ("ptb_lm", tensors) if is_canonical else _translate(tensors, vocabulary_size)
    _check_words({name: weights[name] for name in weights if not parameters.owner(name)}, vocabulary_size)
    cell, is_tied = parameters.cell_of(weights), "softmax.kernel" not in weights
    units = [
        len(weights[name])
        for number in range(len(weights))
        if (name := f"{cell.name}.{number}.recurrent_kernel") in weights
    ] or [1]
    width = units[-1] if is_tied else weights["embedding"].shape[-1]
    sizes: dict[str, Any] = {
        "cell": cell.name,
        **{field: getattr(cell, name) for name, field in cells.CELLS[cell.name].options.items()},
        "num_layers": len(units),
        "hidden_size": max(units),
        "layer_sizes": tuple(units) if len({*units}) > 1 else (),
        "embedding_size": 0 if width == units[-1] else width,
        "tie_weights": is_tied,
    }
    in_order = parameters.shapes(Config(**sizes), vocabulary_size)
    parameters.check(weights, in_order)
    sentence = (
        f"tensors of {kind}: {vocabulary_size:,} words, embedding {width:,}, {cell.name} layers of "
        f"{', '.join(f'{each:,}' for each in units)} units, softmax {'' if is_tied else 'not '}tied to the "
        f"embedding; {parameters.count_scalars(weights):,} parameters"
    )
    return sizes, {name: weights[name] for name in in_order}, sentence


def _translate(tensors: Arrays, vocabulary_size: int) -> tuple[str, Arrays]:
    """Return the program whose names tensors have, and the tensors in canonical names and layouts.

    The names of the embedding and of the softmax follow the program's.
    """
    names = {name: match for name in tensors if (match := _NAME.fullmatch(name))}
    modules: dict[str, Arrays] = defaultdict(dict)
    # The raw weights come last, and take the place of what dropout has left of them. DataParallel and weight
    # drop call what they wrap module.
    for name in sorted(names, key=lambda name: bool(names[name]["raw"])):
        module, leaf, layer = names[name].group("module", "leaf", "layer")
        modules[re.sub(r"\bmodule\.", "", module) + (layer or "")][leaf] = tensors[name]
    layers = [
        module
        for module, leaves in modules.items()
        if any(PARAMETER_INDEX.get(leaf) == 1 and array.ndim == 2 for leaf, array in leaves.items())
    ]
    if len({re.sub(r"_?\d+", "", module) for module in layers}) != 1:
        raise UserError(
            "there must be recurrent layers (weight_hh_l0, recurrent_kernel) whose names differ in a number "
            f"only; found: {', '.join(layers) or _describe_shapes(tensors)}"
        )
    # By the numbers in each part of the name: lstm, which has none, is below lstm_1.
    layers.sort(
        key=lambda module: [list(map(int, re.findall(r"\d+", part))) for part in re.split("[./]", module)]
    )
    program = TORCH if NAMES[TORCH][1] in modules[layers[0]] else KERAS
    outer = {(m, leaf): array for m in modules if m not in layers for leaf, array in modules[m].items()}
    _check_words({"".join(name): array for name, array in outer.items()}, vocabulary_size)
    weights, tables = _embedding_and_softmax(outer, vocabulary_size, program)
    for number, module in enumerate(layers):
        cell, layer = _canonical_layer(module, modules[module], program)
        weights |= {f"{cell}.{number}.{name}": array for name, array in layer.items()}
    kind = "AWD-LSTM" if any(match["raw"] for match in names.values()) else program
    return f"{kind} ({tables})", weights


def _check_words(outside: Arrays, vocabulary_size: int) -> None:
    """Check that the weights have as many words as the vocabulary, if it is clear how many they have.

    It is the one size that all tensors outside of the layers share.
    """
    sizes = {size for array in outside.values() for size in array.shape}
    shared = [size for size in sizes if all(size in array.shape for array in outside.values())]
    if len(shared) == 1 and vocabulary_size not in sizes:
        raise UserError(
            f"the weights have {shared[0]:,} words and the vocabulary {vocabulary_size:,}: "
            f"{_describe_shapes(outside)}"
        )


def _canonical_layer(module: str, leaves: Arrays, program: str) -> tuple[str, Arrays]:
    """Return the cell of a layer, and its parameters by the cell's names."""
    by_index = {PARAMETER_INDEX.get(leaf, leaf): array for leaf, array in leaves.items()}
    kernel, recurrent = (
        each.T if program == TORCH else each for each in (by_index.pop(0, np.empty((1, 1))), by_index.pop(1))
    )
    hidden, width = recurrent.shape
    biases = [row for index in sorted(by_index, key=str) for row in np.atleast_2d(by_index[index])]
    cell, counts, gates = CELLS.get((program, width // hidden), ("", (), []))
    widths = {hidden * len(gates), *kernel.shape[1:], *(row.shape[-1] for row in biases)}
    if (
        len(biases) not in counts
        or kernel.ndim != 2
        or widths != {width}
        or not {*leaves} <= {*PARAMETER_INDEX}
    ):
        raise UserError(
            f"the layer {module} of {program} is no LSTM or GRU of a run: it must have "
            f"{', '.join(NAMES[program])}, or no bias, and Keras' GRU a bias and reset_after=True; "
            f"it has {_describe_shapes(leaves)}"
        )
    order = np.arange(width).reshape(-1, hidden)[gates].ravel()
    kernel, recurrent, *biases = (array[..., order] for array in (kernel, recurrent, *biases))
    first, second = [*biases, *np.zeros((2, width), np.float32)][:2]
    layer = {"kernel": kernel, "recurrent_kernel": recurrent, "bias": first + second}
    if cell != cells.LSTM:  # the reset gate multiplies the candidate's second bias
        layer["bias"][2 * hidden :], layer["recurrent_bias"] = first[2 * hidden :], second[2 * hidden :]
    return cell, layer


def _embedding_and_softmax(
    others: dict[tuple[str, str], NDArray[Any]], vocabulary_size: int, program: str
) -> tuple[Arrays, str]:
    """Return the parameters outside of the layers, and a clause that names the tables.

    Without `softmax.kernel` if it is the embedding.

    Args:
        others: Their tensors by (module, parameter).
        vocabulary_size: V.
        program: A key of NAMES.
    """
    square = (vocabulary_size, vocabulary_size)
    tables = {n: array for n, array in others.items() if array.ndim == 2 and vocabulary_size in array.shape}
    # Keras 3 may number a kernel and its bias: 0 and 1.
    biases = {
        name: array
        for name, array in others.items()
        if array.shape == square[:1]
        and (_BIAS.search("".join(name)) or (name[1] == "1" and (name[0], "0") in tables))
    }
    if strange := {"".join(name): others[name] for name in others if name not in {*biases, *tables}}:
        raise UserError(
            f"a language model of {vocabulary_size:,} words has an embedding of as many rows, "
            f"LSTM or GRU layers that read forwards, and a softmax; these tensors do not belong to it: "
            f"{_describe_shapes(strange)}"
        )
    distinct = {(array.shape, array.tobytes()): name for name, array in tables.items()}  # equal ones are tied
    # Sorted, the embedding comes first: its module has no bias; or else its name says so.
    ranks = {
        name: (
            name[0] in {module for module, _ in biases},
            not _EMBEDDING.search("".join(name)) or bool(_SOFTMAX.search("".join(name))),
        )
        for name in distinct.values()
    }
    # Where a square table has the words, the program tells: torch's modules call it weight.
    is_clear = all(program == KERAS or tables[n].shape != square or n[1] == "weight" for n in ranks)
    if len(biases) > 1 or not is_clear or not 0 < len(ranks) == len({*ranks.values()}) < 3:
        raise UserError(
            f"it is not clear which tensor is the embedding of {vocabulary_size:,} words, which is the "
            "softmax's kernel or bias, or which axis the words are on (docs/weights.md has the rules): "
            f"{_describe_shapes({''.join(n): others[n] for n in others})}"
        )
    in_order = sorted(ranks, key=ranks.__getitem__)
    embedding, *softmax = (tables[name] for name in in_order)
    weights = {
        "embedding": embedding if len(embedding) == vocabulary_size else embedding.T,
        "softmax.bias": sum(biases.values(), np.zeros(vocabulary_size, np.float32)),
        # torch has [V, N], Keras [N, V].
        **{
            name: table.T if program == TORCH and len(table) == vocabulary_size else table
            for name, table in zip(["softmax.kernel"], softmax, strict=False)
        },
    }
    parts = zip(("embedding", "softmax"), map("".join, in_order), strict=False)
    return weights, ", ".join(f"{part} {name}" for part, name in parts)


def _describe_shapes(tensors: Arrays) -> str:
    """Return names and shapes, for an error."""
    shown = ", ".join(f"{name} {array.shape}" for name, array in tensors.items())
    return textwrap.shorten(shown, ERROR_CHARACTERS, placeholder=" ...") or "nothing"
