r"""The torch language model without one of its optimisations: what each of them is worth, alone.

    python -m ptb_lm.bench run ptb --workloads medium --variants torch/cudnn 'without-*' \
        --add without-own-softmax=benchmarks.rivals.without:own_softmax ...

Each function builds the model `cudnn` (or `block_fused`, where it says so) with one thing as it is written
without this package, for the rest of the process, which is one variant's. They pass the benchmark's
comparison with the reference like everything else.
"""

from collections.abc import Mapping
from typing import Any

import ptb_lm.torch_backend  # noqa: F401  (what torch reads when it is imported)

# isort: split
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from benchmarks.rivals import replace
from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import MaskSpec
from ptb_lm.torch_backend import cpu, dropout, loss, network
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.torch_backend.exchange import WindowGradients
from ptb_lm.torch_backend.optimizers import add_scaled
from ptb_lm.torch_backend.precision import PRECISIONS
from ptb_lm.torch_backend.training_step import TrainingStep

Weights = Mapping[str, NDArray[Any]]


def own_softmax(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model with the loss in autograd: fresh logits, log-softmax, and their gradients."""

    class AutogradSoftmax(loss.SoftmaxLayer):
        @override
        def loss_and_gradients(
            self, hidden_NH: Tensor, targets_N: Tensor, scale: float, *, fraction: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            leaves = [part.detach().requires_grad_() for part in (hidden_NH, self.kernel, self.bias)]
            hidden_NH, kernel, bias = leaves
            logits_NV = torch.addmm(bias, hidden_NH, kernel)  # as nn.Linear does
            nll_N = functional.cross_entropy(logits_NV, targets_N, reduction="none")
            scaled = scale * nll_N.sum() * (1 if fraction is None else fraction)
            d_hidden_NH, *self.gradients = torch.autograd.grad(scaled, leaves)
            return nll_N.detach(), d_hidden_NH

    class AutogradEnds(TrainingStep):
        @override
        def update(self, window: WindowGradients, *, steps: int) -> Tensor:
            softmax: Any = self.network.softmax
            word_gradient = loss.sum_by_word(window.d_embedded, window.ids)
            norm = loss.global_norm([word_gradient, *softmax.gradients, *window.layers])
            scale = self.make_clipping(norm, steps=steps).scale(-self.rate, self.network.precision.master)
            self.network.embedding_VE.index_add_(0, window.ids, window.d_embedded * scale)
            for parameter, gradient in zip((softmax.kernel, softmax.bias), softmax.gradients, strict=True):
                parameter.addcmul_(gradient, scale)
            add_scaled(self.network.masters.pairs, window.layers, scale)
            return norm

    _check_update(config, chosen["precision"])
    replace(network, "SoftmaxLayer", AutogradSoftmax)
    return _cudnn(config, weights, kind=AutogradEnds, **chosen)


def sparse_embedding(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model with an embedding's gradient for every word: filled, summed into, normed and added."""

    class DenseEmbedding(TrainingStep):
        @override
        def update(self, window: WindowGradients, *, steps: int) -> Tensor:
            network = self.network
            dense_VE = torch.zeros_like(network.embedding_VE).index_add_(0, window.ids, window.d_embedded)
            norm = loss.global_norm([dense_VE, network.softmax.gradient, *window.layers])
            scale = self.make_clipping(norm, steps=steps).scale(-self.rate, self.network.precision.master)
            network.embedding_VE.addcmul_(dense_VE, scale)
            add_scaled(network.softmax.masters.pairs, [network.softmax.gradient], scale)
            add_scaled(network.masters.pairs, window.layers, scale)
            return norm

    _check_update(config, chosen["precision"])
    return _cudnn(config, weights, kind=DenseEmbedding, **chosen)


def kept_memory(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model in a process that gives freed memory back."""
    replace(host, "keep_freed_memory", lambda: None)
    return _cudnn(config, weights, **chosen)


def fast_masks(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model with masks from bernoulli_."""
    replace(dropout, "draw_mask", _draw_by_bernoulli)
    return _cudnn(config, weights, **chosen)


def _draw_by_bernoulli(spec: MaskSpec, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    mask = torch.empty(spec.shape, device=generator.device, dtype=dtype)
    return mask.bernoulli_(spec.keep_prob, generator=generator).div_(spec.keep_prob)


def own_kernels(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return `block_fused` by torch's operations alone."""
    cpu.set_implementation(cpu.Implementation("torch", cpu.default_implementation().float32_library))
    return _build("block_fused", TrainingStep, config, weights, chosen)


def chosen_library(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return `block_fused` with torch's own float32 products, whichever library is this machine's choice."""
    cpu.set_implementation(cpu.Implementation(cpu.default_implementation().kernels, "MKL"))
    return _build("block_fused", TrainingStep, config, weights, chosen)


def _check_update(config: Config, precision: str) -> None:
    """Refuse what an update of our own above leaves out: float16's loss scale, for example."""
    if PRECISIONS[precision].compute != PRECISIONS[precision].master:
        raise UserError(f"this variant computes with the weights that it updates, and not in {precision}")
    if config.optimizer != "sgd" or config.weight_decay or config.tie_weights:
        raise UserError("this variant updates by SGD, without weight decay or tied weights")


def _cudnn(
    config: Config, weights: Weights, *, kind: type[TrainingStep] = TrainingStep, **chosen: Any
) -> TorchBackend:
    return _build("cudnn", kind, config, weights, chosen)


def _build(
    model: str, kind: type[TrainingStep], config: Config, weights: Weights, chosen: dict[str, Any]
) -> TorchBackend:
    trainee = TorchBackend(config, weights, Choice.create(framework="torch", **{**chosen, "model": model}))
    trainee.training = kind(
        trainee.network, execution=trainee.runtime.execution, ranks=trainee.ranks, seed=trainee.seed
    )
    return trainee
