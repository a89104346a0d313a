"""A reader of text: it takes a backend from position to position, many words at a time, in bounded memory.

A step must read all weights, for one sentence as for many. So sentences of like lengths are scored side by
side, the shorter ones padded at their end, which a backend need not compute.

Shapes: B = sentences of a batch, T = words of the longest, N = words of a text, V = vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import DivergenceError, UserError
from ptb_lm.data.text import Ids
from ptb_lm.data.vocabulary import EOS, Vocabulary
from ptb_lm.inference.inputs import EncodedWords
from ptb_lm.model.backend import Backend, State, max_tokens_per_call
from ptb_lm.model.config import Config

# The sentences that are sorted by length together. More would pad less, and wait longer for the first result.
CHUNK_SENTENCES, CHUNK_WORDS = 4096, 1 << 17

Scalar = TypeVar("Scalar", bound=np.floating)


@dataclass(frozen=True, eq=False)
class Position:
    """A position in a text: the state before its last word, and that word."""

    state: Any = field(repr=False)  # the backend's
    last_word: int  # its id
    vocabulary: str = field(repr=False)  # the SHA-256 of the one that has the id


def _form(position: Position) -> list[Any]:
    parts = [[(part.dtype, tuple(part.shape)) for part in layer] for layer in position.state]
    return [position.vocabulary, *parts]


class TextReader:
    """Reads and scores the words of texts. It holds no position, so that any number of threads may use it.

    Args:
        backend: The model.
        vocabulary: The model's words. A text begins after its `<eos>`.
        max_tokens: The largest number of words that are read at once.
    """

    def __init__(self, backend: Backend, *, vocabulary: Vocabulary, max_tokens: int) -> None:
        self.backend, self.max_tokens = backend, max_tokens
        self.eos, self._vocabulary = vocabulary.ids[EOS], vocabulary.sha256

    def resume(self, position: object = None) -> Position:
        """Return the position at which reading goes on.

        Args:
            position: One that `LanguageModel.state` had, or what a user put there. None: a text begins, after
                an `<eos>`.

        Raises:
            UserError: It is neither a position nor None, or of another kind of model.
        """
        beginning = Position(self.backend.zero_state(1), self.eos, self._vocabulary)
        if position is None:
            return beginning
        if not isinstance(position, Position):
            raise UserError(f"the state must be None or an earlier model.state, not {position!r}")
        if _form(position) != _form(beginning):
            raise UserError(
                "the state is of another kind of model: framework, --model, cell, sizes, vocabulary and "
                "precision must be the same"
            )
        return position

    def read(self, position: Position, ids: Ids) -> Position:
        """Return the position in a text after some more words."""
        if not len(ids):
            return position
        inputs_N, state = np.concatenate([[position.last_word], ids[:-1]]).astype(np.int32), position.state
        for begin in range(0, len(inputs_N), self.max_tokens):
            state, _ = self.backend.next_word_log_probabilities(
                inputs_N[None, begin : begin + self.max_tokens], state
            )
        return replace(position, state=state, last_word=int(ids[-1]))

    def next_word_log_probabilities(self, position: Position) -> tuple[State, NDArray[np.floating]]:
        """Return the state after a position and the log-probability of every possible next word [V], in nats.

        The text that goes on with a word stands at the position with that state and the word.

        Raises:
            DivergenceError: As `check_scores` does.
        """
        state, log_p_1V = self.backend.next_word_log_probabilities(
            np.array([[position.last_word]], np.int32), position.state
        )
        return state, check_scores(log_p_1V[0])

    def score_independent(self, targets: Sequence[Ids]) -> list[NDArray[np.float64]]:
        """Return the log-probabilities of the words of each sentence, in nats; each is read for itself.

        Args:
            targets: The words of each sentence, one at least.
        """
        scores: list[NDArray[np.float64]] = [np.empty(0)] * len(targets)
        for indices in batch_by_length([len(ids) for ids in targets], self.max_tokens):
            lengths_B = np.array([len(targets[index]) for index in indices], np.int32)
            y_BT = np.full((len(indices), lengths_B[0]), self.eos, np.int32)
            for row, index in enumerate(indices):
                y_BT[row, : lengths_B[row]] = targets[index]
            x_BT = np.roll(y_BT, 1, axis=1)
            x_BT[:, 0] = self.eos
            state = self.backend.zero_state(len(indices))
            log_p_BT: NDArray[np.floating]
            if lengths_B[-1] == lengths_B[0]:
                _, log_p_BT = score_in_pieces(self.backend, x_BT, y_BT, state, max_tokens=self.max_tokens)
            else:
                _, log_p_BT = self.backend.log_probabilities(x_BT, y_BT, state, lengths_B=lengths_B)
            for row, index in enumerate(indices):
                scores[index] = log_p_BT[row, : lengths_B[row]].astype(np.float64)
        return scores

    def score_stream(
        self, targets: Sequence[Ids], position: Position
    ) -> tuple[Position, list[NDArray[np.float64]]]:
        """Return the position after the text, and the log-probabilities of each sentence's words in nats.

        Args:
            targets: The words of each sentence, one at least. Each goes on where the one before it ends.
            position: The position before them all.
        """
        ids = np.concatenate([[position.last_word], *targets]).astype(np.int32)
        x_1N, y_1N = ids[None, :-1], ids[None, 1:]
        state, log_p_1N = score_in_pieces(
            self.backend, x_1N, y_1N, position.state, max_tokens=self.max_tokens
        )
        ends = np.cumsum([len(sentence) for sentence in targets])
        after = replace(position, state=state, last_word=int(ids[-1]))
        return after, np.split(log_p_1N[0], ends[:-1])


def check_scores(log_p: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return log-probabilities that are finite.

    Raises:
        DivergenceError: They are not: weights that are finite may be so large that logits overflow.
    """
    if not np.isfinite(log_p).all():
        raise DivergenceError("the model's scores are not finite: its weights are unusable")
    return log_p


