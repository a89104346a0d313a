"""Text files to word ids, in bounded memory: the words of the whole file are never a Python list.

Words are what a Treatment finds, which is `str.split` by default; every line ends in `<eos>`, as in
TensorFlow's ptb_word_lm tutorial.
"""

import codecs
import contextlib
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm import files
from ptb_lm.data.tokens import PLAIN, Treatment
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.errors import UserError

Ids = NDArray[np.int32]

STDIN = Path("-")
CHUNK_BYTES = 1 << 20  # large enough that Python's overhead a chunk does not count


class Blocks(NamedTuple):
    """Some lines of a file: whole blocks of them, counted from 0."""

    lines: int  # of a block
    numbers: frozenset[int]

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and line // self.lines in self.numbers


class Part(NamedTuple):
    """A text, or some lines of it, and how it becomes words."""

    path: Path
    blocks: Blocks | None = None
    treatment: Treatment = PLAIN


class Limit(NamedTuple):
    """Which words a vocabulary keeps; all others become `<unk>`."""

    least_count: int
    size: int | None = None  # of the vocabulary, with `<eos>` and `<unk>`


class UnknownWordError(UserError):
    """A text has a word that its vocabulary lacks, which has no `<unk>`."""


def build_vocabulary(text: Path | Part, limit: Limit | None = None) -> tuple[Vocabulary, Ids]:
    """Read a text once; return its vocabulary, by descending count and then word, and its ids [length].

    Args:
        text: What is read.
        limit: Which words are kept, and `<eos>` and `<unk>` with them; None: those that the text has.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8, or the limit leaves no word.
    """
    # Words are numbered as they come, and renumbered once the counts are known.
    provisional: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    ids = _encode_chunks(_part(text), provisional)
    unknown = provisional[UNK] if limit else -1
    words = list(provisional)
    counts = np.bincount(ids, minlength=len(words))

    def ordered(indices: Iterable[int]) -> list[int]:
        return sorted(indices, key=lambda index: (-counts[index], words[index]))

    kept: Iterable[int] = range(len(words))
    if limit:
        special = {provisional[EOS], unknown}
        common = [i for i in kept if counts[i] >= limit.least_count and i not in special]
        if not common:
            raise UserError(
                f"{_name(_part(text).path)} has no word {limit.least_count} times, which --min-count asks for"
            )
        kept = [*special, *(ordered(common)[: limit.size - len(special)] if limit.size else common)]
        counts[unknown] = len(ids) - counts[[i for i in kept if i != unknown]].sum()
    order = ordered(kept)
    final = np.full(len(words), order.index(unknown) if limit else 0, np.int32)
    final[order] = np.arange(len(order), dtype=np.int32)
    return Vocabulary(words[index] for index in order), final[ids]


def encode(text: Path | Part, vocabulary: Vocabulary) -> Ids:
    """Read a text as ids [length] of a known vocabulary; words it lacks become `<unk>`.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8, or has a word that the vocabulary lacks
            while it lacks `<unk>` too.
    """
    return encode_and_count(text, vocabulary)[0]


def encode_and_count(text: Path | Part, vocabulary: Vocabulary) -> tuple[Ids, int]:
    """Return what `encode` does, and how many words of the text the vocabulary lacks."""
    table = _KnownWords(vocabulary)
    return _encode_chunks(_part(text), table), table.missed


def count_lines(path: Path) -> int:
    """Return how many lines a text has, after checking that all of it is text.

    Raises:
        UserError: The file is missing, binary or not UTF-8.
    """
    return sum(chunk.count("\n") for _, chunk in _chunks(Part(path)))


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
            raise _MissingWordError(word)
        self.missed += 1
        return self.unknown


class _MissingWordError(Exception):
    pass


def _part(text: Path | Part) -> Part:
    return Part(text) if isinstance(text, Path) else text


def _encode_chunks(part: Part, table: dict[str, int]) -> Ids:
    pieces = []
    for line, chunk in _chunks(part):
        words = part.treatment.tokens(chunk)  # a line's end is a word of its own
        try:
            # map and __getitem__ keep the loop over words in C.
            pieces.append(np.fromiter(map(table.__getitem__, words), np.int32, len(words)))
        except _MissingWordError as error:
            (word,) = error.args
            number = line + words[: words.index(word)].count(EOS)
            where = f"{_name(part.path)}, line {number}"
            raise UnknownWordError(
                f"{where}: the word {word!r} is not in the vocabulary, which has no {UNK}"
            ) from None
    if not pieces:
        raise UserError(f"{_name(part.path)} is empty")
    return np.concatenate(pieces)


def _chunks(part: Part) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) for pieces of a text that end between words.

    Where only white space separates words they may end within a line; elsewhere they are whole lines.
    """
    line, last, path = 1, b"", part.path
    begun: list[bytes] = []  # of a chunk: joined once, however long it is without a place to cut
    within = part.treatment.tokenize == PLAIN.tokenize
    with _opened(path) as file:
        blocks = _blocks(file)
        for block in blocks if part.blocks is None else _only(blocks, part.blocks):
            last = block[-1:]
            # Cut at the last space or newline: single bytes in UTF-8, so no character is cut either.
            cut = max(block.rfind(b" ") if within else -1, block.rfind(b"\n")) + 1
            if cut:
                chunk = b"".join([*begun, block[:cut]])
                yield line, _decode(chunk, path, line)
                line += chunk.count(b"\n")
                begun = []
            begun.append(block[cut:])
    if last not in (b"", b"\n"):  # the last line ends here, even without a newline
        begun.append(b"\n")
    if rest := b"".join(begun):
        yield line, _decode(rest, path, line)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a file, without the mark that UTF-8 may begin with."""
    head = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
    while block := head + file.read(CHUNK_BYTES):
        yield block
        head = b""


def _only(blocks: Iterable[bytes], wanted: Blocks) -> Iterator[bytes]:
    """Yield the bytes of some lines; none of the pieces is empty."""
    line = 0
    for block in blocks:
        *whole, rest = block.split(b"\n")  # splitlines would split at carriage returns too
        kept = [piece + b"\n" for number, piece in enumerate(whole, line) if number in wanted]
        line += len(whole)
        if rest and line in wanted:
            kept.append(rest)
        if kept:
            yield b"".join(kept)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a text, which is standard input where the path is STDIN."""
    if path == STDIN:
        if sys.stdin is None:  # the shell closed it
            raise UserError("standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        with files.named(path), path.open("rb") as file:
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
