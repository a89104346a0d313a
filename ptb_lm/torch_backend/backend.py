"""The torch backend: the contract of ptb_lm.backend.

Shapes: B = batch, T = time steps, N = T * B tokens, L = layers, H = hidden units, V = vocabulary.
"""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.backend import Arrays, Ids, Measured
from ptb_lm.config import Config
from ptb_lm.errors import UserError
from ptb_lm.torch_backend.cells import LAYERS, LayerState
from ptb_lm.torch_backend.execution import executed
from ptb_lm.torch_backend.loss import SoftmaxLayer, global_norm, sum_by_word
from ptb_lm.torch_backend.model import InvertedDropout, LSTMStack, no_dropout

State = Sequence[LayerState]
Loss = tuple[Tensor, Tensor]  # negative log likelihoods [N], gradient norm []

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


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
) -> "TorchBackend":
    """Build the backend; see ptb_lm.backend.build.

    Raises:
        UserError: There is no such device, or no compiler.
    """
    assert unroll == "static", "a Python loop over time"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} finds no CUDA device here")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return TorchBackend(
        config,
        weights,
        model=model,
        execution=execution,
        device=torch.device(device),
        dtype=DTYPES[precision],
        seed=seed,
    )


class TorchBackend:
    """An LSTM language model in torch, with SGD."""

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        *,
        model: str,
        execution: str,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        if device.type == "cuda":
            # fp32 means IEEE float32; torch's default would let cuDNN round to TF32.
            torch.backends.cuda.matmul.fp32_precision = "ieee"
            torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
        self.config = config
        self.device = device
        self.dtype = dtype
        self.engine = _engine(model, execution, device, dtype)
        vocabulary_size = len(weights["embedding"])
        self.embedding_VH = torch.zeros(vocabulary_size, config.hidden_size, device=device, dtype=dtype)
        layer, width = LAYERS[model], config.hidden_size
        self.stack = LSTMStack(layer(width, width) for _ in range(config.num_layers))
        self.stack.to(device=device, dtype=dtype)
        # Evaluation's windows are of other shapes, for which it would be compiled anew; it uses the layers as
        # they are.
        self.training_stack = LSTMStack(
            executed(layer, execution, steps=config.num_steps, batch_size=config.batch_size)
            for layer in self.stack.layers
        )
        self.softmax = SoftmaxLayer(config.hidden_size, vocabulary_size, device=device, dtype=dtype)
        self.dropout = InvertedDropout(config.keep_prob, device=device, seed=seed)
        self.trained = [p for p in self.stack.parameters() if p.requires_grad]
        self.load_weights(weights)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        shape = (batch_size, self.config.hidden_size)
        return [
            (
                torch.zeros(shape, device=self.device, dtype=self.dtype),
                torch.zeros(shape, device=self.device, dtype=self.dtype),
            )
            for _ in range(self.config.num_layers)
        ]

    def train_step(self, x_BT: Ids, y_BT: Ids, state: State, *, learning_rate: float) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        ids_N, targets_N = self._time_major(x_BT), self._time_major(y_BT)
        batch, steps = x_BT.shape
        x_TBH = self.embedding_VH[ids_N].view(steps, batch, -1).requires_grad_()
        output_TBH, state = self.training_stack(x_TBH, state, self.dropout)
        output_NH = output_TBH.view(steps * batch, -1)
        nll_N, d_output_NH = self.softmax.loss_and_gradients(output_NH.detach(), targets_N, 1 / batch)
        output_NH.backward(d_output_NH)
        norm = self._update(ids_N, x_TBH, learning_rate)
        return [(h_BH.detach(), c_BH.detach()) for h_BH, c_BH in state], (nll_N, norm)

    @torch.no_grad()
    def evaluate_step(self, x_BT: Ids, y_BT: Ids, state: State) -> tuple[State, Loss]:
        """Score a window without dropout."""
        ids_N, targets_N = self._time_major(x_BT), self._time_major(y_BT)
        batch, steps = x_BT.shape
        x_TBH = self.embedding_VH[ids_N].view(steps, batch, -1)
        output_TBH, state = self.stack(x_TBH, state, no_dropout)
        nll_N = self.softmax.losses(output_TBH.view(steps * batch, -1), targets_N)
        return state, (nll_N, torch.zeros((), device=self.device))

    def read(self, losses: Sequence[Loss]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return []
        # Summed in float64: the total over a split must not depend on how it was cut into windows.
        nll = torch.stack([nll_N.sum(dtype=torch.float64) for nll_N, _ in losses]).tolist()
        norms = torch.stack([norm for _, norm in losses]).tolist()
        return [Measured(*pair) for pair in zip(nll, norms, strict=True)]

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._canonical().items()}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays."""
        for name, tensor in self._canonical().items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state and the state of the dropout stream."""
        return {
            "h": torch.stack([h_BH for h_BH, _ in state]).cpu().numpy(),
            "c": torch.stack([c_BH for _, c_BH in state]).cpu().numpy(),
            "torch.generator": self.dropout.generator.get_state().numpy(),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""
        try:
            self.dropout.generator.set_state(torch.from_numpy(arrays["torch.generator"].copy()))
        except (RuntimeError, TypeError) as error:
            # A GPU's generator has another state than a CPU's.
            raise UserError(f"the dropout stream was not saved on {self.device.type} ({error})") from None
        h_LBH, c_LBH = (
            torch.from_numpy(arrays[name].copy()).to(self.device, self.dtype) for name in ("h", "c")
        )
        return list(zip(h_LBH.unbind(), c_LBH.unbind(), strict=True))

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if self.device.type == "cuda":
            facts["device"] = torch.cuda.get_device_name(self.device)
            facts["cuda"] = torch.version.cuda
            facts["cudnn"] = torch.backends.cudnn.version()
        else:
            facts["device"] = f"cpu ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
        return facts

    @torch.no_grad()
    def _update(self, ids_N: Tensor, x_TBH: Tensor, learning_rate: float) -> Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        The embedding's gradient has rows only for the words of the window; no others are touched.
        """
        assert x_TBH.grad is not None
        d_x_NH = x_TBH.grad.view(len(ids_N), -1)
        gradients = [p.grad for p in self.trained if p.grad is not None]
        norm = global_norm([sum_by_word(d_x_NH, ids_N), self.softmax.gradient, *gradients])
        bound = self.config.max_grad_norm
        # A tensor, not a number: the device's step is not waited for.
        scale = -learning_rate * bound / norm.clamp(min=bound)
        self.embedding_VH.index_add_(0, ids_N, d_x_NH * scale)
        self.softmax.weight.addcmul_(self.softmax.gradient, scale)
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.addcmul_(gradient, scale)
            parameter.grad = None
        return norm

    def _time_major(self, ids_BT: Ids) -> Tensor:
        return torch.from_numpy(ids_BT.T.reshape(-1).astype(np.int64)).to(self.device, non_blocking=True)

    def _canonical(self) -> dict[str, Tensor]:
        """Return the parameters as views of canonical name and shape."""
        tensors: dict[str, Tensor] = {"embedding": self.embedding_VH}
        for index, layer in enumerate(self.stack.layers):
            for name, (parameter, transposed) in layer.canonical().items():
                tensors[f"lstm.{index}.{name}"] = parameter.T if transposed else parameter
        tensors["softmax.kernel"] = self.softmax.weight[:-1]
        tensors["softmax.bias"] = self.softmax.weight[-1]
        return tensors


def _engine(model: str, execution: str, device: torch.device, dtype: torch.dtype) -> str:
    if model != "cudnn":
        return f"torch {model} on {device.type} ({execution})"
    if device.type == "cuda":
        return "torch.nn.LSTM on cuda (cuDNN)"
    # oneDNN's LSTM has no double precision.
    library = "oneDNN" if torch.backends.mkldnn.is_available() and dtype != torch.float64 else "ATen"
    return f"torch.nn.LSTM on cpu ({library})"
