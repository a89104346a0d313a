"""The sequence classifier in torch: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, H = the top layer's hidden units, K = its output width: H, or
2H if bidirectional, C = classes, U = labels a sequence.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import ptb_lm.torch_backend  # noqa: F401  (sets the variables that torch reads when it is imported)

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays, in_model_context
from ptb_lm.model.choice import Choice
from ptb_lm.model.dropout_places import MaskSpec
from ptb_lm.torch_backend.cells import ParameterView, export_arrays, load_arrays
from ptb_lm.torch_backend.dropout import derive_seed, draw_mask
from ptb_lm.torch_backend.runtime import Runtime, apply_execution
from ptb_lm.torch_backend.stack import RecurrentStack
from sequence_classifier import (
    Batch,
    Classifier,
    ClassifierConfig,
    LogProbabilities,
    check_labels,
    check_lengths,
)


class TorchClassifier(Classifier):
    """A sequence classifier in torch, with Adam.

    Raises:
        UserError: There is no such device, or no compiler.
    """

    def __init__(self, config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        self.runtime = Runtime(choice)
        self.device, self.dtype = self.runtime.device, self.runtime.dtype
        if self.device.type == "cpu":
            host.keep_freed_memory()
        self.config, self.choice = config, choice
        self.has_lengths = False  # whether the last batch had sequences of different lengths
        self.stack = self.build_stack(choice.model).to(device=self.device, dtype=self.dtype)
        self.executed_stack = self.stack.with_execution(
            partial(apply_execution, execution=self.runtime.execution)
        )
        width = config.hidden_sizes[-1] * (2 if config.bidirectional else 1)
        self.dense = nn.Linear(width, config.classes, device=self.device, dtype=self.dtype)
        self.mask_stream = torch.Generator(self.device).manual_seed(derive_seed(choice.seed))
        self.trained = [*self.stack.trained_parameters(), *self.dense.parameters()]
        self.optimizer = torch.optim.Adam(self.trained, config.learning_rate, betas=(0.9, 0.999), eps=1e-8)
        self.load_weights(weights)

    def context(self) -> AbstractContextManager[None]:
        """Return a context with the settings of torch that it computes with; see in_model_context."""
        return self.runtime.context()

    def build_stack(self, model: str) -> RecurrentStack:
        """Return the LSTM layers; their parameters are still to be loaded."""
        config = self.config
        return RecurrentStack.build(
            model, config.input_size, config.hidden_sizes, bidirectional=config.bidirectional
        )

    def draw_masks(self, samples: int, steps: int) -> list[Tensor]:
        """Return fresh masks of inverted dropout, of the input and each layer's output; none without it."""
        config = self.config
        if config.keep_prob == 1:
            return []
        directions = 2 if config.bidirectional else 1
        widths = (config.input_size, *(directions * hidden for hidden in config.hidden_sizes))
        specs = [MaskSpec((steps, samples, width), config.keep_prob) for width in widths]
        return [draw_mask(spec, self.mask_stream, self.dtype) for spec in specs]

    @property
    @override
    def engine(self) -> str:
        """The engine of the LSTM: ATen's own loop for packed sequences, which oneDNN's does not take."""
        engine = self.runtime.engine
        return engine.replace("(oneDNN", "(ATen, for packed sequences") if self.has_lengths else engine

    @override
    def device_memory(self) -> int | None:
        return self.runtime.peak_memory()

    @override
    def environment(self) -> dict[str, Any]:
        return self.runtime.environment()

    @override
    def export_weights(self) -> Arrays:
        return export_arrays(self.canonical_views())

    @override
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        load_arrays(self.canonical_views(), weights)

    def canonical_views(self) -> dict[str, ParameterView]:
        """Return the parameters by canonical name (sequence_classifier.shapes)."""
        return {
            **self.stack.canonical_views(),
            "dense.kernel": ParameterView(self.dense.weight, True),
            "dense.bias": ParameterView(self.dense.bias),
        }

    @override
    @in_model_context
    def train_step(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        loss = self._loss(batch, self.draw_masks(*batch.x_BTI.shape[:2]))
        loss.backward()
        if self.config.clip_value is not None:
            nn.utils.clip_grad_value_(self.trained, self.config.clip_value)
        self.optimizer.step()
        return loss.detach()

    @override
    def reset_optimizer(self) -> None:
        self.optimizer.state.clear()

    @override
    @in_model_context
    @torch.no_grad()
    def forward_step(self, batch: Batch) -> Tensor:
        return self._loss(batch)

    @override
    @in_model_context
    def loss_and_gradients(self, batch: Batch) -> tuple[float, Arrays]:
        self.optimizer.zero_grad()
        loss = self._loss(batch)
        loss.backward()
        gradients = {
            name: view._replace(parameter=torch.as_tensor(view.parameter.grad))
            for name, view in self.canonical_views().items()
        }
        return loss.item(), export_arrays(gradients)

    @override
    @in_model_context
    @torch.no_grad()
    def predict(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None = None
    ) -> LogProbabilities:
        log_p = self._log_probabilities(self.stack, x_BTI, lengths_B)
        scores: LogProbabilities = (
            (log_p.transpose(0, 1) if self.config.loss == "ctc" else log_p).cpu().numpy()
        )
        return scores

    @override
    def read(self, losses: Sequence[Tensor]) -> list[float]:
        if not losses:
            self.runtime.wait()
            return []
        numbers: list[float] = torch.stack(list(losses)).tolist()
        return numbers

    def _loss(self, batch: Batch, masks: Sequence[Tensor] = ()) -> Tensor:
        """Return the loss averaged over the batch, []."""
        if batch.lengths_B is not None and self.runtime.execution == "compile":
            others = {*self.choice.framework_row.options(self.choice.model)["execution"]} - {"compile"}
            raise UserError(
                "--execution compile cannot be combined with sequences of different lengths: "
                f"it would compile every batch again; choose from {', '.join(sorted(others))}"
            )
        check_labels(batch.labels, self.config)
        log_p = self._log_probabilities(self.executed_stack, batch.x_BTI, batch.lengths_B, masks)
        labels = torch.from_numpy(batch.labels.astype(np.int64)).to(self.device, non_blocking=True)
        if self.config.loss == "cross_entropy":
            loss: Tensor = functional.nll_loss(log_p, labels)
        else:
            samples, steps, _ = batch.x_BTI.shape
            input_lengths = _as_tensor(batch.lengths_B, samples, steps)
            label_lengths = torch.full((samples,), labels.shape[1])
            loss = functional.ctc_loss(log_p, labels, input_lengths, label_lengths, reduction="sum") / samples
        return loss

    def _log_probabilities(
        self,
        stack: RecurrentStack,
        x_BTI: NDArray[np.float32],
        lengths_B: NDArray[np.int32] | None,
        masks: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the log-probabilities: [B, C], or [T, B, C] for CTC."""
        samples, steps, _ = x_BTI.shape
        self.has_lengths = lengths_B is not None
        x_BTI = np.ascontiguousarray(x_BTI)  # torch refuses an array that is reversed
        x_TBI = torch.from_numpy(x_BTI).to(self.device, self.dtype, non_blocking=True).transpose(0, 1)
        lengths = None if lengths_B is None else _as_tensor(lengths_B, samples, steps)
        output_TBK, _ = stack(x_TBI, self.stack.zero_state(samples), masks=masks[:-1], lengths_B=lengths)
        output_TBK = output_TBK * masks[-1] if masks else output_TBK
        features = output_TBK if self.config.loss == "ctc" else self._final_state(output_TBK, lengths)
        logits: Tensor = self.dense(features)
        return logits.log_softmax(dim=-1)

    def _final_state(self, output_TBK: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Return each direction's output after its last valid step, [B, K]."""
        if lengths_B is None:
            last_BK = output_TBK[-1]
        else:
            last_B, row_B = lengths_B - 1, torch.arange(len(lengths_B))
            last_BK = output_TBK[last_B.to(self.device), row_B.to(self.device)]
        if not self.config.bidirectional:
            return last_BK
        hidden = self.config.hidden_sizes[-1]
        # The reverse direction ends at step 0.
        return torch.cat([last_BK[:, :hidden], output_TBK[0, :, hidden:]], dim=1)


def _as_tensor(lengths_B: NDArray[np.int32] | None, samples: int, steps: int) -> Tensor:
    """Return the valid steps of each sample, on the CPU."""
    if lengths_B is None:
        return torch.full((samples,), steps)
    check_lengths(lengths_B, samples, steps)
    return torch.from_numpy(lengths_B.astype(np.int64))
