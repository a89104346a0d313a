"""Dynamic evaluation: score a segment of a text, then take a gradient step on it, and so on.

A word is scored before any weight has seen it. The rules of the step are in `adaptation.DynamicEvaluation`.

Shapes: T = time steps of a segment, N = words of the text but the last, V = vocabulary, H = hidden units,
E = embedding width.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.inference.adaptation import DynamicEvaluation
from ptb_lm.inference.adaptation.segment_model import Gradients, SegmentModel
from ptb_lm.training.evaluation import perplexity_from_nll

CHUNK = 1 << 17  # weights updated at a time, so that what is made on the way stays in a core's own memory
STATIC_SEGMENT = 100  # without adaptation the length of a segment changes nothing but the speed

Squares = dict[str, Tensor]  # a parameter's name -> the mean of its squared gradient


class ScoredText(NamedTuple):
    """A text's scores.

    Attributes:
        log_p_N: The log-probability of each word but the first, in nats.
        hidden_NH: The top layer's output, from which each was predicted; [N, 0] unless it is kept.
        targets_N: Those words.
    """

    log_p_N: Tensor
    hidden_NH: Tensor
    targets_N: Tensor

    @property
    def perplexity(self) -> float:
        """The perplexity of the words that were scored."""
        return text_perplexity(self.log_p_N)


@torch.no_grad()
def score(
    model: SegmentModel,
    ids: Tensor,
    dynamic: DynamicEvaluation | None,
    *,
    squares: Squares | None = None,
    keep_hidden: bool = False,
    progress: Callable[[int], object] = lambda words: None,
) -> ScoredText:
    """Score every word of a text but the first, with the state carried from segment to segment.

    The model's weights are the trained ones again when this returns.

    Args:
        model: The trained model.
        ids: The text's word ids, int64.
        dynamic: The settings of dynamic evaluation. None: the weights stay.
        squares: The result of `mean_squares`, for the rule rms.
        keep_hidden: True to return the hidden states, too.
        progress: A function that is called with a segment's number of words, after each.
    """
    updates = None if dynamic is None else _Updates(model, dynamic, squares)
    state, log_p, hidden = model.zero_state(), list[Tensor](), list[Tensor]()
    try:
        length = STATIC_SEGMENT if dynamic is None else dynamic.segment  # the last may be shorter
        for x_T, y_T in zip(ids[:-1].split(length), ids[1:].split(length), strict=True):
            if updates is None:
                scores = model.score(x_T, y_T, state)
            else:
                updates.prepare(x_T)
                scores, gradients = model.score_and_gradients(x_T, y_T, state)
                updates.apply(gradients)
            state = scores.state
            log_p.append(scores.log_p_T)
            # A slice without columns would hold the memory of the whole.
            hidden.append(scores.hidden_TH if keep_hidden else scores.hidden_TH.new_empty(len(y_T), 0))
            progress(len(y_T))
    finally:
        if updates is not None:
            updates.undo()
    return ScoredText(torch.cat(log_p), torch.cat(hidden), ids[1:])


@torch.no_grad()
def mean_squares(
    model: SegmentModel,
    ids: Tensor,
    segment: int,
    *,
    segments: int,
    progress: Callable[[int], object] = lambda words: None,
) -> Squares:
    """Return the mean of the squared gradient of each weight over segments from all parts of a text.

    Args:
        model: The trained model; it stays as it is.
        ids: The training text's word ids, int64.
        segment: Words of a segment.
        segments: The largest number of segments; they lie equally far apart. The state before each is that
            after a segment just before it.
        progress: A function that is called with the number of words of each.

    Raises:
        UserError: The text has no word after its first.
    """
    if len(ids) < 2:
        raise UserError("the rule rms needs a training text of two words or more")
    squares = {name: torch.zeros_like(weight) for name, weight in model.weights.items()}
    count = max(1, min(segments, (len(ids) - 1) // (2 * segment)))
    distance = (len(ids) - 1) // count
    for begin in range(0, count * distance, distance):
        piece = ids[begin : begin + 2 * segment + 1]
        state = model.zero_state()
        if len(piece) > segment + 1:
            state = model.score(piece[:segment], piece[1 : segment + 1], state).state
            piece = piece[segment:]
        _, gradients = model.score_and_gradients(piece[:-1], piece[1:], state)
        _add_squares(squares, gradients, is_tied=model.is_tied)
        progress(len(piece) - 1)
    for total in squares.values():
        total /= count
    return squares


def text_perplexity(log_p_N: Tensor) -> float:
    """Return the perplexity; infinity if the steps were so large that it is not a number."""
    perplexity = perplexity_from_nll(-float(log_p_N.sum(dtype=torch.float64)), len(log_p_N))
    return math.inf if math.isnan(perplexity) else perplexity


def _add_squares(squares: Squares, gradients: Gradients, *, is_tied: bool) -> None:
    rows_VE, words_T = gradients.rows_TE, gradients.words_T
    for name, (left_TM, right_TN) in gradients.factors.items():
        if name == "embedding":  # tied: one gradient of two parts
            whole = (left_TM.T @ right_TN).index_add_(0, words_T, rows_VE)
            squares[name].addcmul_(whole, whole)
            continue
        for rows in _chunks(squares[name]):
            part = left_TM[:, rows].T @ right_TN
            squares[name][rows].addcmul_(part, part)
    for name, vector in gradients.vectors.items():
        squares[name].addcmul_(vector, vector)
    if not is_tied:
        words, sums = _sum_rows(gradients)
        squares["embedding"].index_add_(0, words, sums * sums)


def _sum_rows(gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Return the distinct input words and the gradient with respect to the embedding's row of each."""
    words, places_T = gradients.words_T.unique(return_inverse=True)
    sums = gradients.rows_TE.new_zeros(len(words), gradients.rows_TE.shape[1])
    return words, sums.index_add_(0, places_T, gradients.rows_TE)


