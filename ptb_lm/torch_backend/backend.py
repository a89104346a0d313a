"""The language model in torch: the contract of ptb_lm.model.backend, and scores.

ptb_lm.torch_backend.network has the parameters, ptb_lm.torch_backend.training_step the training.

Shapes: B = batch, T = time steps, N = T * B tokens, L = length of a row, E = embedding width,
H = hidden units, V = vocabulary.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import TokenArray
from ptb_lm.data.text import Ids
from ptb_lm.model.backend import Arrays, Backend, StepMetrics, in_model_context
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend import cpu, lstm
from ptb_lm.torch_backend.cells import export_arrays
from ptb_lm.torch_backend.loss import Loss, pack_loss
from ptb_lm.torch_backend.network import Network
from ptb_lm.torch_backend.runtime import Runtime
from ptb_lm.torch_backend.settings import convert_allocation_errors, flush_denormals
from ptb_lm.torch_backend.stack import State, detach_state, embed
from ptb_lm.torch_backend.training_step import TrainingStep


@convert_allocation_errors()
@flush_denormals()  # the threads that are started meanwhile inherit it
@torch.inference_mode(False)  # tensors of a caller's inference mode could not be trained
def build(
    config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = SINGLE_PROCESS
) -> "TorchBackend":
    """Build the backend; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, it cannot compute what was chosen, or it has not enough memory; or
            there is no compiler.
    """
    cpu.reset_implementation()
    return TorchBackend(config, weights, choice, ranks)


class TorchBackend(Backend):
    """A language model in torch, with SGD or Adam.

    Attributes:
        runtime: Device, precision and execution.
        network: Parameters, and the modules that compute with them.

    Args:
        config: Hyper-parameters.
        weights: Canonical parameters to start from.
        choice: Choice of model, execution, device and precision.
        ranks: Processes that train the model together.

    Raises:
        UserError: There is no such device, it cannot compute what was chosen, or there is no compiler.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        if ranks.size > 1 and choice.execution == "graph":  # it has not been tried yet
            raise UserError(
                "--execution graph is for one process: several exchange gradients within the step"
            )
        self.runtime = Runtime(
            choice, cell=config.cell, gpu_execution="graph" if ranks.size == 1 else "eager"
        )
        self.device = self.runtime.device
        self.dtype = self.runtime.dtype
        self.config, self.ranks, self.seed = config, ranks, choice.seed
        if self.device.type == "cpu":
            host.keep_freed_memory()
            cpu.get_implementation()  # now: kernels that must be compiled are not left to the first call
        self.network = Network(
            config,
            self.runtime,
            vocabulary_size=len(weights["embedding"]),
            window=(config.batch_size // ranks.size, config.num_steps),
        )
        self.load_weights(weights)

    @override
    def context(self) -> AbstractContextManager[None]:
        return self.runtime.context()

    @cached_property
    def training(self) -> TrainingStep:
        """The training step and its state, made when it is first used."""
        return TrainingStep(self.network, execution=self.runtime.execution, ranks=self.ranks, seed=self.seed)

    @property
    @override
    def engine(self) -> str:
        on_cpu = f"; {cpu.describe_implementation(self.dtype)}" if self.device.type == "cpu" else ""
        return self.runtime.engine + on_cpu

    @property
    @override
    def hints(self) -> list[str]:
        hints, execution = self.runtime.hints, self.runtime.execution
        if self.config.vary_num_steps and execution in ("compile", "jit"):
            hints.append(
                f"--execution {execution} compiles windows of --num-steps steps; with --vary-num-steps most "
                "have others, and run as --execution eager"
            )
        in_float16 = self.device.type == "cuda" and self.dtype == torch.float16
        sizes = max(self.config.hidden_sizes), self.network.window[0]
        if (
            self.runtime.model == "persistent"
            and in_float16
            and not lstm.uses_persistent_kernel(*sizes, self.device)
        ):
            hints.append(
                f"the kernel of --model persistent does not run here: it takes at most {lstm.MAX_UNITS:,} "
                f"units and a batch of {lstm.MAX_ROWS}, on a GPU of {lstm.MIN_MULTIPROCESSORS} "
                "multiprocessors or more"
            )
        return hints

    @override
    def device_memory(self) -> int | None:
        return self.runtime.peak_memory()

    @override
    def environment(self) -> dict[str, Any]:
        exchange = self.training.exchange if "training" in vars(self) else None
        return {**self.runtime.environment(), **(exchange.environment() if exchange else {})}

    @override
    def export_weights(self) -> Arrays:
        return export_arrays(self.network.canonical_views())

    @override
    @in_model_context
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self.network.load(weights)

    @override
    @in_model_context
    def zero_state(self, batch_size: int) -> State:
        return self.network.stack.zero_state(batch_size)

    @override
    @in_model_context
    def to_device(self, rows_BL: Ids) -> Tensor:
        """Copy rows of word ids to the device, laid out so that windows in time-major order are views."""
        return rows_to_device(rows_BL, self.device)

    @override
    @in_model_context
    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        ids_N, targets_N = (to_time_major(words_BT, self.device).flatten() for words_BT in (x_BT, y_BT))
        return self.training(ids_N, targets_N, state, learning_rate=learning_rate)

    @override
    @in_model_context
    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that dropout will keep in the next training window.

        The masks are drawn outside of compiled code. A CUDA graph's replay draws what the stream would give
        to the same operations outside of it.
        """
        return self.training.dropout.preview(batch, steps)

    @override
    @in_model_context
    @torch.no_grad()
    def evaluate_step(self, x_BT: TokenArray, y_BT: TokenArray, state: State) -> tuple[State, Loss]:
        ids_N, targets_N = (to_time_major(words_BT, self.device).flatten() for words_BT in (x_BT, y_BT))
        stack = self.network.choose_stack(*x_BT.shape)
        output_TBH, state = stack(embed(self.network.embedding_VE, ids_N, x_BT.shape[0], self.dtype), state)
        nll_N = self.network.softmax.losses(output_TBH.flatten(0, 1), targets_N)
        zero = nll_N.new_zeros((), dtype=torch.float64)
        loss = pack_loss(nll_N, zero, zero)
        # TorchScript keeps the state's graph even here, if the first layer of this class that the process
        # ran had an input without a gradient.
        return detach_state(state), loss

    @override
    @in_model_context
    @torch.no_grad()
    def log_probabilities(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, lengths_B: Ids | None = None
    ) -> tuple[State, NDArray[Any]]:
        hidden, state = self._compute_outputs(x_BT, state, lengths_B)
        hidden_NH, targets_N = hidden.flatten(0, 1), to_time_major(y_BT, self.device).flatten()
        batch, steps = x_BT.shape
        if lengths_B is None:
            log_p_N = -self.network.softmax.losses_in_any_thread(hidden_NH, targets_N)
        else:  # without the padding, because the softmax is the larger part of the work
            step_TB = np.arange(steps)[:, None]
            (valid,) = torch.from_numpy((step_TB < lengths_B).ravel()).to(self.device).nonzero(as_tuple=True)
            log_p_N = hidden_NH.new_zeros(len(targets_N), dtype=self.network.softmax.weight.dtype)
            log_p_N[valid] = -self.network.softmax.losses_in_any_thread(hidden_NH[valid], targets_N[valid])
        return state, log_p_N.view(steps, batch).T.cpu().numpy()

    @override
    @in_model_context
    @torch.no_grad()
    def next_word_log_probabilities(self, x_BT: TokenArray, state: State) -> tuple[State, NDArray[Any]]:
        output_TBH, state = self._compute_outputs(x_BT, state)
        return state, self.network.softmax.log_probabilities(output_TBH[-1]).cpu().numpy()

    @override
    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        if not losses:
            self.runtime.wait()
            return []
        return [StepMetrics(*numbers) for numbers in torch.stack(list(losses)).tolist()]

    def _compute_outputs(
        self, x_BT: TokenArray, state: State, lengths_B: Ids | None = None
    ) -> tuple[Tensor, State]:
        """Return the top layer's output [T, B, H] without dropout, and the state after."""
        embedded_TBE = embed(
            self.network.embedding_VE, to_time_major(x_BT, self.device).flatten(), x_BT.shape[0], self.dtype
        )
        lengths = None if lengths_B is None else torch.from_numpy(lengths_B.astype(np.int64))
        # All products of the layers, some of which are torch's own: the setting is there, or not, for every
        # thread of the process, so that other calls would decide which library computes them.
        with cpu.use_float32_library(embedded_TBE), cpu.use_few_shapes():
            output_TBH, after = self.network.stack(embedded_TBE, state, lengths_B=lengths)
        return output_TBH, after


def rows_to_device(rows_BL: Ids, device: torch.device) -> Tensor:
    """Copy rows [B, L] to a device, laid out so that a window's words in time-major order are a view."""
    return torch.from_numpy(rows_BL.T.astype(np.int64, order="C")).to(device).T


def to_time_major(ids_BT: TokenArray, device: torch.device) -> Tensor:
    """Return a window's words on a device, contiguous [T, B]; of rows on the device nothing is copied."""
    if isinstance(ids_BT, Tensor):
        return ids_BT.T
    assert isinstance(ids_BT, np.ndarray)
    return torch.from_numpy(ids_BT.T.astype(np.int64, order="C")).to(device, non_blocking=True)
