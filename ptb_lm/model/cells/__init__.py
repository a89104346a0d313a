"""The table of recurrent cells behind --cell, and where each is computed.

A cell is declared in a file of this folder: its parameters, its state, and how it is computed in NumPy
(ptb_lm.model.cells.cell). CONTRIBUTING.md walks through adding one.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # --help wants the names alone, and NumPy takes longer to import
    from ptb_lm.model.cells.cell import Cell

LSTM = "lstm"  # the default of --cell, and the cell of programs that the table does not name


@dataclass(frozen=True)
class CellRow:
    """A row of the table: data only, so that reading it imports nothing.

    Attributes:
        declaration: "module:class" of the declaration, a Cell.
        about: The cell in words, for people.
        layers: The "module:class" that computes a layer of such cells, by framework and model.
        options: The hyper-parameter behind each argument of the declaration.
    """

    declaration: str
    about: str
    layers: Mapping[str, Mapping[str, str]]
    options: Mapping[str, str] = field(default_factory=dict)


CELLS: dict[str, CellRow] = {
    LSTM: CellRow(
        declaration="ptb_lm.model.cells.lstm:LSTM",
        about="long short-term memory",
        layers={
            "torch": {
                "basic": "ptb_lm.torch_backend.lstm:BasicLayer",
                "block": "ptb_lm.torch_backend.lstm:BlockLayer",
                "block_fused": "ptb_lm.torch_backend.lstm_fused:BlockFusedLayer",
                "cudnn": "ptb_lm.torch_backend.lstm:CudnnLayer",
                "persistent": "ptb_lm.torch_backend.lstm:PersistentLayer",
            },
            "tensorflow": {
                "basic": "ptb_lm.tf_backend.lstm:BasicLayer",
                "block": "ptb_lm.tf_backend.lstm:BlockLayer",
                "block_fused": "ptb_lm.tf_backend.lstm:BlockFusedLayer",
                "cudnn": "ptb_lm.tf_backend.lstm:CudnnLayer",
            },
        },
    ),
    "layer_norm_lstm": CellRow(
        declaration="ptb_lm.model.cells.layer_norm_lstm:LayerNormLSTM",
        about="the LSTM with layer normalisation",
        layers={
            "torch": {"basic": "ptb_lm.torch_backend.layer_norm_lstm:BasicLayer"},
            "tensorflow": {"basic": "ptb_lm.tf_backend.layer_norm_lstm:BasicLayer"},
        },
    ),
    "gru": CellRow(
        declaration="ptb_lm.model.cells.gru:GRU",
        about="gated recurrent unit",
        layers={
            "torch": {
                "basic": "ptb_lm.torch_backend.gru:BasicLayer",
                "cudnn": "ptb_lm.torch_backend.gru:CudnnLayer",
            },
        },
    ),
    "mogrifier_lstm": CellRow(
        declaration="ptb_lm.model.cells.mogrifier_lstm:MogrifierLSTM",
        about="the LSTM whose input and state gate each other",
        layers={
            "torch": {
                "basic": "ptb_lm.torch_backend.mogrifier_lstm:BasicLayer",
                "block_fused": "ptb_lm.torch_backend.mogrifier_fused:BlockFusedLayer",
            },
            "tensorflow": {"basic": "ptb_lm.tf_backend.mogrifier_lstm:BasicLayer"},
        },
        options={"rounds": "mogrifier_rounds", "rank": "mogrifier_rank"},
    ),
}


@functools.cache
def get(name: str, **options: int) -> Cell:
    """Return a cell's declaration.

    Args:
        name: A name in CELLS.
        options: The declaration's arguments. Those that are missing have its defaults: the names of
            parameters and state, and how they are computed, do not depend on them.

    Raises:
        TypeError: It has no recurrent kernel.
    """
    cell: Cell = pkgutil.resolve_name(CELLS[name].declaration)(**options)
    if "recurrent_kernel" not in cell.shapes(1, 1):
        raise TypeError(
            f"{CELLS[name].declaration} has no parameter named recurrent_kernel, by which layers are counted"
        )
    return cell


def names_for(framework: str, model: str) -> tuple[str, ...]:
    """Return the names of the cells that a framework's model computes."""
    names = tuple(name for name, row in CELLS.items() if model in row.layers.get(framework, {}))
    return names or (LSTM,)


def layer_class(name: str, framework: str, model: str) -> Any:
    """Return the class behind a cell, a framework and a model; its module is imported."""
    return pkgutil.resolve_name(CELLS[name].layers[framework][model])
