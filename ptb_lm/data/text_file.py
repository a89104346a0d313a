"""A text in pieces that end between words, unpacked, checked and decoded: bounded memory for any size."""

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from typing_extensions import override

from ptb_lm.common import files
from ptb_lm.common.errors import UserError
from ptb_lm.data import tables
from ptb_lm.data.preparation import PLAIN, Tokenizer
from ptb_lm.data.reading_notes import MARKS, ReadingNotes

STDIN = Path("-")
CHUNK_BYTES = 1 << 20  # large enough that Python's overhead a chunk does not count

_NO_TEXT = re.compile("[\udc80-\udcff\0]")  # a byte that is not UTF-8, or one that no text has
_JSON_LINES = 100  # as many JSON objects, a line each, are no text
_DESCRIPTOR = re.compile(r"/dev/(fd/)?[^/]+|/proc/.+")  # another process has another file there
URL = re.compile(r"(\w[\w+.-]+):/+(.+)")  # in a Path, which has one slash of the two


class LineBlocks(NamedTuple):
    """Some lines of a file: whole blocks of them, counted from 0."""

    lines: int  # of a block
    numbers: frozenset[int]

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and line // self.lines in self.numbers

    def line(self, number: int) -> int:
        """Return which line of the file is the one of this number among these; both count from 1."""
        block, within = divmod(number - 1, self.lines)
        return sorted(self.numbers)[block] * self.lines + within + 1


@dataclass(frozen=True)
class TextSlice:
    """A text, or some lines or words of it, and the tokenizer that finds its words.

    Attributes:
        path: The file, or the first of several.
        blocks: The lines that are read; None: all.
        tokenizer: Tokenizer that finds the words.
        column: The column of a table; None: the one that has the text.
        shards: The files that follow the first.
        span: The first word that is read, and the one after the last; None: all.
        notes: Notes to which reading the text adds.
    """

    path: Path
    blocks: LineBlocks | None = None
    tokenizer: Tokenizer = PLAIN
    column: str | None = None
    shards: tuple[Path, ...] = ()
    span: tuple[int, int] | None = None
    notes: ReadingNotes = field(default_factory=ReadingNotes)


def locate(text_slice: TextSlice, number: int) -> str:
    """Return where the line that is read as a number is, for people: its file, and the line or row there.

    A table is read again for that, if it is a file.
    """
    if text_slice.blocks is not None:
        number = text_slice.blocks.line(number)
    if tables.format_of(text_slice.path) in tables.TABLES:
        if not text_slice.path.is_file():  # but a pipe
            return f"{display_name(text_slice.path)}, line {number} of its text"
        before = 0
        for path in (text_slice.path, *text_slice.shards):
            for row, text in _rows(path, text_slice.column, text_slice.notes):
                before += text.count("\n")
                if before >= number:
                    return f"{path}, {tables.row_location(path, row)}"
    others = f" and its {len(text_slice.shards)} other files" if text_slice.shards else ""
    return f"{display_name(text_slice.path)}{others}, line {number}"


def lines(text_slice: TextSlice) -> Iterator[str]:
    """Return the lines of a text without their ends; some are in memory at a time.

    Raises:
        UserError: The file is missing, empty, binary or not UTF-8, or there is no such column.
    """
    return _lines(text for _, text in chunks(text_slice))


def chunks(text_slice: TextSlice) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line among those that are read, text) for pieces that end between words.

    Where only white space separates words, or each character is one, they may end within a line; elsewhere
    they are whole lines.

    Raises:
        UserError: A file is missing, binary or not UTF-8, or none has a line that is read.
    """
    line = 1
    paths = (text_slice.path, *text_slice.shards)
    every = itertools.chain.from_iterable(
        _pieces(path, text_slice.column, text_slice.notes) for path in paths
    )
    selected = every if text_slice.blocks is None else _select(every, text_slice.blocks)
    for chunk in _cut(_refuse_empty(selected, text_slice), text_slice.tokenizer.last_cut):
        text_slice.notes.marks.update({mark: chunk.count(mark) for mark in MARKS})
        yield line, chunk
        line += chunk.count("\n")


def check_file(path: Path) -> None:
    """Check that something is a file, which can be read more than once.

    Raises:
        UserError: It is something else.
    """
    if not path.exists():
        if url := URL.fullmatch(str(path)):
            raise UserError(f"{url[1]}://{url[2]} is a URL; download it and give the file's name")
        raise UserError(f"{path} does not exist")
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a text file")
    if _DESCRIPTOR.fullmatch(str(path.absolute())):
        raise UserError(f"{path} {files.NO_FILE}")
    files.refuse_pipe(path)


def display_name(path: Path) -> str:
    """Return the name of a text for people: its path, or "standard input"."""
    return "standard input" if path == STDIN else str(path)


def _pieces(path: Path, column: str | None, notes: ReadingNotes) -> Iterator[str]:
    """Yield the text of a file in pieces; each line ends in a newline, the last one too."""
    if tables.format_of(path) in tables.TABLES:
        yield from tables.as_pieces(_rows(path, column, notes))
    elif column is not None:
        raise UserError(f"{display_name(path)} is plain text, without columns; leave --text-column out")
    else:
        yield from _refuse_json(_decode(path), path)


def _refuse_empty(pieces: Iterator[str], text_slice: TextSlice) -> Iterator[str]:
    """Yield a text unchanged, unless it has no character."""
    first = next(filter(None, pieces), "")  # an empty file of several gives an empty piece
    if not first:
        rows = text_slice.notes.nulls.total()  # of a table, all of whose rows have been read
        what = f"has no text in its {rows:,} rows; choose another --text-column" if rows else "is empty"
        raise UserError(f"{display_name(text_slice.path)} {what}")
    yield from itertools.chain([first], pieces)


def _rows(path: Path, column: str | None, notes: ReadingNotes) -> Iterator[tuple[int, str]]:
    """Yield the text of each row of a table after the row's number."""
    if tables.format_of(path) in tables.BINARY:
        with _open(path) as file:
            yield from tables.texts(path, tables.binary_values(path, file, column, notes), notes)
    else:
        yield from tables.texts(path, tables.line_values(path, _lines(_decode(path)), column, notes), notes)


