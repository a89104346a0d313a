"""A corpus: train, valid and test text as ids, cut into rows and windows.

Shapes: B = batch (rows), L = length of a row, T = time steps of a window.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import penn_treebank_folder, working_folder
from ptb_lm.data import SPLITS, splits, synthetic, text
from ptb_lm.data.preparation import PTB, Preparation
from ptb_lm.data.reading_notes import ReadingNotes
from ptb_lm.data.text import Ids
from ptb_lm.data.text_file import TextSlice
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary

# `Corpus.sha256` of Penn Treebank, wherever its files lie.
PENN_TREEBANK_SHA256 = "7b2a69b6f7bf27400cccca8ccc3993728b83cd70d81ed2907c69d36759f39a28"

LONG_LINE = 10_000  # words of a split of one line, which may have lost its line ends

AnyTokens = TypeVar("AnyTokens", bound="TokenArray")


class TokenArray(Protocol):
    """Word ids of a split in rows [B, L], or of a window [B, T].

    A NumPy array, or the result of a backend's `to_device`, which only that backend can read. Both can be
    sliced; only the backend does anything else with them.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, L) or (B, T)."""

    def __getitem__(self: AnyTokens, part: tuple[slice, slice], /) -> AnyTokens:
        """Return some time steps of some rows."""


@dataclass(frozen=True)
class Corpus:
    """The three splits of a corpus, encoded.

    Attributes:
        vocabulary: The words: those of the training split, unless others were given.
        splits: "train", "valid", "test" -> ids [length].
        bounds: Split -> the best perplexity that any model can reach, where it is known.
        unknown_counts: Split -> number of unknown words, but for the split that the vocabulary was made of.
        notes: Sentences about how the text was read, where that may not be what was meant.
    """

    vocabulary: Vocabulary
    splits: dict[str, Ids]
    bounds: dict[str, float] = field(default_factory=dict)
    unknown_counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """The digest of the words and of all splits: equal for equal corpora only."""
        digest = hashlib.sha256(self.vocabulary.sha256.encode())
        for split in SPLITS:
            digest.update(f"{split} {len(self.splits[split])}".encode())
            digest.update(self.splits[split].astype("<i4").tobytes())
        return digest.hexdigest()


def load(
    data: str | Path,
    preparation: Preparation | None = None,
    *,
    column: str | None = None,
    vocabulary: Vocabulary | None = None,
    extend: bool = False,
) -> Corpus:
    """Read a corpus; download or generate it if needed.

    Args:
        data: A folder with `ptb.train.txt` or `train.txt` and so on, one file, or "hf:" and the name of a
            data set. A string, but no Path, can also be "ptb" (the folder $PTB_LM_DATA or data/ptb,
            downloaded if missing) or "synthetic" (generated in data/synthetic).
        preparation: The preparation of raw text; None: the text is a folder, and is read as it is.
        column: The column that has the text, if it is a table; None: the usual or the only one.
        vocabulary: The words, where they are known; None: those of the training split.
        extend: True if the training split's other words are appended to `vocabulary`.

    Raises:
        UnknownWordError: A split has a word that the vocabulary lacks while it lacks `<unk>` too.
        UserError: There is no such corpus; or a split is missing, empty, binary or not UTF-8; or what is
            asked for leaves no word.
    """
    path = Path(data)
    if data == "synthetic":
        path = working_folder() / "data" / "synthetic"
        synthetic.ensure(path)
    elif data == PTB:
        path = penn_treebank_folder()
        if not splits.is_complete(path):
            # Imported here, because an HTTP client takes longer to import than --help should take.
            from ptb_lm.data import penn_treebank

            penn_treebank.fetch(path)
    # The bounds hold only with the corpus's own vocabulary.
    bounds = synthetic.BEST_PERPLEXITIES if data == "synthetic" and vocabulary is None else {}
    notes = ReadingNotes()
    found = splits.find(path, preparation, column)  # complains before 100 MB are read
    # A text that is split by words is read whole for each split; only the first reading is noted.
    slices = {
        split: text_slice if text_slice.span and text_slice.span[0] else replace(text_slice, notes=notes)
        for split, text_slice in found.items()
    }
    encoded: dict[str, Ids] = {}
    if vocabulary is None:
        vocabulary, encoded["train"] = text.build_vocabulary(slices["train"], preparation)
    elif extend:
        vocabulary = _extend(vocabulary, found["train"], preparation)
    unknown_counts = {}
    for split in SPLITS:
        if split not in encoded:
            encoded[split], is_unknown = text.encode(slices[split], vocabulary)
            unknown_counts[split] = int(is_unknown.sum())
    sentences = (*_notes(slices, encoded, vocabulary), *notes.sentences())
    return Corpus(vocabulary, encoded, bounds, unknown_counts, sentences)


def _notes(slices: dict[str, TextSlice], encoded: dict[str, Ids], vocabulary: Vocabulary) -> Iterator[str]:
    for split, ids in encoded.items():
        is_line = len(ids) >= LONG_LINE and (ids == vocabulary.ids.get(EOS)).sum() <= 1
        if is_line and not slices[split].span:
            yield f"the {split} split is one line of {len(ids):,} words"
    if slices["train"].span:
        yield (
            f"{slices['train'].path} has too few lines to hold out some: its words are split instead, into "
            f"{', '.join(SPLITS)} in this order, and no {EOS} is added at its end"
        )


def _extend(known: Vocabulary, train: TextSlice, preparation: Preparation | None) -> Vocabulary:
    """Return a vocabulary with the new words of a text appended, the most frequent first."""
    room = preparation.vocab_size - len(known) if preparation and preparation.vocab_size else None
    if room is not None and room < 1:
        raise UserError(
            f"--vocab-size must be more than the {len(known):,} words of the vocabulary that it extends"
        )
    # Of the vocab_size most frequent words at most len(known) are known: those that are new fill the room.
    found, _ = text.build_vocabulary(train, preparation)
    new = [word for word in found.words if word not in known.ids]
    new.sort(key=lambda word: word != UNK)  # without it no other word could be left out
    return Vocabulary((*known.words, *new[:room]))


def rows(ids: Ids, batch_size: int) -> Ids:
    """Cut ids [length] into contiguous rows [B, L = length // B]; the remainder at the end is dropped."""
    length = len(ids) // batch_size
    return ids[: batch_size * length].reshape(batch_size, length)


def windows(
    rows_BL: AnyTokens, num_steps: int, *, partial: bool = False
) -> Iterator[tuple[AnyTokens, AnyTokens]]:
    """Return the windows (x_BT, y_BT) of rows in their order, as slices of them; y is x shifted by one.

    Args:
        rows_BL: The result of `rows`, or of a backend's `to_device`.
        num_steps: T, time steps of a window.
        partial: Return the last, shorter window too, so that every token but the rows' first is a target.
    """
    targets = rows_BL.shape[1] - 1
    rest = [targets] if partial and targets % num_steps else []
    return cut_windows(rows_BL, [*range(0, targets + 1, num_steps), *rest])


def cut_windows(rows_BL: AnyTokens, bounds: Iterable[int]) -> Iterator[tuple[AnyTokens, AnyTokens]]:
    """Yield windows (x_BT, y_BT) of any lengths, as slices of rows; y is x shifted by one.

    Args:
        rows_BL: The result of `rows`, or of a backend's `to_device`.
        bounds: The positions in the rows where a window ends and the next one begins, with the first one's
            beginning and the last one's end.
    """
    for begin, end in itertools.pairwise(bounds):
        yield rows_BL[:, begin:end], rows_BL[:, begin + 1 : end + 1]


def count_windows(ids: NDArray[np.int32], *, batch_size: int, num_steps: int) -> int:
    """Return the number of whole windows of a training epoch.

    Raises:
        UserError: The split is too short for even one.
    """
    count = (len(ids) // batch_size - 1) // num_steps
    if count < 1:
        raise UserError(
            f"the train split has {len(ids)} tokens, but --batch-size {batch_size} and --num-steps "
            f"{num_steps} need at least {batch_size * (num_steps + 1)}"
        )
    return count


def check_evaluation(ids: Ids, *, batch_size: int, split: str) -> None:
    """Check that a split, or a file named in its place, has a target in every row.

    Raises:
        UserError: The split is too short.
    """
    if len(ids) // batch_size < 2:
        name = f"the {split} split" if split in SPLITS else split
        in_rows = f" in the {batch_size} rows of a training batch (--batch-size)" if batch_size > 1 else ""
        raise UserError(f"{name} has {len(ids)} tokens, but scoring{in_rows} needs at least {2 * batch_size}")
