"""Text files as word ids: the words of the whole file are never a Python list.

A Tokenizer finds the words, with `str.split` by default; every line ends in `<eos>`, as in
TensorFlow's ptb_word_lm tutorial.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.preparation import Preparation
from ptb_lm.data.text_file import TextSlice, chunks, display_name, locate
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary

Ids = NDArray[np.int32]
NO_SPACES = "text without spaces between words, such as Chinese, needs --tokenize characters"


class UnknownWordError(UserError):
    """A text has a word that is not in its vocabulary, and the vocabulary has no `<unk>`."""


def build_vocabulary(text: TextSlice, preparation: Preparation | None = None) -> tuple[Vocabulary, Ids]:
    """Read a text once; return its vocabulary, by descending count and then word, and its ids [length].

    Args:
        text: The text to read.
        preparation: The limits of a vocabulary with `<eos>` and `<unk>`, which all other words become; None:
            all words of the text, and no others.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8, or the limit leaves no word.
    """
    # Words are numbered as they come, and renumbered once the counts are known.
    provisional: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    ids = _encode_chunks(text, provisional)
    special = {provisional[EOS], provisional[UNK]} if preparation else set()  # a text of one line has neither
    unknown = provisional.get(UNK, -1)
    words = list(provisional)
    counts = np.bincount(ids, minlength=len(words))

    def by_count(indices: Iterable[int]) -> list[int]:
        return sorted(indices, key=lambda index: (-counts[index], words[index]))

    kept: Iterable[int] = range(len(words))
    if preparation:
        common = [i for i in kept if counts[i] >= preparation.least_count and i not in special]
        if not common:
            name = display_name(text.path)
            if text.blocks or text.span:
                name = f"the part of {name} that is trained on"
            if all(i in special for i in kept):
                raise UserError(f"{name} has no words but {EOS} and {UNK}")
            may_lack_spaces = len(ids) < 3 * counts[provisional[EOS]] and not all(map(str.isascii, words))
            hint = f"; {NO_SPACES}" if may_lack_spaces else ""
            raise UserError(
                f"{name} has no word that occurs {preparation.least_count} times, as --min-count "
                f"requires{hint}"
            )
        if preparation.vocab_size:
            common = by_count(common)[: preparation.vocab_size - len(special)]
        kept = [*special, *common]
        counts[unknown] = len(ids) - counts[[i for i in kept if i != unknown]].sum()
    order = by_count(kept)
    final = np.full(len(words), order.index(unknown) if preparation else 0, np.int32)
    final[order] = np.arange(len(order), dtype=np.int32)
    return Vocabulary(words[index] for index in order), final[ids]


def count_words(text_slice: TextSlice) -> int:
    """Return how many words a text has, `<eos>` at each line's end among them.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8.
    """
    return sum(len(words) for _, _, words in _words(text_slice))


def encode(text: TextSlice, vocabulary: Vocabulary) -> tuple[Ids, NDArray[np.bool_]]:
    """Read a text as ids [length] of a known vocabulary, and mark the words that become `<unk>` [length].

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8, or has a word that the vocabulary lacks
            while it lacks `<unk>` too.
    """
    if vocabulary.unknown is None:
        ids = _encode_chunks(text, vocabulary.ids)
        return ids, np.zeros(len(ids), np.bool_)
    beyond = len(vocabulary)  # stands for all other words
    ids = _encode_chunks(text, defaultdict(lambda: beyond, vocabulary.ids))
    is_unknown = ids == beyond
    ids[is_unknown] = vocabulary.unknown
    return ids, is_unknown


def _encode_chunks(text_slice: TextSlice, table: dict[str, int]) -> Ids:
    pieces = []
    for line, chunk, words in _words(text_slice):
        try:
            # map and __getitem__ keep the loop over words in C.
            pieces.append(np.fromiter(map(table.__getitem__, words), np.int32, len(words)))
        except KeyError as error:
            (word,) = error.args
            # Counted by newlines: <eos> may also be a word of the text.
            lines = enumerate(chunk.split("\n"), line)
            found = (n for n, text in lines if word in text_slice.tokenizer.prefix_tokens(f"{text}\n"))
            # In none if the word is the space at which a line was cut: cutting by lines loses it.
            number = next(found, line)
            raise UnknownWordError(
                f"{locate(text_slice, number)}: the word {word!r:.100} is not in the vocabulary, which has "
                f"no {UNK}"
            ) from None
    return np.concatenate(pieces)


def _words(text_slice: TextSlice) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the pieces of a text: number of the first line, text, and those of its words that are read."""
    before, begins = 0, True
    for line, chunk in chunks(text_slice):
        words = text_slice.tokenizer.prefix_tokens(chunk, begins=begins)  # a line's end is a word of its own
        begins, count = chunk.endswith("\n"), len(words)
        if text_slice.span:
            words = words[slice(*(max(each - before, 0) for each in text_slice.span))]
        yield line, chunk, words
        before += count
