"""Text files to word ids, in bounded memory: the words of the whole file are never a Python list.

Words are what `str.split` finds; every line ends in `<eos>`, as in TensorFlow's ptb_word_lm tutorial.
"""

import codecs
import contextlib
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.errors import UserError

Ids = NDArray[np.int32]

STDIN = Path("-")
CHUNK_BYTES = 1 << 20  # large enough that Python's overhead a chunk does not count


def build_vocabulary(path: Path) -> tuple[Vocabulary, Ids]:
    """Read a text once; return its vocabulary, by descending count and then word, and its ids [length].

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8.
    """
    # Words are numbered as they come, and renumbered once the counts are known.
    provisional: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    ids = _encode_chunks(path, provisional)
    words = list(provisional)
    counts = np.bincount(ids, minlength=len(words))
    order = sorted(range(len(words)), key=lambda index: (-counts[index], words[index]))
    final = np.empty(len(words), np.int32)
    final[order] = np.arange(len(words), dtype=np.int32)
    return Vocabulary(words[index] for index in order), final[ids]


def encode(path: Path, vocabulary: Vocabulary) -> Ids:
    """Read a text as ids [length] of a known vocabulary; words it lacks become `<unk>`.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8, or has a word that the vocabulary lacks
            while it lacks `<unk>` too.
    """
    return encode_and_count(path, vocabulary)[0]


def encode_and_count(path: Path, vocabulary: Vocabulary) -> tuple[Ids, int]:
    """Return what `encode` does, and how many words of the text the vocabulary lacks."""
    table = _KnownWords(vocabulary)
    return _encode_chunks(path, table), table.missed


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text; only one at a time is in memory.

    Raises:
        UserError: The file is missing, binary or not UTF-8.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            yield _decode(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, path, number)


class _KnownWords(dict[str, int]):
    """The vocabulary's ids, with `<unk>` for all other words.

    Attributes:
        missed: How many words it was asked for that the vocabulary lacks.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary.ids)
        self.unknown = vocabulary.unknown
        self.missed = 0

    def __missing__(self, word: str) -> int:
        if self.unknown is None:
            raise _UnknownWordError(word)
        self.missed += 1
        return self.unknown


class _UnknownWordError(Exception):
    pass


def _encode_chunks(path: Path, table: dict[str, int]) -> Ids:
    pieces = []
    for line, chunk in _chunks(path):
        # A line's end becomes a word of its own.
        words = chunk.replace("\n", f" {EOS} ").split()
        try:
            # map and __getitem__ keep the loop over words in C.
            pieces.append(np.fromiter(map(table.__getitem__, words), np.int32, len(words)))
        except _UnknownWordError as error:
            (word,) = error.args
            number = line + words[: words.index(word)].count(EOS)
            where = f"{_name(path)}, line {number}"
            raise UserError(
                f"{where}: the word {word!r} is not in the vocabulary, which has no {UNK}"
            ) from None
    if not pieces:
        raise UserError(f"{_name(path)} is empty")
    return np.concatenate(pieces)


def _chunks(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) for pieces of a file that end between words."""
    line, rest, last = 1, b"", b""
    with _opened(path) as file:
        if (head := file.read(len(codecs.BOM_UTF8))) != codecs.BOM_UTF8:
            rest, last = head, head[-1:]
        while block := file.read(CHUNK_BYTES):
            block = rest + block
            # Cut at the last space or newline: single bytes in UTF-8, so no character is cut either.
            cut = max(block.rfind(b" "), block.rfind(b"\n")) + 1
            last = block[-1:]
            block, rest = block[:cut], block[cut:]
            if block:
                yield line, _decode(block, path, line)
                line += block.count(b"\n")
    if last not in (b"", b"\n"):  # the last line ends here, even without a newline
        rest += b"\n"
    if rest:
        yield line, _decode(rest, path, line)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a text, which is standard input where the path is STDIN."""
    if path == STDIN:
        if sys.stdin is None:  # the shell closed it
            raise UserError("standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a text file") from None


def _name(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


def _decode(block: bytes, path: Path, line: int) -> str:
    if (zero := block.find(b"\0")) >= 0:
        number = line + block.count(b"\n", 0, zero)
        raise UserError(f"{_name(path)}, line {number}: a zero byte; this is a binary file, not text")
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        number = line + block.count(b"\n", 0, error.start)
        byte = f"0x{block[error.start]:02x}"
        raise UserError(f"{_name(path)}, line {number}: not valid UTF-8 (byte {byte})") from None
