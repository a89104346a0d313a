"""A column of a table as text: JSON Lines, CSV, TSV, Parquet, Arrow; and data sets of `datasets`."""

import csv
import importlib
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ptb_lm.common import streams
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.common.files import absolute
from ptb_lm.data.reading_notes import ReadingNotes

COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
BINARY = (".parquet", ".arrow")
IN_FIRST_LINE = (".csv", ".tsv")  # where the names of the columns are
TABLES = (".jsonl", ".ndjson", ".json", *IN_FIRST_LINE, *BINARY)
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon"}  # and their names for people
HUB = "hf:"  # begins the name of a data set, not of a file
USUAL = ("text", "sentence")  # names of the column that has the text
_QUOTED = re.compile('(?:^|(?<=[,;\t]))"[^"]*(?:""[^"]*)*(?:"|$)')  # a quoted field of a CSV file's line
_TEXT = re.compile("(dictionary<values=)?(large_)?string")  # types of a column, as Arrow writes them
_HEAD = 100  # rows that tell which column it is


def format_of(path: Path) -> str:
    """Return the suffix that tells the format of a file; that of a compression does not count."""
    return Path(path.stem if path.suffix.lower() in COMPRESSION_SUFFIXES else path.name).suffix.lower()


def row_location(path: Path, number: int) -> str:
    """Return where a row is, for people: the line of a table that is text, or else the row; from 1."""
    return f"{'row' if format_of(path) in BINARY else 'line'} {number}"


def line_values(
    path: Path, lines: Iterator[str], column: str | None, notes: ReadingNotes
) -> Iterator[tuple[int, Any]]:
    """Yield the values in a column of a table that is text, each after the number of its row's first line.

    Args:
        path: The file, whose name says what it holds.
        lines: The lines of the file, without their ends.
        column: The column; None: the one that has the text.
        notes: Notes that get the column, if it is chosen though its name is not usual.

    Raises:
        UserError: A line is not a row, or there is no such column.
    """
    rows = (_csv_rows if format_of(path) in IN_FIRST_LINE else _json_rows)(path, lines)
    head = list(itertools.islice(rows, _HEAD))
    if not head:
        return
    names = dict.fromkeys(itertools.chain.from_iterable(row for _, row in head))
    is_text = {name: _has_text([row.get(name) for _, row in head]) for name in names}
    # A JSON object further on may have the column that is named.
    may_follow = column is not None and column not in names and format_of(path) not in IN_FIRST_LINE
    chosen = column if column is not None and may_follow else _choose(is_text, column, path, notes)
    for number, row in itertools.chain(head, rows):
        may_follow = may_follow and chosen not in row
        yield number, row.get(chosen)
    if may_follow:
        _choose(is_text, column, path, notes)  # refuses it: no row has had it


def binary_values(
    path: Path, file: IO[bytes], column: str | None, notes: ReadingNotes
) -> Iterator[tuple[int, Any]]:
    """Yield the values in a column of a table in Parquet's format or Arrow's, each after its row's number.

    Some thousand are in memory.

    Raises:
        UserError: pyarrow is not installed, the file is not such a table, or there is no such column.
    """
    pa, parquet = import_extra("pyarrow", path), import_extra("pyarrow.parquet", path)
    try:
        if format_of(path) == ".arrow":
            table = pa.ipc.open_stream(file)
            schema, only = table.schema, None
        else:  # which is read from its end, as no compressed file can be
            is_packed = path.suffix.lower() in COMPRESSION_SUFFIXES
            table = parquet.ParquetFile(io.BytesIO(file.read()) if is_packed else file)
            schema, only = table.schema_arrow, table.iter_batches
        is_text = {each.name: _TEXT.match(str(each.type)) is not None or None for each in schema}
        chosen = _choose(is_text, column, path, notes)
        batches = only(1000, columns=[chosen]) if only else table
        values = itertools.chain.from_iterable(batch.column(chosen).to_pylist() for batch in batches)
        yield from enumerate(values, 1)
    except (pa.ArrowException, ValueError, KeyError) as error:  # a column's name may be there twice
        kind = format_of(path)[1:]
        raise UserError(
            f"{path} is damaged, or its format is not {kind} as `datasets` writes it: {one_line(error)}"
        ) from None


def texts(path: Path, values: Iterable[tuple[int, Any]], notes: ReadingNotes) -> Iterator[tuple[int, str]]:
    """Yield the text of each row after the row's number; it ends in a newline.

    A row is a line, or several if it has newlines; a newline at its end adds none. An empty text is an empty
    line; a null or missing value is none.

    Args:
        path: The file.
        values: The result of `line_values` or `binary_values`.
        notes: Notes that get the count of rows without a value, once all are read.

    Raises:
        UserError: A value is not text.
    """
    nulls = 0
    for number, value in values:
        if isinstance(value, str):
            yield number, value.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n") + "\n"
        elif value is not None:
            where = f"{path}, {row_location(path, number)}"
            raise UserError(f"{where}: {value!r:.40} is not text; choose another --text-column")
        else:
            nulls += 1
    notes.nulls[path] = nulls


