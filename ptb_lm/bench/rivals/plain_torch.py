"""The torch loop that people write: what the models' speed is compared with.

After pytorch/examples' word_language_model: nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_
and SGD. Of torch.nn.LSTM's two biases the second is frozen at zero here, so that it does the same work as
every other variant and can be held to the same numbers; that saves it next to nothing.

A process that runs it has none of this package's settings of torch. torch is imported before
ptb_lm.torch_backend, which comes too late to set how long OpenMP's threads spin, and the processor keeps
denormal numbers. The weights' names, the device and the precisions alone are the package's.

The usual ways to make it faster are there too: torch.autocast in bfloat16, with weights in float32; and
torch.compile of the module, with its default settings: it stops at torch.nn.LSTM. The model
cudnn-kept-memory has one setting of this package, the allocator's (ptb_lm.common.host).

Shapes: B = batch, T = time steps, E = embedding width, L = layers, H = hidden units, V = vocabulary.
"""

import contextlib
import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.bench.rivals import check_config
from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import TokenArray
from ptb_lm.data.text import Ids
from ptb_lm.model.backend import Arrays, Model, StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.backend import rows_to_device, to_time_major
from ptb_lm.torch_backend.cells import (
    ParameterView,
    export_arrays,
    freeze_second_bias,
    library_parameters,
    load_arrays,
)
from ptb_lm.torch_backend.precision import gpu_settings
from ptb_lm.torch_backend.runtime import Runtime, prepare_compiler

State = tuple[Tensor, Tensor]  # h_LBH, c_LBH
Loss = tuple[Tensor, Tensor]  # negative log likelihood [], gradient norm []

KEPT_MEMORY = "cudnn-kept-memory"


def lstm_parameters(lstm: nn.LSTM, layer: int) -> dict[str, ParameterView]:
    """Return the parameters of a layer that are trained; its second bias is frozen."""
    freeze_second_bias(lstm.get_parameter(f"bias_hh_l{layer}"))
    return library_parameters(lstm, f"_l{layer}")


class PlainModel(nn.Module):
    """A language model of torch's own modules.

    Attributes:
        layers: Trained parameters of each layer.
    """

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        width, hidden, drop = config.embedding_width, config.hidden_size, 1 - config.keep_prob
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.lstm = nn.LSTM(width, hidden, config.num_layers, dropout=drop if config.num_layers > 1 else 0)
        self.linear = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(drop)
        self.layers = [lstm_parameters(self.lstm, layer) for layer in range(config.num_layers)]

    def forward(self, x_TB: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits [T, B, V] and the state."""
        # A line each, as in the example: torch.compile compiles those before the LSTM, and no more.
        embedded_TBE = self.dropout(self.embedding(x_TB))
        output_TBH, state = self.lstm(embedded_TBE, state)
        output_TBH = self.dropout(output_TBH)
        return self.linear(output_TBH), state


class TorchLoop(Model):
    """Trains a network of torch's modules; as much of ptb_lm.model.backend.Backend as the benchmark asks for.

    Attributes:
        network: Module with `embedding`, `linear` and `layers`, as PlainModel has them.
    """

    network: Any

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        self.runtime = Runtime(dataclasses.replace(choice, model="cudnn"))
        self.device, self.precision = self.runtime.device, self.runtime.precision
        torch.set_flush_denormal(False)  # torch's default
        if self.device.type == "cuda":  # for good: the process computes with nothing else
            for setting, value in gpu_settings(self.precision).items():
                setattr(*setting, value)
        if self.device.type == "cpu" and choice.precision == "bf16" and not cpu.has_bfloat16_lstm():
            raise UserError("torch.autocast cannot run torch.nn.LSTM in bfloat16 on this processor")
        if choice.model == KEPT_MEMORY and self.device.type == "cpu":
            host.keep_freed_memory()
        torch.manual_seed(choice.seed)
        self.config = config
        network = self.build_network(len(weights["embedding"]))
        self.network = network.to(self.device, self.precision.master)
        self.executed = _compile(self.network) if self.runtime.execution == "compile" else self.network
        self.trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.trained, lr=1.0, weight_decay=config.weight_decay
        )
        self.load_weights(weights)

    @abstractmethod
    def build_network(self, vocabulary_size: int) -> nn.Module:
        """Return the network; its parameters are still to be loaded."""

    @property
    @override
    def engine(self) -> str:
        """Description of the code that computes the LSTM."""
        where = "; torch.compile stops at the LSTM" if self.runtime.execution == "compile" else ""
        return f"{self.runtime.engine}{where}"

    @override
    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads; what this package chooses of a CPU is nothing to the loop."""
        facts = self.runtime.environment()
        ours = cpu.facts() if self.device.type == "cpu" else {}
        return {name: fact for name, fact in facts.items() if name not in ours}

    @override
    def device_memory(self) -> int | None:
        return self.runtime.peak_memory()

    @override
    def export_weights(self) -> Arrays:
        return export_arrays(self.canonical_views())

    @override
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        load_arrays(self.canonical_views(), weights)

    def canonical_views(self) -> dict[str, ParameterView]:
        """Return the trained parameters by canonical name."""
        network = self.network
        table = {"embedding": ParameterView(network.embedding.weight)}
        for layer, parameters in enumerate(network.layers):
            table |= {f"lstm.{layer}.{name}": parameter for name, parameter in parameters.items()}
        if not self.config.tie_weights:
            table["softmax.kernel"] = ParameterView(network.linear.weight, transposed=True)
        table["softmax.bias"] = ParameterView(network.linear.bias)
        return table

    def to_device(self, rows_BL: Ids) -> Tensor:
        """Return the rows on the device, where the example keeps its data."""
        return rows_to_device(rows_BL, self.device)

    @torch.no_grad()
    def evaluate_step(self, x_BT: TokenArray, y_BT: TokenArray, state: Any) -> tuple[Any, Loss]:
        """Score a window without dropout."""
        self.network.eval()
        mean, state = self.forward(x_BT, y_BT, state)
        return state, (mean * math.prod(y_BT.shape), torch.zeros_like(mean))

    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            self.runtime.wait()
            return []
        return [StepMetrics(*pair) for pair in torch.stack([torch.stack(loss) for loss in losses]).tolist()]

    def forward(self, x_BT: TokenArray, y_BT: TokenArray, state: Any) -> tuple[Tensor, Any]:
        """Return the mean loss of a target, [], and the state."""
        half = self.runtime.dtype != self.precision.master
        with torch.autocast(self.device.type, dtype=self.runtime.dtype if half else None, enabled=half):
            logits_TBV, state = self.executed(to_time_major(x_BT, self.device), state)
            targets_N = to_time_major(y_BT, self.device).flatten()
            mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), targets_N)
        return mean, state


