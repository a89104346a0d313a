"""The torch loop that people write, without this package: what the models' speed is compared with.

After pytorch/examples' word_language_model: nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_
and SGD. torch.nn.LSTM's two biases are both trained, as there; the model starts with the second at zero.

Shapes: B = batch, T = time steps, L = layers, H = hidden units, V = vocabulary.
"""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ptb_lm.backend import Arrays, Ids, Measured
from ptb_lm.config import Config
from ptb_lm.errors import UserError

State = tuple[Tensor, Tensor]  # h_LBH, c_LBH


class PlainModel(nn.Module):
    """A language model of torch's own modules."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        width, hidden, drop = config.embedding_width, config.hidden_size, 1 - config.keep_prob
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.lstm = nn.LSTM(width, hidden, config.num_layers, dropout=drop if config.num_layers > 1 else 0)
        self.linear = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(drop)

    def forward(self, x_TB: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits [T, B, V] and the state."""
        output_TBH, state = self.lstm(self.dropout(self.embedding(x_TB)), state)
        return self.linear(self.dropout(output_TBH)), state


class PlainLoop:
    """Trains a PlainModel; as much of ptb_lm.backend.Backend as the benchmark asks for."""

    engine = "torch modules"

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], *, device: torch.device, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        self.device = device
        self.model = PlainModel(config, len(weights["embedding"])).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self._load(weights)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        shape = (self.config.num_layers, batch_size, self.config.hidden_size)
        return torch.zeros(shape, device=self.device), torch.zeros(shape, device=self.device)

    def train_step(
        self, x_BT: Ids, y_BT: Ids, state: State, *, learning_rate: float
    ) -> tuple[State, tuple[Tensor, Tensor]]:
        """Do one step of SGD with dropout and clipping."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        state = (state[0].detach(), state[1].detach())
        logits_TBV, state = self.model(self._time_major(x_BT), state)
        mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), self._time_major(y_BT).flatten())
        self.optimizer.zero_grad()
        # The mean over tokens is what the example writes; this scale makes it the tutorial's loss.
        (mean * x_BT.shape[1]).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        return state, (mean.detach() * y_BT.size, norm)

    @torch.no_grad()
    def evaluate_step(self, x_BT: Ids, y_BT: Ids, state: State) -> tuple[State, tuple[Tensor, Tensor]]:
        """Score a window without dropout."""
        self.model.eval()
        logits_TBV, state = self.model(self._time_major(x_BT), state)
        mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), self._time_major(y_BT).flatten())
        return state, (mean * y_BT.size, torch.zeros((), device=self.device))

    def read(self, losses: Sequence[tuple[Tensor, Tensor]]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return [Measured(nll.item(), norm.item()) for nll, norm in losses]

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name; of the two biases, the first."""
        return {
            name: (parameter.T if transposed else parameter).detach().cpu().numpy().copy()
            for name, (parameter, transposed) in self._canonical().items()
        }

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        on_gpu = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if on_gpu else f"cpu ({platform.machine()})"
        return {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": device}

    def device_memory(self) -> int | None:
        """Return the peak of bytes allocated on the device; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    @torch.no_grad()
    def _load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        for name, (parameter, transposed) in self._canonical().items():
            tensor = torch.from_numpy(np.ascontiguousarray(weights[name]))
            parameter.copy_(tensor.T if transposed else tensor)
        for layer in range(self.config.num_layers):
            nn.init.zeros_(self.model.lstm.get_parameter(f"bias_hh_l{layer}"))

    def _canonical(self) -> dict[str, tuple[Tensor, bool]]:
        """Return each parameter, and whether torch keeps it transposed, by canonical name."""
        model = self.model
        table = {"embedding": (model.embedding.weight, False)}
        for layer in range(self.config.num_layers):
            for name, kept in (
                ("kernel", "weight_ih"),
                ("recurrent_kernel", "weight_hh"),
                ("bias", "bias_ih"),
            ):
                parameter = model.lstm.get_parameter(f"{kept}_l{layer}")
                table[f"lstm.{layer}.{name}"] = (parameter, name != "bias")
        table["softmax.kernel"] = (model.linear.weight, True)
        table["softmax.bias"] = (model.linear.bias, False)
        return table

    def _time_major(self, ids_BT: Ids) -> Tensor:
        return torch.from_numpy(ids_BT.T.astype(np.int64)).to(self.device)


def build(
    config: Config,
    weights: Mapping[str, NDArray[Any]],
    *,
    model: str,
    execution: str,
    unroll: str,
    device: str,
    precision: str,
    seed: int,
) -> PlainLoop:
    """Build the loop; the registry offers no choice of model, execution, unroll or precision.

    Raises:
        UserError: There is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} finds no CUDA device here")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return PlainLoop(config, weights, device=torch.device(device), seed=seed)
