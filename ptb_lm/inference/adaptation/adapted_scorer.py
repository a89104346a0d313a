"""Scores of a model that adapts to the text: by dynamic evaluation, by a neural cache, or by both.

The cache: words that followed similar states are likely to follow again.

Shapes: N = words of the text but the last, H = hidden units, C = words scored in one call, K = pairs that
these may look at.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ptb_lm.common import cli
from ptb_lm.data.text import Ids
from ptb_lm.inference.adaptation import Adaptation, DynamicEvaluation, NeuralCache, dynamic_evaluation
from ptb_lm.inference.adaptation.dynamic_evaluation import ScoredText, Squares, text_perplexity
from ptb_lm.inference.adaptation.segment_model import SegmentModel

CACHE_CHUNK = 256  # words that a cache scores in one call
SQUARED_SEGMENTS = 500  # segments of the training text over which the rule rms averages squared gradients


class Perplexities(NamedTuple):
    """A text's perplexity in several ways.

    Attributes:
        adapted: The perplexity by the model that adapts to the text.
        without_cache: The perplexity by dynamic evaluation alone; None unless there is a cache too.
        unadapted: The perplexity by the model as it was trained.
    """

    adapted: float
    without_cache: float | None
    unadapted: float


class AdaptedScorer:
    """Scores texts with one trained model, which adapts to each text separately.

    Args:
        model: The trained model.
        train: The training text, for the rule rms; empty where it is not needed.
    """

    def __init__(self, model: SegmentModel, train: Ids) -> None:
        self._model = model
        self._train = train
        self._squares: dict[int, Squares] = {}

    def perplexities(self, ids: Ids, adaptation: Adaptation, *, description: str) -> Perplexities:
        """Return the perplexities of every word but the first, each scored before the model adapts to it."""
        dynamic, cache = adaptation.dynamic, adaptation.cache
        text = self.score(ids, dynamic, keep_hidden=cache is not None, description=description)
        adapted = alone = unadapted = text.perplexity
        if cache:
            adapted = text_perplexity(add_cache(text, cache))
        if dynamic:
            unadapted = self.score(ids, None, keep_hidden=False, description="unadapted").perplexity
        return Perplexities(adapted, alone if cache and dynamic else None, unadapted)

    def score(
        self, ids: Ids, dynamic: DynamicEvaluation | None, *, keep_hidden: bool, description: str
    ) -> ScoredText:
        """Score every word of a text but the first, without a cache.

        Args:
            ids: The text.
            dynamic: The settings of dynamic evaluation. None: the weights stay.
            keep_hidden: True to return the hidden states, too.
            description: The name of the text for the progress bar.
        """
        squares = self._mean_squares(dynamic.segment) if dynamic and dynamic.rule == "rms" else None
        with cli.progress_bar(len(ids) - 1, description) as bar:
            return dynamic_evaluation.score(
                self._model,
                self._model.to_device(ids),
                dynamic,
                squares=squares,
                keep_hidden=keep_hidden,
                progress=bar.update,
            )

    def _mean_squares(self, segment: int) -> Squares:
        if segment not in self._squares:
            with cli.progress_bar(SQUARED_SEGMENTS * segment, "squared gradients") as bar:
                self._squares = {  # of one length at a time: they are as large as the model
                    segment: dynamic_evaluation.mean_squares(
                        self._model,
                        self._model.to_device(self._train),
                        segment,
                        segments=SQUARED_SEGMENTS,
                        progress=bar.update,
                    )
                }
        return self._squares[segment]


def add_cache(text: ScoredText, cache: NeuralCache) -> Tensor:
    """Return the log-probability of each word by the model and its cache, in nats."""
    shares_N = cache_log_shares(text, words=cache.words, theta=cache.theta)
    return mix_cache(text.log_p_N, shares_N, cache.weight)


@torch.no_grad()
def cache_log_shares(text: ScoredText, *, words: int, theta: float) -> Tensor:
    """Return the log of the share that the cache gives to each target, in nats; minus infinity for none.

    When target n is scored, the cache holds the pairs (hidden i, target i) of the last `words` places before
    n: the word after hidden i has been seen by then, and target n itself has not.

    Args:
        text: The text's scores, with its hidden states.
        words: The number of pairs that the cache holds.
        theta: The factor of the likeness of two states.
    """
    hidden_NH, targets_N = text.hidden_NH, text.targets_N
    pieces = []
    for begin in range(0, len(targets_N), CACHE_CHUNK):
        end = min(begin + CACHE_CHUNK, len(targets_N))
        first = max(0, begin - words)
        scores_CK = (theta * hidden_NH[begin:end]) @ hidden_NH[first:end].T
        # The number of places between a pair and the target.
        behind_CK = (
            torch.arange(begin, end, device=targets_N.device)[:, None]
            - torch.arange(first, end, device=targets_N.device)[None]
        )
        scores_CK.masked_fill_((behind_CK < 1) | (behind_CK > words), -torch.inf)
        same_CK = targets_N[begin:end, None] == targets_N[None, first:end]
        same_word_C = scores_CK.masked_fill(~same_CK, -torch.inf).logsumexp(1)
        pieces.append(same_word_C - scores_CK.logsumexp(1))
    shares_N = torch.cat(pieces)
    shares_N[:1] = -torch.inf  # the first word of all has no pair to look at: the difference is no number
    return shares_N


@torch.no_grad()
def mix_cache(log_p_N: Tensor, log_shares_N: Tensor, weight: float) -> Tensor:
    """Return the log-probability of each word by the model and its cache; the first word has no cache yet."""
    if weight == 0:
        return log_p_N
    # Not in float32, in which a weight near 1 is 1.
    mixture_N = torch.logaddexp(log_p_N + math.log1p(-weight), log_shares_N + math.log(weight))
    mixture_N[:1] = log_p_N[:1]
    return mixture_N
