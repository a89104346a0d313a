"""A trained model as a plain torch module that does not depend on this package, and as a torch file of it.

Shapes: B = batch, T = time steps, V = vocabulary, E = embedding width, H = hidden units, L = layers.
"""

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config
from ptb_lm.torch_backend.settings import convert_allocation_errors

State = tuple[Tensor, Tensor]  # (h_LBH, c_LBH), as torch.nn.LSTM has them
VOCABULARY = "vocabulary.json"  # the extra file that both formats of torch hold


class PlainLanguageModel(nn.Module):
    """An embedding, an LSTM and a projection onto the vocabulary, as torch's own modules; no dropout.

    Attributes:
        embedding: torch.nn.Embedding, V rows of E.
        lstm: torch.nn.LSTM, L layers of H units, the batch first. Its second bias is zero.
        softmax: torch.nn.Linear, from H to V; `to_torch` makes its weight the embedding's if they are tied.

    Args:
        vocabulary_size: V.
        embedding_width: E.
        hidden_size: H.
        num_layers: L.
    """

    def __init__(self, vocabulary_size: int, embedding_width: int, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_width)
        self.lstm = nn.LSTM(embedding_width, hidden_size, num_layers, batch_first=True)
        self.softmax = nn.Linear(hidden_size, vocabulary_size)

    @override
    def forward(self, x_BT: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return (logits_BTV, state): the softmax over the last axis is the next word's distribution.

        Args:
            x_BT: Word ids, int64 or int32.
            state: (h_LBH, c_LBH) before the first step. None: zero.
        """
        output_BTH, after = self.lstm(self.embedding(x_BT), state)
        return self.softmax(output_BTH), after

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        zeros = self.embedding.weight.new_zeros(self.lstm.num_layers, batch_size, self.lstm.hidden_size)
        return zeros, zeros.clone()


@convert_allocation_errors()
@torch.inference_mode(False)  # the module can be trained
def to_torch(config: Config, weights: Mapping[str, NDArray[Any]]) -> PlainLanguageModel:
    """Return a model as a plain module on the CPU, in the precision of its weights, ready to evaluate.

    Layers of different widths are made equally wide (parameters.widen_layers): torch.nn.LSTM has no others.

    Args:
        config: The hyper-parameters.
        weights: Canonical parameters (model/parameters.py); they are copied.

    Raises:
        UserError: The cell is not torch.nn.LSTM's.
        OutOfMemoryError: There is not enough memory.
    """
    if config.cell != LSTM:
        raise UserError(f"torch.nn.LSTM computes the cell {LSTM}, but this model's cell is {config.cell}")
    vocabulary_size = len(weights["embedding"])
    parameters.check(weights, parameters.shapes(config, vocabulary_size))
    config, weights = parameters.widen_layers(config, weights)
    # On no device at first, so that no number is drawn: the caller's random stream stays as it was.
    with torch.device("meta"):
        module = PlainLanguageModel(
            vocabulary_size, config.embedding_width, config.hidden_size, config.num_layers
        )
    module.load_state_dict(state_dict(config, weights), assign=True)
    if config.tie_weights:
        module.softmax.weight = module.embedding.weight
    return module.eval()


def state_dict(config: Config, weights: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return canonical parameters under the names and in the layouts of `PlainLanguageModel`.

    torch's matrices lie transposed, its gates in the canonical order i, f, g, o.
    """
    tensors = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
    kernel_HV = tensors.get("softmax.kernel", tensors["embedding"].T)
    table = {
        "embedding.weight": tensors["embedding"],
        "softmax.weight": kernel_HV.T,
        "softmax.bias": tensors["softmax.bias"],
    }
    for layer in range(config.num_layers):
        bias = tensors[f"lstm.{layer}.bias"]
        table |= {
            f"lstm.weight_ih_l{layer}": tensors[f"lstm.{layer}.kernel"].T.contiguous(),
            f"lstm.weight_hh_l{layer}": tensors[f"lstm.{layer}.recurrent_kernel"].T.contiguous(),
            f"lstm.bias_ih_l{layer}": bias,
            f"lstm.bias_hh_l{layer}": torch.zeros_like(bias),
        }
    return table


@convert_allocation_errors()
def to_torchscript(module: PlainLanguageModel, words: Sequence[str]) -> bytes:
    """Return a file for torch.jit.load, also in C++: for any batch and any number of steps.

    Raises:
        OutOfMemoryError: There is not enough memory.
    """
    content = io.BytesIO()
    with warnings.catch_warnings():
        # torch advises torch.export instead, which fixes the number of steps.
        warnings.filterwarnings("ignore", r"`torch\.jit\.")
        torch.jit.save(torch.jit.script(module), content, _extra_files={VOCABULARY: json.dumps(list(words))})
    return content.getvalue()


@convert_allocation_errors()
def to_program(module: PlainLanguageModel, words: Sequence[str], *, steps: int) -> bytes:
    """Return a file for torch.export.load, for any batch; torch.export fixes an LSTM's number of steps.

    Raises:
        OutOfMemoryError: There is not enough memory for a window of so many steps.
    """
    content = io.BytesIO()
    if not module.softmax.weight.is_contiguous():  # torch.export writes whole tensors, and views of such
        module.softmax.weight = torch.nn.Parameter(module.softmax.weight.detach().contiguous())
    batch_size = 2  # any but 1, which torch.export would take for a constant
    words_BT = torch.zeros(batch_size, steps, dtype=torch.int64)
    batch = torch.export.Dim("batch", min=1)
    with warnings.catch_warnings():
        # It finds the LSTM's list of its own weights, which is no buffer.
        warnings.filterwarnings("ignore", message="The tensor attributes self.lstm._flat_weights")
        program = torch.export.export(
            module,
            (words_BT, module.zero_state(batch_size)),
            dynamic_shapes=({0: batch}, ({1: batch}, {1: batch})),
        )
    torch.export.save(program, content, extra_files={VOCABULARY: json.dumps(list(words))})
    return content.getvalue()
