"""A text file in pieces that end between words, checked and decoded: bounded memory, whatever its size."""

import codecs
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ptb_lm import files
from ptb_lm.data.tokens import PLAIN, Treatment
from ptb_lm.errors import UserError

STDIN = Path("-")
CHUNK_BYTES = 1 << 20  # large enough that Python's overhead a chunk does not count


class Blocks(NamedTuple):
    """Some lines of a file: whole blocks of them, counted from 0."""

    lines: int  # of a block
    numbers: frozenset[int]

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and line // self.lines in self.numbers

    def line(self, place: int) -> int:
        """Return which line of the file has a place among these; both count from 0."""
        block, within = divmod(place, self.lines)
        return sorted(self.numbers)[block] * self.lines + within


class Part(NamedTuple):
    """A text, or some lines of it, and how it becomes words."""

    path: Path
    blocks: Blocks | None = None
    treatment: Treatment = PLAIN

    def line(self, number: int) -> int:
        """Return which line of the file is the one that is read as this number; both count from 1."""
        return number if self.blocks is None else self.blocks.line(number - 1) + 1


def count_lines(path: Path) -> int:
    """Return how many lines a text has, after checking that all of it is text.

    Raises:
        UserError: The file is missing, binary or not UTF-8.
    """
    return sum(chunk.count("\n") for _, chunk in chunks(Part(path)))


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text; only one at a time is in memory.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8.
    """
    with _opened(path) as file:
        number = 0
        for number, line in enumerate(file, 1):
            yield _decode(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, path, number)
    if not number:
        raise UserError(f"{shown(path)} is empty")


def chunks(part: Part) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line among those that are read, text) for pieces that end between words.

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


def shown(path: Path) -> str:
    """Return what people call a text: its path, or standard input."""
    return "standard input" if path == STDIN else str(path)


def _decode(block: bytes, path: Path, line: int) -> str:
    try:
        text = block.decode("utf-8")
        wrong = block.find(b"\0")  # UTF-8, but no text has it
    except UnicodeDecodeError as error:
        zero = block.find(b"\0", 0, error.start)
        text, wrong = "", error.start if zero < 0 else zero
    if wrong >= 0:
        number = line + block.count(b"\n", 0, wrong)
        raise UserError(
            f"{shown(path)}, line {number}: byte 0x{block[wrong]:02x} is not UTF-8 text; it is binary or has "
            "another encoding"
        )
    return text
