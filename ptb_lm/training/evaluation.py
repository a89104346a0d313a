"""Perplexity of a model on a split."""

import math
import time
from collections.abc import Callable

from ptb_lm.common import cli
from ptb_lm.common.errors import DivergenceError
from ptb_lm.data import corpus
from ptb_lm.data.text import Ids
from ptb_lm.model.backend import Backend, Loss
from ptb_lm.model.config import Config

READ_SECONDS = 0.5  # how often the device is waited for, to move the progress bar


def row_count(split: str, config: Config) -> int:
    """Return the number of rows that a split is cut into for scoring.

    The test split is one row, so that every token but the first is scored with its whole history. The others
    are scored in as many rows as training uses, which is much faster: they only steer training.
    """
    return 1 if split == "test" else config.batch_size


def evaluate_perplexity(
    backend: Backend,
    ids: Ids,
    config: Config,
    *,
    batch_size: int,
    description: str,
    check_stop: Callable[[], None] = lambda: None,
) -> float:
    """Return the perplexity of a backend's model on a split.

    Every token but the first of each row is scored, and the state is carried through the row. The backend's
    ranks score some of the rows each, or all of them where they cannot be dealt out.

    Args:
        backend: The model.
        ids: The split [length].
        config: The hyper-parameters.
        batch_size: Number of rows to cut the split into; words that do not fill a row are dropped.
        description: Label of the progress bar.
        check_stop: Function that is called between windows; it may raise.
    """
    # As many tokens as a training step has, so that the same buffers serve. Only speed depends on it.
    window = max(1, config.batch_size * config.num_steps // batch_size)
    ranks, rows = backend.ranks, backend.ranks.share(batch_size)
    rows_BL = backend.to_device(corpus.rows(ids, batch_size)[rows])
    targets = rows_BL.shape[1] - 1
    state = backend.zero_state(rows.stop - rows.start)
    nlls, unread, last_read = list[float](), list[Loss](), time.perf_counter()
    with cli.progress_bar(math.ceil(targets / window), description) as bar:
        for x_BT, y_BT in corpus.windows(rows_BL, window, partial=True):
            check_stop()
            state, loss = backend.evaluate_step(x_BT, y_BT, state)
            unread.append(loss)
            if time.perf_counter() - last_read > READ_SECONDS:
                nlls += [measurement.nll for measurement in backend.read(unread)]
                bar.update(len(unread))
                unread, last_read = [], time.perf_counter()
        nlls += [measurement.nll for measurement in backend.read(unread)]
    nll = math.fsum(nlls)  # at once: the clock decides which of them were read together
    # If the rows cannot be shared out, each rank has scored all of them: the first one's sum alone counts.
    nll = ranks.sum_over_ranks(nll if ranks.is_first or ranks.can_share(batch_size) else 0.0)
    return perplexity_from_nll(nll, batch_size * targets)


def check_finite(perplexity: float, scored_text: str) -> float:
    """Return a perplexity that may be reported.

    Args:
        perplexity: The perplexity.
        scored_text: Description of the text, for the error.

    Raises:
        DivergenceError: The perplexity is not finite.
    """
    if math.isnan(perplexity):
        raise DivergenceError(
            f"the perplexity of {scored_text} is not a number: the model's weights are unusable"
        )
    if math.isinf(perplexity):
        raise DivergenceError(
            f"the perplexity of {scored_text} overflows: it is larger than the largest float"
        )
    return perplexity


def perplexity_from_nll(nll: float, tokens: int) -> float:
    """Return exp(nll / tokens); infinity if that is too large for a float."""
    try:
        return math.exp(nll / tokens)
    except OverflowError:
        return math.inf


def format_perplexity(perplexity: float, *, digits: int = 2) -> str:
    """Return a perplexity as a person reads it, with some digits behind the point."""
    if not math.isfinite(perplexity):
        return "beyond the largest float"
    # That of a run that nearly diverged has up to 300 digits.
    return f"{perplexity:.{digits}{'f' if perplexity < 1e7 else 'e'}}"
