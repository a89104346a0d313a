"""The neural cache: words that followed similar states are likely to follow again.

Shapes: N = words of the text but the last, H = hidden units, C = words scored in one call, K = pairs that
these may look at.
"""

import torch
from torch import Tensor

from ptb_lm.inference.adaptation.settings import Cache

CHUNK = 256  # words scored in one call


@torch.no_grad()
def log_shares(hidden_NH: Tensor, targets_N: Tensor, *, words: int, theta: float) -> Tensor:
    """Return the log of the share that the cache gives to each target, in nats; minus infinity for none.

    When target n is scored, the cache holds the pairs (hidden i, target i) of the last `words` places before
    n: the word after hidden i has been seen by then, and target n itself has not.

    Args:
        hidden_NH: The state from which each target is predicted.
        targets_N: The words' ids.
        words: How many pairs the cache holds.
        theta: How much likeness counts.
    """
    pieces = []
    for begin in range(0, len(targets_N), CHUNK):
        end = min(begin + CHUNK, len(targets_N))
        first = max(0, begin - words)
        scores_CK = (theta * hidden_NH[begin:end]) @ hidden_NH[first:end].T
        # How many places before the target its pair lies.
        behind_CK = (
            torch.arange(begin, end, device=targets_N.device)[:, None]
            - torch.arange(first, end, device=targets_N.device)[None]
        )
        scores_CK.masked_fill_((behind_CK < 1) | (behind_CK > words), -torch.inf)
        same_CK = targets_N[begin:end, None] == targets_N[None, first:end]
        matching_C = scores_CK.masked_fill(~same_CK, -torch.inf).logsumexp(1)
        # The first word of all has no pair to look at: its sum is zero, and the difference no number.
        pieces.append((matching_C - scores_CK.logsumexp(1)).nan_to_num_(nan=-torch.inf, neginf=-torch.inf))
    return torch.cat(pieces)


@torch.no_grad()
def mix(log_p_N: Tensor, log_shares_N: Tensor, weight: float) -> Tensor:
    """Return the log-probability of each word by the model and its cache; the first word has no cache yet."""
    if weight == 0:
        return log_p_N
    mixed_N = torch.logaddexp(
        log_p_N + torch.log1p(log_p_N.new_tensor(-weight)), log_shares_N + log_p_N.new_tensor(weight).log()
    )
    mixed_N[:1] = log_p_N[:1]
    return mixed_N


def score(log_p_N: Tensor, hidden_NH: Tensor, targets_N: Tensor, cache: Cache) -> Tensor:
    """Return the log-probability of each word by the model and its cache, in nats."""
    shares_N = log_shares(hidden_NH, targets_N, words=cache.words, theta=cache.theta)
    return mix(log_p_N, shares_N, cache.weight)