def _refuse_json(pieces: Iterator[str], path: Path) -> Iterator[str]:
    """Yield a text unchanged, unless its lines are JSON objects."""
    ahead: list[str] = []  # pieces that are read already

    def read_ahead() -> Iterator[str]:
        for piece in pieces:
            ahead.append(piece)
            yield piece

    if next(read_ahead(), "").lstrip().startswith("{"):
        written = (line for line in _lines(itertools.chain([*ahead], read_ahead())) if line.strip())
        if all(tables.json_object(line) is not None for line in itertools.islice(written, _JSON_LINES)):
            raise UserError(
                f"{display_name(path)} has a JSON object in each line: name it FILE.jsonl, and the column "
                "that has the text is read (--text-column)"
            )
    yield from itertools.chain(ahead, pieces)


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    for chunk in _cut(pieces, lambda text: text.rfind("\n") + 1):
        yield from chunk.removesuffix("\n").split("\n")


def _cut(pieces: Iterable[str], last_cut: Callable[[str], int]) -> Iterator[str]:
    """Yield a text in other pieces, which end only at positions that `last_cut` returns."""
    parts: list[str] = []  # of a chunk: joined once, however long it is without a place to cut
    for piece in pieces:
        if end := last_cut(piece):
            yield "".join([*parts, piece[:end]])
            parts = []
        parts.append(piece[end:])
    if rest := "".join(parts):
        yield rest


def _select(pieces: Iterable[str], blocks: LineBlocks) -> Iterator[str]:
    """Yield the text of the lines in some blocks; none of the pieces is empty."""
    line = 0
    for piece in pieces:
        *whole, rest = piece.split("\n")  # splitlines would split at other characters too
        kept = [f"{text}\n" for number, text in enumerate(whole, line) if number in blocks]
        line += len(whole)
        if rest and line in blocks:
            kept.append(rest)
        if kept:
            yield "".join(kept)


def _decode(path: Path) -> Iterator[str]:
    """Yield the text of a file; what comes before a byte that is wrong is yielded before the error."""
    line, last = 1, "\n"
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")  # what is wrong comes as _NO_TEXT
    lines = io.IncrementalNewlineDecoder(decoder, translate=True)  # as Python's text files have
    with _open(path) as file:
        read: Callable[[int], bytes] = file.read1  # type: ignore[attr-defined] # all opened here have it
        for block in itertools.chain(iter(lambda: read(CHUNK_BYTES), b""), [b""]):
            text = lines.decode(block, final=not block)
            wrong = None if text.isascii() and "\0" not in text else _NO_TEXT.search(text)
            if wrong:
                text = text[: wrong.start()]
            if text:
                last = text[-1]
                yield text
            line += text.count("\n")
            if wrong:
                byte = wrong[0].encode(errors="surrogateescape").hex()
                raise UserError(
                    f"{display_name(path)}, line {line}: byte 0x{byte} is not UTF-8 text; it is binary or "
                    "has another encoding"
                )
    if last != "\n":  # the last line ends here, even without a newline
        yield "\n"


class _Streams(io.RawIOBase):
    """The content of a file's compressed streams, one after the other; zeros may lie between them.

    Python's own reader takes damage at the head of a stream for the end of the file, except in the first.
    """

    def __init__(self, file: IO[bytes], start: Callable[[], Any]) -> None:
        self._file = file
        self._start, self._stream = start, start()

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        text = b""
        while not text:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(b"\0")
                while not packed and (read := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                    packed = read.lstrip(b"\0")
                if not packed:
                    return 0
                self._stream = self._start()
            elif self._stream.needs_input and not (packed := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                raise EOFError("it ends within a compressed stream")
            text = self._stream.decompress(packed, len(buffer))
        buffer[: len(text)] = text
        return len(text)

    @override
    def close(self) -> None:
        self._file.close()
        super().close()


def _open_zst(path: Path, mode: str) -> Any:
    # pyarrow would open only a path that is UTF-8.
    return tables.import_extra("pyarrow", path).input_stream(path.open(mode), compression="zstd")


_OPENERS: dict[str, Callable[[Path, str], Any]] = {
    ".gz": gzip.open,
    ".bz2": lambda path, mode: io.BufferedReader(_Streams(path.open(mode), bz2.BZ2Decompressor)),
    ".xz": lambda path, mode: io.BufferedReader(_Streams(path.open(mode), lzma.LZMADecompressor)),
    ".zst": _open_zst,
}


@contextlib.contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a text, unpacked; it is standard input where the path is STDIN."""
    if path == STDIN:
        if sys.stdin is None:  # the shell closed it
            raise UserError("standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        with files.name_in_errors(path), _OPENERS.get(path.suffix.lower(), Path.open)(path, "rb") as file:
            yield file
    except (FileNotFoundError, IsADirectoryError):
        check_file(path)
        raise
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        kind = path.suffix[1:]
        raise UserError(f"{path} is damaged, or its format is not {kind}: {tables.one_line(error)}") from None
