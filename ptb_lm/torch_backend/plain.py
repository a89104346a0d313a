"""The torch loop that people write, without this package: what the models' speed is compared with.

After pytorch/examples' word_language_model: nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_
and SGD. Of torch.nn.LSTM's two biases the second is frozen at zero here, so that it does the same work as
every other variant and can be held to the same numbers; that saves it next to nothing.

Shapes: B = batch, T = time steps, L = layers, H = hidden units, V = vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ptb_lm.backend import Ids, Measured, Words
from ptb_lm.config import Config
from ptb_lm.torch_backend import words
from ptb_lm.torch_backend.base import TorchModel
from ptb_lm.torch_backend.cells import Canonical, freeze_second_bias

State = tuple[Tensor, Tensor]  # h_LBH, c_LBH
Loss = tuple[Tensor, Tensor]  # negative log likelihood [], gradient norm []


class PlainModel(nn.Module):
    """A language model of torch's own modules."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        width, hidden, drop = config.embedding_width, config.hidden_size, 1 - config.keep_prob
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.lstm = nn.LSTM(width, hidden, config.num_layers, dropout=drop if config.num_layers > 1 else 0)
        self.linear = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(drop)
        for layer in range(config.num_layers):
            freeze_second_bias(self.lstm.get_parameter(f"bias_hh_l{layer}"))

    def forward(self, x_TB: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits [T, B, V] and the state."""
        output_TBH, state = self.lstm(self.dropout(self.embedding(x_TB)), state)
        return self.linear(self.dropout(output_TBH)), state


class PlainLoop(TorchModel):
    """Trains a PlainModel; as much of ptb_lm.backend.Backend as the benchmark asks for."""

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], *, seed: int, **chosen: str
    ) -> None:
        super().__init__(**chosen)
        torch.manual_seed(seed)
        self.config = config
        self.model = PlainModel(config, len(weights["embedding"])).to(self.device, self.dtype)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(self.trained, lr=1.0)
        self.load_weights(weights)

    def canonical(self) -> dict[str, Canonical]:
        """Return the trained parameters by canonical name."""
        model = self.model
        table = {"embedding": Canonical(model.embedding.weight)}
        for layer in range(self.config.num_layers):
            for name, kept in (
                ("kernel", "weight_ih"),
                ("recurrent_kernel", "weight_hh"),
                ("bias", "bias_ih"),
            ):
                parameter = model.lstm.get_parameter(f"{kept}_l{layer}")
                table[f"lstm.{layer}.{name}"] = Canonical(parameter, transposed=name != "bias")
        table["softmax.kernel"] = Canonical(model.linear.weight, transposed=True)
        table["softmax.bias"] = Canonical(model.linear.bias)
        return table

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        shape = (self.config.num_layers, batch_size, self.config.hidden_size)
        h_LBH, c_LBH = (torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in range(2))
        return h_LBH, c_LBH

    def place(self, rows_BL: Ids) -> Tensor:
        """Return the rows on the device, where the example keeps its data."""
        return words.placed(rows_BL, self.device)

    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        state = (state[0].detach(), state[1].detach())
        logits_TBV, state = self.model(self._time_major(x_BT), state)
        mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), self._time_major(y_BT).flatten())
        self.optimizer.zero_grad()
        # The mean over tokens is what the example writes; this factor makes it the tutorial's loss.
        (mean * x_BT.shape[1]).backward()
        norm = nn.utils.clip_grad_norm_(self.trained, self.config.max_grad_norm)
        self.optimizer.step()
        return state, (mean.detach() * math.prod(y_BT.shape), norm)

    @torch.no_grad()
    def evaluate_step(self, x_BT: Words, y_BT: Words, state: State) -> tuple[State, Loss]:
        """Score a window without dropout."""
        self.model.eval()
        logits_TBV, state = self.model(self._time_major(x_BT), state)
        mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), self._time_major(y_BT).flatten())
        return state, (mean * math.prod(y_BT.shape), torch.zeros_like(mean))

    def read(self, losses: Sequence[Loss]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            self.wait()
            return []
        return [Measured(*pair) for pair in torch.stack([torch.stack(loss) for loss in losses]).tolist()]

    def _time_major(self, ids_BT: Words) -> Tensor:
        return words.time_major(ids_BT, self.device)


def build(
    config: Config, weights: Mapping[str, NDArray[Any]], *, seed: int, unroll: str, **chosen: str
) -> PlainLoop:
    """Build the loop; see ptb_lm.backend.build.

    Raises:
        UserError: There is no such device.
    """
    return PlainLoop(config, weights, seed=seed, **chosen)
