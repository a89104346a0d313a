"""The torch backend: the contract of ptb_lm.backend.

Shapes: B = batch, T = time steps, N = T * B tokens, L = layers, E = embedding width, H = hidden units,
V = vocabulary.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.backend import Arrays, Ids, Measured
from ptb_lm.config import Config
from ptb_lm.errors import UserError
from ptb_lm.torch_backend.base import TorchModel
from ptb_lm.torch_backend.cells import Canonical
from ptb_lm.torch_backend.execution import executed
from ptb_lm.torch_backend.loss import SoftmaxLayer, global_norm, sum_by_word
from ptb_lm.torch_backend.model import InvertedDropout, LSTMStack, State, no_dropout

Loss = tuple[Tensor, Tensor]  # negative log likelihoods [N], gradient norm []


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
    return TorchBackend(
        config, weights, model=model, execution=execution, device=device, precision=precision, seed=seed
    )


class TorchBackend(TorchModel):
    """An LSTM language model in torch, with SGD."""

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        *,
        model: str,
        execution: str,
        device: str,
        precision: str,
        seed: int,
    ) -> None:
        super().__init__(model=model, execution=execution, device=device, precision=precision)
        self.config = config
        vocabulary_size = len(weights["embedding"])
        place: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        self.embedding_VE = torch.zeros(vocabulary_size, config.embedding_width, **place)
        self.stack = LSTMStack.build(model, config.embedding_width, config.layer_sizes).to(**place)
        self.window = (config.batch_size, config.num_steps)
        self.executed_stack = self.stack.executed(partial(executed, execution=execution, window=self.window))
        self.softmax = SoftmaxLayer(config.layer_sizes[-1], vocabulary_size, **place)
        self.dropout = InvertedDropout(config.keep_prob, device=self.device, seed=seed)
        self.trained = self.stack.trained()
        self.load_weights(weights)

    def canonical(self) -> dict[str, Canonical]:
        """Return the parameters by canonical name (ptb_lm.parameters)."""
        return {
            "embedding": Canonical(self.embedding_VE),
            **self.stack.canonical(),
            "softmax.kernel": Canonical(self.softmax.weight[:-1]),
            "softmax.bias": Canonical(self.softmax.weight[-1]),
        }

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        return self.stack.zero_state(batch_size)

    def train_step(self, x_BT: Ids, y_BT: Ids, state: State, *, learning_rate: float) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        ids_N, targets_N = self._time_major(x_BT), self._time_major(y_BT)
        batch, steps = x_BT.shape
        x_TBE = self.embedding_VE[ids_N].view(steps, batch, -1).requires_grad_()
        output_TBH, state = self.executed_stack(x_TBE, state, dropout=self.dropout)
        output_NH = output_TBH.view(steps * batch, -1)
        nll_N, d_output_NH = self.softmax.loss_and_gradients(output_NH.detach(), targets_N, 1 / batch)
        output_NH.backward(d_output_NH)
        norm = self._update(ids_N, x_TBE, learning_rate)
        return [(h_BH.detach(), c_BH.detach()) for h_BH, c_BH in state], (nll_N, norm)

    @torch.no_grad()
    def evaluate_step(self, x_BT: Ids, y_BT: Ids, state: State) -> tuple[State, Loss]:
        """Score a window without dropout."""
        ids_N, targets_N = self._time_major(x_BT), self._time_major(y_BT)
        batch, steps = x_BT.shape
        x_TBE = self.embedding_VE[ids_N].view(steps, batch, -1)
        # Executed for one shape; others, of which there are many, it would compile anew.
        stack = self.executed_stack if x_BT.shape == self.window else self.stack
        output_TBH, state = stack(x_TBE, state, dropout=no_dropout)
        nll_N = self.softmax.losses(output_TBH.view(steps * batch, -1), targets_N)
        return state, (nll_N, torch.zeros((), device=self.device))

    def read(self, losses: Sequence[Loss]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            self.wait()
            return []
        # Summed in float64: the total over a split must not depend on how it was cut into windows.
        nll = torch.stack([nll_N.sum(dtype=torch.float64) for nll_N, _ in losses]).tolist()
        norms = torch.stack([norm for _, norm in losses]).tolist()
        return [Measured(*pair) for pair in zip(nll, norms, strict=True)]

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

    @torch.no_grad()
    def _update(self, ids_N: Tensor, x_TBE: Tensor, learning_rate: float) -> Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        The embedding's gradient has rows only for the words of the window; no others are touched.
        """
        assert x_TBE.grad is not None
        d_x_NE = x_TBE.grad.view(len(ids_N), -1)
        gradients = [p.grad for p in self.trained if p.grad is not None]
        norm = global_norm([sum_by_word(d_x_NE, ids_N), self.softmax.gradient, *gradients])
        bound = self.config.max_grad_norm
        # A tensor, not a number: the device's step is not waited for.
        scale = -learning_rate * bound / norm.clamp(min=bound)
        self.embedding_VE.index_add_(0, ids_N, d_x_NE * scale)
        self.softmax.weight.addcmul_(self.softmax.gradient, scale)
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.addcmul_(gradient, scale)
            parameter.grad = None
        return norm

    def _time_major(self, ids_BT: Ids) -> Tensor:
        return torch.from_numpy(ids_BT.T.reshape(-1).astype(np.int64)).to(self.device, non_blocking=True)