class PlainLoop(TorchLoop):
    """Trains a PlainModel."""

    network: PlainModel

    @override
    def build_network(self, vocabulary_size: int) -> PlainModel:
        return PlainModel(self.config, vocabulary_size)

    @property
    def without_dropout(self) -> Callable[[], contextlib.AbstractContextManager[None]] | None:
        """Context manager that switches dropout off; None if that would compile the model anew."""
        return None if self.runtime.execution == "compile" else self._without_dropout

    @contextlib.contextmanager
    def _without_dropout(self) -> Iterator[None]:
        dropout, lstm = self.network.dropout, self.network.lstm
        before = dropout.p, lstm.dropout
        dropout.p, lstm.dropout = 0.0, 0.0
        try:
            yield
        finally:
            dropout.p, lstm.dropout = before

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        shape = (self.config.num_layers, batch_size, self.config.hidden_size)
        h_LBH, c_LBH = (torch.zeros(shape, device=self.device, dtype=self.precision.master) for _ in range(2))
        return h_LBH, c_LBH

    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        self.network.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        mean, state = self.forward(x_BT, y_BT, (state[0].detach(), state[1].detach()))
        self.optimizer.zero_grad()
        # The mean over tokens is what the example writes; this factor makes it the tutorial's loss.
        (mean * x_BT.shape[1]).backward()
        norm = nn.utils.clip_grad_norm_(self.trained, self.config.max_grad_norm)
        self.optimizer.step()
        return state, (mean.detach() * math.prod(y_BT.shape), norm)


def _compile(model: nn.Module) -> nn.Module:
    """Return the module under torch.compile.

    Raises:
        UserError: torch.compile does not run on this Python, or would find no C++ compiler.
    """
    # What a process compiles counts towards a limit, beyond which torch quietly runs the module as it is. The
    # benchmark builds models to compare before the one that it times; people build one.
    torch.compiler.reset()
    prepare_compiler()
    return cast(nn.Module, torch.compile(model))


def build(config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> PlainLoop:
    """Build the loop; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, or no compiler; or the configuration asks for what the loop lacks.
    """
    check_config(config, "torch's own modules")
    return PlainLoop(config, weights, choice)
