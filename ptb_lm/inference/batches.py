"""The log-probability of every word of many sentences: batched by length, in bounded memory.

A step must read all weights, for one sentence as for many. So sentences of like lengths are scored side by
side, the shorter ones padded at their end, which a backend need not compute.

Shapes: B = sentences of a batch, T = words of the longest, V = vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ptb_lm.data.text import Ids
from ptb_lm.inference.encoding import Encoded
from ptb_lm.model.backend import Backend, State

# Sentences that are sorted by length together. More would pad less, and wait longer for the first result.
WINDOW_SENTENCES, WINDOW_WORDS = 4096, 1 << 17

AnySentence = TypeVar("AnySentence", bound=Encoded)


def windows(
    sentences: Iterable[AnySentence], *, count: int = WINDOW_SENTENCES, words: int = WINDOW_WORDS
) -> Iterator[list[AnySentence]]:
    """Yield groups of sentences in their order: at most `count` sentences and at most `words` words."""
    window, filled = list[AnySentence](), 0
    for sentence in sentences:
        window.append(sentence)
        filled += len(sentence.ids)
        if len(window) == count or filled >= words:
            yield window
            window, filled = [], 0
    if window:
        yield window


def by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of places, the longest first: padded, of at most `tokens` words, or of one place."""
    places = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while places:
        batch = max(1, tokens // lengths[places[0]])
        yield places[:batch]
        places = places[batch:]


def independent(
    backend: Backend, targets: Sequence[Ids], *, first: int, tokens: int
) -> list[NDArray[np.float64]]:
    """Return the log-probabilities of the words of each sentence, in nats; none depends on another sentence.

    Args:
        backend: The model.
        targets: The words of each sentence, one at least.
        first: The word that is read before each: `<eos>`.
        tokens: How many words are scored at once, at most.
    """
    scored: list[NDArray[np.float64]] = [np.empty(0)] * len(targets)
    for places in by_length([len(ids) for ids in targets], tokens):
        lengths_B = np.array([len(targets[place]) for place in places], np.int32)
        y_BT = np.full((len(places), lengths_B[0]), first, np.int32)
        for row, place in enumerate(places):
            y_BT[row, : lengths_B[row]] = targets[place]
        x_BT = np.roll(y_BT, 1, axis=1)
        x_BT[:, 0] = first
        state = backend.zero_state(len(places))
        log_p_BT: NDArray[np.floating]
        if lengths_B[-1] == lengths_B[0]:
            log_p_BT, _ = in_pieces(backend, x_BT, y_BT, state, tokens=tokens)
        else:
            _, log_p_BT = backend.log_probabilities(x_BT, y_BT, state, lengths_B=lengths_B)
        for row, place in enumerate(places):
            scored[place] = log_p_BT[row, : lengths_B[row]].astype(np.float64)
    return scored


def one_text(
    backend: Backend, targets: Sequence[Ids], state: State, *, first: int, tokens: int
) -> tuple[list[NDArray[np.float64]], State]:
    """Return the log-probabilities of the words of each sentence of a text, in nats, and the state after.

    Args:
        backend: The model.
        targets: The words of each sentence, one at least. Each goes on where the one before it ends.
        state: Before `first`.
        first: The word that is read before them all.
        tokens: How many words are scored at once, at most.

    Returns:
        (log-probabilities, the state before the last word is read).
    """
    ids = np.concatenate([[first], *targets]).astype(np.int32)
    x_1N, y_1N = ids[None, :-1], ids[None, 1:]
    log_p_1N, state = in_pieces(backend, x_1N, y_1N, state, tokens=tokens)
    ends = np.cumsum([len(sentence) for sentence in targets])
    return np.split(log_p_1N[0], ends[:-1]), state


def in_pieces(
    backend: Backend,
    x_BT: Ids,
    y_BT: Ids,
    state: State,
    *,
    tokens: int,
    on_piece: Callable[[], object] = lambda: None,
) -> tuple[NDArray[np.float64], State]:
    """Return the log-probabilities [B, T] of targets in nats, and the state after them, in bounded memory.

    Args:
        backend: The model.
        x_BT: The words that are read.
        y_BT: The words after them.
        state: Before the first.
        tokens: How many words are scored at once, at most.
        on_piece: Called after each piece.
    """
    batch, steps = x_BT.shape
    piece, log_p_BT = max(1, tokens // batch), np.empty((batch, steps))
    for begin in range(0, steps, piece):
        part = slice(begin, begin + piece)
        state, log_p_BT[:, part] = backend.log_probabilities(x_BT[:, part], y_BT[:, part], state)
        on_piece()
    return log_p_BT, state