def as_pieces(rows: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the text of rows, some rows at a time."""
    lines = (text for _, text in rows)
    while piece := "".join(itertools.islice(lines, 100)):
        # JSON can have halves of surrogate pairs, which no file can.
        yield re.sub("[\ud800-\udfff]", "\ufffd", piece)


def hub_files(name: str) -> dict[str, list[Path]]:
    """Return the Arrow files of each split of a data set, downloaded and prepared by `datasets` if needed.

    Args:
        name: NAME or NAME/CONFIG after "hf:"; NAME is USER/SET, or a folder of this machine.

    Raises:
        UserError: There is no name, `datasets` is not installed, or cannot load it.
    """
    if not name:
        raise UserError(f"--data {HUB} names no data set; give {HUB}NAME")
    datasets = import_extra("datasets", f"--data {HUB}{name}")
    place, config = _place(name)
    if not streams.is_terminal(sys.stderr):
        datasets.disable_progress_bars()
    try:
        splits = datasets.load_dataset(place, config, keep_in_memory=False)  # in memory it has no files
    except Exception as error:  # of many kinds: of the network, of names, of formats
        # Of one that it cannot make, or has no room for, only the cause says why.
        problem = ": ".join(one_line(each) for each in (error, error.__cause__) if each)
        raise UserError(f"--data {HUB}{name}: {problem}") from None
    return {split: [Path(each["filename"]) for each in part.cache_files] for split, part in splits.items()}


def absolute_name(data: str) -> str:
    """Return a name that means the same data set from any folder."""
    name = data.removeprefix(HUB)
    return f"{HUB}{absolute(Path(name))}" if Path(_place(name)[0]).is_dir() else data


def _place(name: str) -> tuple[str, str | None]:
    """Return (NAME, CONFIG) of NAME/CONFIG."""
    place, _, config = name.rpartition("/")
    has_config = "/" in place or (place and Path(place).is_dir())
    return (place, config) if has_config and not Path(name).is_dir() else (name, None)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())


def import_extra(name: str, subject: object, *, extra: str = "datasets") -> Any:
    """Return a module of a package that only an extra of this one brings.

    Args:
        name: The module.
        subject: The file or the flag that needs it, for the error.
        extra: The extra.

    Raises:
        UserError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UserError(
            f"{subject} needs the package {name}, which is not installed; {how_to_install(extra)}"
        ) from None


def json_object(line: str) -> dict[str, Any] | None:
    """Return a line as a JSON object; None if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json_rows(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            if (row := json_object(line)) is None:
                raise UserError(f"{path}, line {number}: it is not a JSON object; each line must be one")
            yield number, row


def _csv_rows(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # a field may be a book
    if (header := next(lines, None)) is None:
        return
    if not header.strip():
        raise UserError(f"{path}, line 1: it is empty; it must name the columns")
    delimiter = "\t" if format_of(path) == ".tsv" else max(DELIMITERS, key=_QUOTED.sub("", header).count)
    # Strict: a quotation mark that opens no field would otherwise swallow the lines up to the next one.
    reader = csv.reader(
        (f"{line}\n" for line in itertools.chain([header], lines)), delimiter=delimiter, strict=True
    )
    first = 1  # the first line of the row that is read
    try:
        names = next(reader)
        several = {name for name in names if names.count(name) > 1}
        first = reader.line_num + 1
        for fields in reader:
            if len(fields) > len(names):
                raise UserError(f"{path}, line {first}: there are more fields than in the header")
            if fields:
                pairs = list(itertools.zip_longest(names, fields))
                # A name of several columns has all their values, which are no text.
                lists = {name: [text for n, text in pairs if n == name] for name in several}
                yield first, dict(pairs) | lists
            first = reader.line_num + 1
    except csv.Error:
        raise UserError(
            f'{path}, line {first}: a field that begins with " must end in " before the next '
            f"{DELIMITERS[delimiter]}; double the quotation marks within it"
        ) from None


def _has_text(values: list[Any]) -> bool | None:
    """Return whether a column has text: a year may be one of its values. One without values may have some.

    None: it has no strings.
    """
    values = [value for value in values if value not in (None, "")]
    strings = [value for value in values if isinstance(value, str)]
    return not values or (not all(map(_is_number, strings)) if strings else None)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _choose(is_text: Mapping[str, bool | None], column: str | None, path: Path, notes: ReadingNotes) -> str:
    """Return the column that is named, or the one that has the text."""
    in_first_line = format_of(path) in IN_FIRST_LINE
    where = "" if in_first_line or format_of(path) in BINARY else f" in its first {_HEAD} rows"
    if not is_text:
        raise UserError(f"{path} has no column{where}")
    if column is not None and column in is_text:
        return column
    texts = [name for name, text in is_text.items() if text]
    usual = [name for name in USUAL if name in texts]
    if column is None and usual:
        return usual[0]
    if column is None and len(texts) == 1:
        notes.columns[texts[0]] = in_first_line
        return texts[0]
    if column is None and not texts:
        has_strings = any(text is not None for text in is_text.values())
        advice = (
            "--text-column NAME reads one anyway" if has_strings else "a text column must hold plain strings"
        )
        raise UserError(
            f"{path} has the columns {', '.join(is_text)}, and none of them has text{where}; {advice}"
        )
    lacks = "" if column is None else f"has no column {column!r}; it "
    raise UserError(
        f"{path} {lacks}has the columns {', '.join(is_text)}{where}: choose the one that has the text with "
        "--text-column"
    )
