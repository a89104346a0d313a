"""The ends of the network by hand: softmax cross-entropy, the embedding's gradient, and the global norm.

Between them lies autograd. The two ends touch every word of the vocabulary, so that what autograd allocates
and passes over there (fresh logits, a separate log-softmax, dense embedding gradients) costs as much as the
LSTM itself on a CPU.

Shapes: N = tokens of a window, H = hidden units, V = vocabulary, E = embedding width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class SoftmaxLayer:
    """The projection onto the vocabulary with softmax and cross-entropy, over reused buffers.

    The bias is the last row of the weight, and the input has a last column of ones: the products compute
    the bias and its gradient on the way, and no pass over the logits is spent on either.

    Attributes:
        weight: [H + 1, V]; trained by whoever owns this object, from `gradient`.
        gradient: [H + 1, V]; what the last `loss_and_gradients` computed.

    Args:
        hidden_size: H.
        vocabulary_size: V.
        device: Where to compute.
        dtype: In which precision.
    """

    def __init__(
        self, hidden_size: int, vocabulary_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.weight = torch.zeros(hidden_size + 1, vocabulary_size, device=device, dtype=dtype)
        self.gradient = torch.zeros_like(self.weight)
        self._buffers: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def losses(self, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
        """Return the negative log likelihood of each target [N], in nats."""
        return self._losses(hidden_NH, targets_N)[0]

    def loss_and_gradients(self, hidden_NH: Tensor, targets_N: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return (negative log likelihoods [N], gradient by hidden_NH); set `gradient`.

        Args:
            hidden_NH: The top layer's output.
            targets_N: Target word ids.
            scale: The gradients are those of scale * sum of the negative log likelihoods.
        """
        nll_N, inputs, log_p_NV = self._losses(hidden_NH, targets_N)
        d_logits_NV = log_p_NV.exp_()
        d_logits_NV.scatter_add_(1, targets_N[:, None], torch.full_like(nll_N, -1.0)[:, None])
        # The scale goes into the narrow factor of each product rather than into the wide one.
        torch.mm((inputs * scale).T, d_logits_NV, out=self.gradient)
        d_hidden_NH = (d_logits_NV @ self.weight[:-1].T).mul_(scale)
        return nll_N, d_hidden_NH

    def _losses(self, hidden_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, logits_NV, log_p_NV = self._buffers_for(len(targets_N))
        inputs[:, :-1] = hidden_NH
        torch.mm(inputs, self.weight, out=logits_NV)
        torch.log_softmax(logits_NV, 1, out=log_p_NV)
        nll_N = log_p_NV.gather(1, targets_N[:, None])[:, 0].neg_()
        return nll_N, inputs, log_p_NV

    def _buffers_for(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        # Logits are the largest tensors of a step; fresh ones would be page-faulted in at every step.
        if tokens not in self._buffers:
            rows, width = self.weight.shape
            self._buffers[tokens] = (
                self.weight.new_ones(tokens, rows),
                self.weight.new_empty(tokens, width),
                self.weight.new_empty(tokens, width),
            )
        return self._buffers[tokens]


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together, [].

    Row by row, and over the rows in float64: over some million float32 numbers at once, torch's own norm on a
    CPU is off by 5e-5 of it, and each clipped step with it.
    """
    rows = [torch.linalg.vector_norm(gradient, dim=-1).flatten() for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.cat(rows), dtype=torch.float64).to(rows[0].dtype)
    return norm


def sum_by_word(gradient_NE: Tensor, ids_N: Tensor) -> Tensor:
    """Return the rows of an embedding's gradient [N, E], with zero rows where words repeat.

    The global norm needs the sum over the occurrences of each word. Shapes are static (no torch.unique), so
    that no step waits for the device to learn how many words differ.
    """
    sorted_ids, order = ids_N.sort()
    group_N = torch.zeros_like(ids_N)
    group_N[1:] = (sorted_ids[1:] != sorted_ids[:-1]).cumsum(0)
    row_N = torch.empty_like(group_N)
    row_N[order] = group_N
    return torch.zeros_like(gradient_NE).index_add_(0, row_N, gradient_NE)
