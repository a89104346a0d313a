r"""The torch language model without one of its optimisations: what each of them is worth, alone.

    PYTHONPATH=scripts python -m ptb_lm.bench run ptb --workloads medium --variants torch/cudnn 'without-*' \
        --add without-own-softmax=without:own_softmax without-kept-memory=without:kept_memory ...

Each function builds the model `cudnn` (or `block_fused`, where it says so) with one thing as it is written
without this package. They pass the benchmark's comparison with the reference like everything else.
"""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ptb_lm import memory
from ptb_lm.config import Config
from ptb_lm.dropout import Place
from ptb_lm.torch_backend import backend, dropout, fused, loss
from ptb_lm.torch_backend.backend import TorchBackend

Weights = Mapping[str, NDArray[Any]]


def own_softmax(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model with the loss in autograd: fresh logits, log-softmax, and their gradients."""

    class AutogradSoftmax(loss.SoftmaxLayer):
        def loss_and_gradients(
            self, hidden_NH: Tensor, targets_N: Tensor, scale: float
        ) -> tuple[Tensor, Tensor]:
            kernel, bias = (part.detach().requires_grad_() for part in (self.kernel, self.bias))
            hidden_NH = hidden_NH.detach().requires_grad_()
            nll_N = functional.cross_entropy(hidden_NH @ kernel + bias, targets_N, reduction="none")
            d_kernel, d_bias, d_hidden_NH = torch.autograd.grad(
                scale * nll_N.sum(), [kernel, bias, hidden_NH]
            )
            self.gradient[:-1], self.gradient[-1] = d_kernel, d_bias
            return nll_N.detach(), d_hidden_NH

    vars(backend)["SoftmaxLayer"] = AutogradSoftmax
    return _cudnn(config, weights, **chosen)


def sparse_embedding(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model with an embedding's gradient for every word: filled, summed into, normed and added."""

    class DenseEmbedding(TorchBackend):
        def _update(self, ids_N: Tensor, d_embedded_TBE: Tensor, gradients: Any) -> Tensor:
            dense_VE = torch.zeros_like(self.embedding_VE).index_add_(0, ids_N, d_embedded_TBE.flatten(0, 1))
            norm = loss.global_norm([dense_VE, self.softmax.gradient, *gradients])
            bound = self.config.max_grad_norm
            scale = (-self.rate * bound / norm.clamp(min=bound)).float()
            self.embedding_VE.addcmul_(dense_VE, scale)
            self.softmax.update(scale)
            self.masters.add(gradients, scale)
            return norm

    return _cudnn(config, weights, kind=DenseEmbedding, **chosen)


def kept_memory(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model in a process that gives freed memory back."""
    vars(memory)["keep_freed"] = lambda: None
    return _cudnn(config, weights, **chosen)


def fast_masks(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return the model with masks from bernoulli_."""

    def drawn(place: Place, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        mask = torch.empty(place.shape, dtype=dtype)
        return mask.bernoulli_(place.keep_prob, generator=generator).div_(place.keep_prob)

    vars(dropout)["_drawn"] = drawn
    return _cudnn(config, weights, **chosen)


def packed_recurrence(config: Config, weights: Weights, **chosen: Any) -> TorchBackend:
    """Return `block_fused` with the recurrent matrix rearranged at every step of the backward pass."""
    vars(fused)["by_transpose"] = lambda matrix_KN, rows: lambda x_BN: x_BN @ matrix_KN.T
    return _built("block_fused", TorchBackend, config, weights, chosen)


def _cudnn(
    config: Config, weights: Weights, *, kind: type[TorchBackend] = TorchBackend, **chosen: Any
) -> TorchBackend:
    return _built("cudnn", kind, config, weights, chosen)


def _built(
    model: str, kind: type[TorchBackend], config: Config, weights: Weights, chosen: dict[str, Any]
) -> TorchBackend:
    del chosen["unroll"]
    return kind(config, weights, **{**chosen, "model": model})
