"""torch's models with all layers in one graph, where `--execution jit` and `compile` have a graph each.

- jit: TorchScript of the outer scope, all layers in one module, as in the published comparison of TensorFlow
  and PyTorch on a stacked LSTM ("PyTorch JIT on outer scope").
- compile: torch.compile of the whole training step in one graph: embedding, layers, softmax, gradients,
  clipping and SGD. A forward pass, which no suite times, is compiled no further.

There is no dropout: its masks are drawn outside of what is compiled.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import ptb_lm.torch_backend  # noqa: F401  (what torch reads when it is imported)

# isort: split
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.torch_backend.cells import Layer, LSTMState
from ptb_lm.torch_backend.runtime import apply_execution, prepare_compiler
from ptb_lm.torch_backend.stack import DirectionalLayer, RecurrentStack, State

# Returns the output and each layer's state, of the input and each layer's state.
Run: TypeAlias = Callable[[Tensor, list[Any]], tuple[Tensor, list[Any]]]


class Layers(nn.Module):
    """Layers one after the other, as TorchScript takes them."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x_TBI: Tensor, state: list[LSTMState]) -> tuple[Tensor, list[LSTMState]]:
        """Return the output [T, B, H] and each layer's state after the last step."""
        after: list[LSTMState] = []
        for index, layer in enumerate(self.layers):
            x_TBI, last = layer(x_TBI, state[index])
            after.append(last)
        return x_TBI, after


class Stack(RecurrentStack):
    """A stack without dropout that is run as one."""

    def __init__(self, run: Run) -> None:
        super().__init__([])
        self.run = run

    @override
    def forward(
        self, x_TBI: Tensor, state: State, *, masks: Sequence[Tensor] = (), lengths_B: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        """Return the output [T, B, H], and the state after the sequence."""
        return self.run(x_TBI, list(state))


class ScriptedBackend(TorchBackend):
    """A model whose layers are one TorchScript module."""

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        super().__init__(config, weights, choice)
        # No layer has two directions, and none is torch.nn.LSTM: the registry has no such model.
        layers = Layers(
            [layer.directions[0] for layer in cast("list[DirectionalLayer]", self.network.stack.layers)]
        )
        self.network.executed_stack = Stack(apply_execution(cast(Layer, layers), "jit"))

    @property
    @override
    def engine(self) -> str:
        """Description of the code that computes the LSTM."""
        return f"{super().engine}; all layers in one TorchScript module"


class CompiledBackend(TorchBackend):
    """A model whose training step is one graph of torch.compile."""

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        if torch.__version__ < "2.13":  # earlier ones do not trace a tensor's requires_grad_
            raise UserError("a whole training step in one graph of torch.compile needs torch 2.13")
        super().__init__(config, weights, choice)
        prepare_compiler()
        self.prepare_training()
        # Without these torch leaves the gradients and torch.nn.LSTM out of the graph.
        torch._dynamo.config.trace_autograd_ops = True
        torch._dynamo.config.allow_rnn = True
        self.training.execute_step = torch.compile(self.training.step, fullgraph=True, dynamic=False)

    @property
    @override
    def engine(self) -> str:
        """Description of the code that computes the LSTM."""
        return f"{super().engine}; the whole step in one graph of torch.compile"


_EXECUTIONS: Mapping[str, type[TorchBackend]] = {"jit": ScriptedBackend, "compile": CompiledBackend}


def build(config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> TorchBackend:
    """Build the model; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, or no compiler; or torch is too old, or the configuration has
            dropout.
    """
    if config.has_dropout:
        raise UserError("several layers in one graph are for configurations without dropout")
    eager = Choice.create(
        framework="torch",
        model=choice.model,
        execution="eager",
        device=choice.device,
        precision=choice.precision,
        seed=choice.seed,
    )
    return _EXECUTIONS[choice.execution](config, weights, eager)
