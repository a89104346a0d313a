"""A trained language model as a plain torch module that does not depend on this package.

Shapes: B = batch, T = time steps, V = vocabulary, E = embedding width, H = hidden units, L = layers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config

State = tuple[Tensor, Tensor]  # (h_LBH, c_LBH), as torch.nn.LSTM has them


class PlainLanguageModel(nn.Module):
    """An embedding, an LSTM and a projection onto the vocabulary, as torch's own modules; no dropout.

    Attributes:
        embedding: torch.nn.Embedding, V rows of E.
        lstm: torch.nn.LSTM, L layers of H units, the batch first. Its second bias is zero.
        softmax: torch.nn.Linear, from H to V; tied, its weight is the embedding's.

    Args:
        vocabulary_size: V.
        embedding_width: E.
        hidden_size: H.
        num_layers: L.
        tie_weights: Whether the projection's weight is the embedding's, the same tensor.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_width: int,
        hidden_size: int,
        num_layers: int,
        *,
        tie_weights: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_width)
        self.lstm = nn.LSTM(embedding_width, hidden_size, num_layers, batch_first=True)
        self.softmax = nn.Linear(hidden_size, vocabulary_size)
        if tie_weights:
            self.softmax.weight = self.embedding.weight

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


def to_torch(config: Config, weights: Mapping[str, NDArray[Any]]) -> PlainLanguageModel:
    """Return a model as a plain module on the CPU, in the precision of its weights, ready to evaluate.

    Args:
        config: The hyper-parameters.
        weights: Canonical parameters (model/parameters.py); they are copied.

    Raises:
        UserError: The cell is not torch.nn.LSTM's.
    """
    if config.cell != LSTM:
        raise UserError(f"torch.nn.LSTM computes the cell {LSTM}, but this model's cell is {config.cell}")
    vocabulary_size = len(weights["embedding"])
    parameters.check(weights, config, vocabulary_size)
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