def tokens_per_call(config: Config, vocabulary_size: int) -> int:
    """Return the largest number of words that a model reads or scores at once."""
    width = max(*config.hidden_sizes, config.embedding_width)
    # The backends' measure is an LSTM's, which keeps four values per unit.
    return max_tokens_per_call(vocabulary_size, width * config.cell_declaration.kept_values // 4)


def chunk_sentences(
    sentences: Iterable[EncodedWords], *, count: int = CHUNK_SENTENCES, words: int = CHUNK_WORDS
) -> Iterator[list[EncodedWords]]:
    """Yield lists of sentences in their order: at most `count`, and none after `words` words."""
    chunk, size = list[EncodedWords](), 0
    for sentence in sentences:
        chunk.append(sentence)
        size += len(sentence.ids)
        if len(chunk) == count or size >= words:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def batch_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices, the longest first: padded, of at most `max_tokens` words, or of one index."""
    indices = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while indices:
        batch = max(1, max_tokens // lengths[indices[0]])
        yield indices[:batch]
        indices = indices[batch:]


def score_in_pieces(
    backend: Backend,
    x_BT: Ids,
    y_BT: Ids,
    state: State,
    *,
    max_tokens: int,
    on_piece: Callable[[], object] = lambda: None,
) -> tuple[State, NDArray[np.float64]]:
    """Return the state after some targets, and their log-probabilities [B, T] in nats, in bounded memory.

    Args:
        backend: The model.
        x_BT: The words that are read.
        y_BT: The words after them.
        state: The state before the first word.
        max_tokens: The largest number of words that are scored at once.
        on_piece: A function that is called after each piece.
    """
    batch, steps = x_BT.shape
    piece, log_p_BT = max(1, max_tokens // batch), np.empty((batch, steps))
    for begin in range(0, steps, piece):
        part = slice(begin, begin + piece)
        state, log_p_BT[:, part] = backend.log_probabilities(x_BT[:, part], y_BT[:, part], state)
        on_piece()
    return state, log_p_BT