def _chunks(matrix: Tensor) -> Iterator[slice]:
    """Yield some rows of a matrix after the other."""
    rows = max(1, CHUNK // matrix.shape[1])
    return (slice(begin, begin + rows) for begin in range(0, len(matrix), rows))


def _rows(values: Tensor | float, rows: slice | Tensor) -> Tensor | float:
    """Return the values of some rows of a matrix; a number is that of all."""
    return values[rows] if isinstance(values, Tensor) else values


class _Updates:
    """The steps of dynamic evaluation on a model's weights, in place.

    An embedding of its own is read only where its words are, so that its rows decay only when they are read
    next, by as many steps as have gone by: that is the same, and a segment touches some rows instead of all.

    Args:
        model: The model whose weights are changed.
        dynamic: The rule and its settings.
        squares: The mean squares of the gradients, for the rule rms.
    """

    def __init__(self, model: SegmentModel, dynamic: DynamicEvaluation, squares: Squares | None) -> None:
        self._weights, self._is_tied = model.weights, model.is_tied
        self._start_weights = {name: weight.clone() for name, weight in model.weights.items()}
        # By weight, numbers for the rule sgd.
        self._rates: dict[str, Tensor | float] = dict.fromkeys(model.weights, dynamic.rate)
        self._decays: dict[str, Tensor | float] = dict.fromkeys(model.weights, dynamic.decay)
        if dynamic.rule == "rms":
            if squares is None:
                raise ValueError("the rule rms needs the training text's squared gradients")
            roots = {name: mean.sqrt() for name, mean in squares.items()}
            count = sum(root.numel() for root in roots.values())
            mean = float(sum(root.sum(dtype=torch.float64) for root in roots.values()) / count)
            for name, root in roots.items():
                relative = root / mean if mean else root  # a text learned to the last bit has no gradients
                self._rates[name] = dynamic.rate / (relative + dynamic.damping)
                self._decays[name] = (dynamic.decay * relative).clamp_(max=1)
        embedding = self._weights["embedding"]
        self._step = 0
        self._decayed_V = torch.zeros(len(embedding), dtype=embedding.dtype, device=embedding.device)

    def prepare(self, x_T: Tensor) -> None:
        """Let the rows of some words decay by the number of steps since their last decay."""
        if self._is_tied:
            return
        words = x_T.unique()
        steps_W1 = (self._step - self._decayed_V[words])[:, None]
        share = (1 - _rows(self._decays["embedding"], words)) ** steps_W1
        start = self._start_weights["embedding"][words]
        self._weights["embedding"][words] = start + share * (self._weights["embedding"][words] - start)
        self._decayed_V[words] = self._step

    def apply(self, gradients: Gradients) -> None:
        """Change the weights by a segment's gradient."""
        self._step += 1
        for name, (left_TM, right_TN) in gradients.factors.items():
            weight, start = self._weights[name], self._start_weights[name]
            for rows in _chunks(weight):
                part, left_MT = weight[rows], left_TM[:, rows].T
                rate, decay = _rows(self._rates[name], rows), _rows(self._decays[name], rows)
                part.lerp_(start[rows], decay)
                if isinstance(rate, Tensor):
                    part.sub_((left_MT @ right_TN).mul_(rate))
                else:
                    part.addmm_(left_MT, right_TN, alpha=-rate)
        for name, vector in gradients.vectors.items():
            self._weights[name].lerp_(self._start_weights[name], self._decays[name])
            self._weights[name].sub_(vector * self._rates[name])
        words, sums = _sum_rows(gradients)
        self.prepare(words)  # by this step
        sums *= _rows(self._rates["embedding"], words)
        self._weights["embedding"].index_add_(0, words, sums, alpha=-1)

    def undo(self) -> None:
        """Restore the trained weights."""
        self._weights.update(self._start_weights)
