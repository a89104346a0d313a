"""Texts as they lie on disks: tables, packed files, folders of many names."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import installed

from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus, splits, tables, text, text_file
from ptb_lm.data.preparation import Preparation
from ptb_lm.data.reading_notes import ReadingNotes
from ptb_lm.data.text_file import LineBlocks, TextSlice
from ptb_lm.data.vocabulary import Vocabulary

LINES = [" = Title = ", "", 'He said "no", twice; é 中文 \u2028 .', "the end", "7"]
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: bytes(pytest.importorskip("pyarrow").compress(content, "zstd", asbytes=True)),
}
TABLES = [".jsonl", ".csv", ".tsv", ".parquet", ".arrow"]


def table(kind: str, columns: dict[str, list[Any]]) -> bytes:
    """Return a table as the library `datasets` writes it."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    file, rows = io.BytesIO(), datasets.Dataset.from_dict(columns)
    if kind == ".arrow":
        pa = pytest.importorskip("pyarrow")
        with pa.ipc.new_stream(file, rows.data.table.schema) as stream:
            stream.write_table(rows.data.table)
    elif kind == ".jsonl":
        rows.to_json(file)
    elif kind == ".parquet":
        rows.to_parquet(file)
    else:
        rows.to_csv(file, sep="\t" if kind == ".tsv" else ",")
    return file.getvalue()


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("kind", [".txt", *TABLES])
def test_every_format_has_the_same_lines(kind: str, packing: str, tmp_path: Path) -> None:
    content = "\n".join(LINES).encode()
    if kind != ".txt":
        content = table(kind, {"id": [3, 1, 4, 1, 5], "text": LINES, "source": ["x"] * 5})
    path = tmp_path / f"corpus{kind}{packing}"
    path.write_bytes(PACKED[packing](content))
    assert list(text_file.lines(TextSlice(path))) == LINES
    assert sum(chunk.count("\n") for _, chunk in text_file.chunks(TextSlice(path))) == len(LINES)


@pytest.mark.parametrize("kind", TABLES)
def test_newlines_within_a_row_are_ends_of_lines(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus{kind}"
    path.write_bytes(table(kind, {"body": ["a b\nc\r\nd\n", "e\rf", "\n", "g"]}))
    assert list(text_file.lines(TextSlice(path))) == ["a b", "c", "d", "e", "f", "", "g"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\n1,a\n\n2,\n3\n4,b\n"),
        ("a.tsv", "id\ttext\n1\ta\n2\t\n3\n4\tb\n"),
        ("a.jsonl", '{"text": "a"}\n{"text": ""}\n{"text": null}\n\n{"id": 4, "text": "b"}\n'),
        ("a.jsonl", '{"text": "a"}\n{"text": ""}\n{"id": 3}\n{"text": "b"}\n'),
    ],
)
def test_an_empty_text_is_an_empty_line_and_a_missing_one_is_none(
    name: str, content: str, tmp_path: Path
) -> None:
    path, notes = tmp_path / name, ReadingNotes()
    path.write_text(content)
    assert list(text_file.lines(TextSlice(path, notes=notes))) == ["a", "", "b"]
    assert notes.nulls == {path: 1}


def test_rows_without_a_text_are_counted_once(tmp_path: Path) -> None:
    """A file that is split is read for each split; of a folder each file counts."""
    one, rows = tmp_path / "joined.jsonl", '{"text": "a b"}\n{"body": "c"}\n{"text": null}\n'
    one.write_text(rows * 600)
    assert corpus.load(one, Preparation()).notes == ("1,200 rows without a text left out",)
    one.write_text(rows.replace("a b", "a a " * 10))
    *_, note = corpus.load(one, Preparation()).notes
    assert note == "2 rows without a text left out"
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, split in itertools.product(range(2), splits.SPLITS):
        (folder / f"{split}-{number}-of-2.jsonl").write_text(rows if split == "valid" else rows[:30])
    assert corpus.load(folder).notes == ("8 rows without a text left out",)


ERRORS = {
    "header.csv": ("id,text\n1,a b\n2,a zzz\n", "line 3"),
    "blank.csv": ("id,text\n\n1,a b\n\n2,a zzz\n3,b\n", "line 5"),
    "several.csv": ('id,text\n1,"a\nb\n\na"\n2,a zzz\n', "line 6"),
    "row.csv": ('id,text\n1,"a\nzzz\nb"\n', "line 2"),
    "null.jsonl": ('{"text": null}\n\n{"text": ""}\n{"text": "a\\nb"}\n{"text": "a zzz"}\n', "line 5"),
    "several.jsonl": ('{"text": "a\\na"}\n{"text": "b\\nzzz\\nb"}\n{"text": "a"}\n', "line 2"),
    "null.parquet": (["a", None, "a\nb", "zzz", "b"], "row 4"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_the_line_or_row_of_a_table(name: str, tmp_path: Path) -> None:
    """Read whole, from the last lines on, and after another file."""
    (content, where), path, known = ERRORS[name], tmp_path / name, Vocabulary(["a", "b", "<eos>"])
    path.write_bytes(content.encode() if isinstance(content, str) else table(path.suffix, {"text": content}))
    other = tmp_path / f"other{path.suffix}"
    other.write_bytes(table(path.suffix, {"text": ["a", "", "b\nb"]}))
    last = LineBlocks(1, frozenset(range(1, 9)))
    for text_slice in (TextSlice(path), TextSlice(path, last), TextSlice(other, shards=(path, other))):
        with pytest.raises(UserError, match=f"^{path}, {where}: the word 'zzz' "):
            text.encode(text_slice, known)


def test_an_error_in_a_pipe_counts_the_lines_of_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("id,text\n1,a\n2,zzz\n",))
    writer.start()
    with pytest.raises(UserError, match=f"^{path}, line 2 of its text: the word 'zzz' "):
        text.encode(TextSlice(path), Vocabulary(["a", "<eos>"]))
    writer.join()


@pytest.mark.parametrize(
    ("row", "wanted", "expected"),
    [
        ({"id": "7", "body": "of body", "n": 1.5}, None, "of body"),
        ({"label": "l", "sentence": "s"}, None, "s"),
        ({"sentence": "s", "text": "t"}, None, "t"),
        ({"text": 5, "body": "b"}, None, "b"),
        ({"abstract": None, "body": "b"}, None, "columns abstract, body .*--text-column"),
        ({"title": "t", "body": "b"}, "title", "t"),
        ({"title": "t", "body": "b"}, None, "columns title, body .*--text-column"),
        (
            {"title": "t", "body": "b"},
            "nothing",
            "no column 'nothing'; .* columns title, body .*--text-column",
        ),
        ({"id": 3}, None, "columns id, and none of them has text .*strings"),
        ({"doc": {"text": "t"}}, None, "columns doc, and none of them has text .*strings"),
        ({"id": "3"}, None, "columns id, and none of them has text .*--text-column "),
        ({"text": None, "body": "b"}, None, "has no text in its 3 rows; choose another --text-column"),
        ({"id": 3}, "id", "line 2: 3 is not text"),
        ({}, None, "has no column in "),
    ],
)
def test_a_column_is_chosen_or_asked_for(
    row: dict[str, Any], wanted: str | None, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("{}\n" + json.dumps(row) + "\n\n" + json.dumps(dict.fromkeys(row)) + "\n")
    if " " not in expected or expected.startswith("of "):
        assert list(text_file.lines(TextSlice(path, column=wanted))) == [expected]
        return
    with pytest.raises(UserError, match=expected):
        list(text_file.lines(TextSlice(path, column=wanted)))


@pytest.mark.parametrize(
    ("name", "content", "wanted", "expected"),
    [
        ("a.csv", "the judge sues\nthe court\n", None, "'the judge sues', .*; the first line .* names it"),
        (
            "a.tsv",
            "the judge sues\t1\nthe court\t2\n",
            None,
            "'the judge sues', .*; the first line .* names it",
        ),
        ("a.jsonl", '{"id": 1, "body": "a"}\n', None, "'body', the only one with text"),
        ("a.jsonl", '{"id": 1, "body": "a"}\n', "body", None),
        ("a.csv", "sentence,note\na,b\n", None, None),
        ("a.csv", "sentence,,\na,,\n", None, None),
        ("a.csv", "note,note,sentence\nb,c,a\n", None, None),
        # What stands in quotation marks delimits nothing.
        ("a.csv", 'n;"raw,text,x"\n1;"a"\n', None, "'raw,text,x', the only one with text; the first .*"),
        ("a.csv", 'text,"note;x;y"\na,b\n', None, None),
        ("a.csv", '"text";"a, ""b"" and, c"\na;b\n', None, None),
        ("a.csv", 'n;"text, cleaned"\n1;a\n', None, "'text, cleaned', the only one with text; the first .*"),
        ("a.tsv", '"n,,m"\ttext\nb\ta\n', None, None),
    ],
)
def test_a_column_of_an_unusual_name_is_told_once(
    name: str, content: str, wanted: str | None, expected: str | None, tmp_path: Path
) -> None:
    for split in splits.SPLITS:
        (tmp_path / name.replace("a", split)).write_text(content)
    notes = corpus.load(tmp_path, column=wanted).notes
    assert len(notes) == (expected is not None)
    assert all(re.fullmatch(f"the text is the column {expected}", note) for note in notes)


def test_a_column_may_come_after_the_first_rows(tmp_path: Path) -> None:
    """Also in one of several files only."""
    paths = tuple(tmp_path / f"{name}.jsonl" for name in "ab")
    for path, before in zip(paths, (0, 150), strict=True):
        path.write_text('{"id": 1}\n' * before + '{"id": 1, "body": "late"}\n')
    text_slice = TextSlice(paths[0], column="body", shards=paths[1:])
    assert list(text_file.lines(text_slice)) == ["late", "late"]
    assert text_slice.notes.nulls.total() == 150


def test_a_name_of_two_columns_names_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,text\n1,a,b\n")
    with pytest.raises(UserError, match=r"line 2: \['a', 'b'\] is not text; choose another"):
        list(text_file.lines(TextSlice(tmp_path / "a.csv", column="text")))


@pytest.mark.parametrize("first", ["1984", "nan", ""])
@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_a_text_may_begin_with_a_number(kind: str, first: str, tmp_path: Path) -> None:
    path, lines = tmp_path / f"corpus{kind}", [first, "a b"]
    path.write_bytes(table(kind, {"text": lines, "label": ["good", "bad"]}))
    assert list(text_file.lines(TextSlice(path))) == lines


def test_a_parquet_column_of_other_text_is_found(tmp_path: Path) -> None:
    """As categories, as some programs write them; what no text can be is refused in one sentence."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [pa.array(["a b", "c", "a b"]).dictionary_encode(), pa.array(["d"] * 3, pa.string_view())]
    latin_1 = pa.Array.from_buffers(
        pa.string(), 1, [None, *map(pa.py_buffer, (bytes(4) + b"\1\0\0\0", b"\xe9"))]
    )
    for number, column in enumerate([*columns, latin_1]):
        parquet.write_table(
            pa.table({"n": [*range(len(column))], "body": column}), tmp_path / f"{number}.parquet"
        )
    assert list(text_file.lines(TextSlice(tmp_path / "0.parquet"))) == ["a b", "c", "a b"]
    assert list(text_file.lines(TextSlice(tmp_path / "1.parquet"))) == ["d"] * 3
    parquet.write_table(pa.Table.from_arrays(columns, names=["text"] * 2), tmp_path / "3.parquet")
    for number, problem in ((2, "0xe9"), (3, "2 times")):
        with pytest.raises(UserError, match=f"{number}.parquet is damaged, or .*{problem}"):
            list(text_file.lines(TextSlice(tmp_path / f"{number}.parquet")))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b'{"text": "a"}\n["a"]\n', "line 2: .*JSON object"),
        # Were an empty line passed over, semicolons would be part of the text.
        ("a.csv", b"\nid;text\n1;hello there\n", "line 1: it is empty"),
        ("a.tsv", b"\nid;text\n1;hello there\n", "line 1: it is empty"),
        ("a.csv", b'text,n\n"a" b,1\n', "line 2: .* before the next comma; double"),
        ("a.csv", b'"text" n\na\n', "line 1: .* before the next comma"),
        ("a.csv", b'id;text\n1;"a\nb"\n2;"c" d\n', "line 4: .* before the next semicolon"),
        ("a.csv", b'id,text\n\n\n\n1,"a" b\n', "line 5: .* before the next comma"),
        ("a.tsv", b'id\ttext\n1\ta, b, c\n2\t"judge" sues\n', "line 3: .* before the next tab; double"),
        ("a.tsv", b'id\ttext\n1\ta\n2\t"the judge sues\n3\tb\n4\tc\n', "line 3: .* before the next tab"),
        ("a.csv", b"n,text\n1,a, b\n", "line 2: .*more fields"),
        ("a.csv", b'text\na\n"open\n', "line 3: .* must end in "),
        ("a.csv", b"id,text,text\n1,a,b\n", "columns id, text, and none"),
        ("a.parquet", b"no such thing", "format is not parquet"),
        ("a.arrow", b"no such thing", "format is not arrow"),
        ("a.txt.gz", gzip.compress(b"a b\n" * 99, mtime=0)[:-9], "is damaged"),
        ("a.txt.gz", b"a b\n", "format is not gz"),
        ("a.txt.bz2", b"a b\n", "format is not bz2"),
        ("a.txt.bz2", b"", "is damaged"),
        ("a.txt.bz2", bz2.compress(b"a b\n")[:-9], "ends within a compressed stream"),
        ("a.txt.xz", b"a b\n", "format is not xz"),
        ("a.txt.zst", b"a b\n", "format is not zst"),
        ("a.jsonl", b"", "is empty"),
        ("a.txt", b'{"text": "a"}\n\n {"text": "b c"}', "JSON object.*--text-column"),
        ("a.txt", b'{"text": "a"}\n' * 1000, "JSON object.*--text-column"),
        ("a.csv", b"text\n\xff\n", "line 2: .*0xff"),
    ],
)
@pytest.mark.parametrize("chunk", [2, 1 << 20])
def test_a_broken_or_misnamed_table_is_refused(
    chunk: int, name: str, content: bytes, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ".zst" in name or Path(name).suffix in (".parquet", ".arrow"):
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem):
        list(text_file.lines(TextSlice(tmp_path / name)))


@pytest.mark.parametrize("chunk", [2, 1 << 20])
@pytest.mark.parametrize("between", [0, 4, 20_000])
@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz"])
def test_compressed_streams_may_follow_each_other(
    packing: str, between: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cat` and programs for several threads make such a file; zeros pad it."""
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    path, streams = tmp_path / f"a.txt{packing}", [b"a b\nc", b"", b" d\n", b"e\n" * 50]
    path.write_bytes(b"".join(PACKED[packing](each) + bytes(between) for each in streams))
    assert list(text_file.lines(TextSlice(path))) == ["a b", "c d", *["e"] * 50]
    path.write_bytes(PACKED[packing](b"") + bytes(between))
    with pytest.raises(UserError, match="is empty"):
        list(text_file.lines(TextSlice(path)))


@pytest.mark.parametrize("packing", [each for each in PACKED if each])
@pytest.mark.parametrize(
    "damage",
    [
        lambda stream: bytes([stream[0] ^ 1]) + stream[1:],
        lambda stream: stream[:1] + bytes([stream[1] ^ 0x80]) + stream[2:],
        lambda stream: stream[:3],
        lambda stream: stream[:-5],
        lambda stream: stream + b"no stream",
    ],
    ids=["its first byte", "its second byte", "its head is cut", "its end is cut", "more"],
)
def test_damage_in_a_later_stream_is_not_the_end(
    damage: Callable[[bytes], bytes], packing: str, tmp_path: Path
) -> None:
    path, stream = tmp_path / f"a.txt{packing}", PACKED[packing](b"a b\n" * 50)
    path.write_bytes(stream + damage(stream))
    with pytest.raises(UserError, match=f"{path} is damaged, or its format is not {packing[1:]}: "):
        list(text_file.lines(TextSlice(path)))


@pytest.mark.parametrize("packing", PACKED)
def test_a_file_is_opened_by_any_name(packing: str, tmp_path: Path) -> None:
    """Also one that is not UTF-8; one that is missing, or a folder's, has the sentence of any other."""
    path = tmp_path / f"\udcff.txt{packing}"
    path.write_bytes(PACKED[packing](b"a b\n"))
    assert list(text_file.lines(TextSlice(path))) == ["a b"]
    folder = tmp_path / f"d{packing}"
    folder.mkdir()
    for name, problem in ((folder, "is a folder, not a text file"), (folder / path.name, "does not exist")):
        with pytest.raises(UserError, match=re.escape(f"{name} {problem}")):
            list(text_file.lines(TextSlice(name)))


def test_json_objects_from_a_pipe_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"a": 1}\n')))
    with pytest.raises(UserError, match=r"standard input .*JSON object"):
        list(text_file.lines(TextSlice(text_file.STDIN)))


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        # What only looks like JSON, or like several columns.
        ("a.txt", '{"a": 1}\nand a word\n', ['{"a": 1}', "and a word"]),
        ("a.txt", "{ a }\n", ["{ a }"]),
        ("a.txt", "{" * 100_000 + "\n", ["{" * 100_000]),
        ("a.tsv", "sentence, of a court\nthe judge, who sues\na; b\n", ["the judge, who sues", "a; b"]),
        # Half a surrogate pair becomes a character.
        ("a.jsonl", '{"text": "a \\ud83d b"}\n', ["a \ufffd b"]),
    ],
    ids=range(5),
)
def test_unusual_texts_are_read(name: str, content: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert list(text_file.lines(TextSlice(tmp_path / name))) == lines


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("{ a }\n")
    with pytest.raises(UserError, match=r"plain text, .*--text-column"):
        list(text_file.lines(TextSlice(tmp_path / "a.txt", column="a")))


def test_text_that_begins_as_json_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    written = '{"a": 1}\n' * 99 + "{ a }\n" * 200
    path.write_text(written)
    for size in (1, 7, 1 << 10):
        monkeypatch.setattr(text_file, "CHUNK_BYTES", size)
        assert "".join(chunk for _, chunk in text_file.chunks(TextSlice(path))) == written
    path.write_text("{ a }\n" * 200_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in text_file.lines(TextSlice(path))) == 200_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * text_file.CHUNK_BYTES


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.txt.zst", "hf:some/data"])
def test_a_format_of_the_extra_says_how_to_install_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name.replace("/", "-")).touch()
    path = Path(name) if name.startswith("hf:") else tmp_path / name
    with pytest.raises(UserError, match=r"not installed; .*\[datasets\]"):
        corpus.load(path, Preparation())


def test_a_data_set_has_a_name() -> None:
    with pytest.raises(UserError, match="hf: names no data set"):
        corpus.load("hf:")


@pytest.mark.parametrize(
    "names",
    [
        "train.tokens valid.tokens test.tokens",
        "wiki.train.tokens.gz wiki.valid.tokens.gz wiki.test.tokens.gz",
        "train.txt val.txt test.txt",
        "train.txt dev.txt test.txt",
        "train validation test",
        "ptb.train.txt ptb.valid.txt ptb.test.txt",
        "train.jsonl validation.jsonl test.jsonl",
        "train.csv.xz dev.csv.xz test.csv.xz",
        "train-00000-of-00001.parquet validation-00000-of-00001.parquet test-00000-of-00001.parquet",
        "train/data-00000-of-00001.arrow validation/data-00000-of-00001.arrow test/data-00000-of-00001.arrow",
        "train/0000.parquet valid/0000.parquet test/0000.parquet",
        "train/a.csv valid/a.csv.gz test/b.csv",
        "train/a.tsv dev/a.tsv test/a.tsv",
        "train-00000-of-00001-3e1.parquet val-00000-of-00001-d2.parquet test-00000-of-00001-a09b.parquet",
    ],
)
def test_folders_of_many_names(names: str, tmp_path: Path) -> None:
    expected = {"train": "a a b", "valid": "b", "test": "a"}
    for name, line in zip(names.split(), expected.values(), strict=True):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        kind, packing = ((*path.suffixes, "", "")[i] for i in (0, 1)) if ".csv" in name else (path.suffix, "")
        packing = ".gz" if name.endswith(".gz") else packing
        content = table(kind, {"text": [line]}) if kind in TABLES else f"{line}\n".encode()
        path.write_bytes(PACKED[packing](content))
        (path.parent / "cache-1f2e.arrow").write_bytes(b"computed from the split")
        (path.parent / "state.json").write_text("about the split")
    for other in ("train.log", "dataset_dict.json", "training.txt", "README.md"):
        (tmp_path / other).write_text("x")
    loaded = corpus.load(tmp_path)
    words = {split: [loaded.vocabulary.words[i] for i in ids] for split, ids in loaded.splits.items()}
    assert words == {split: [*line.split(), "<eos>"] for split, line in expected.items()}


@pytest.mark.parametrize("name", ["{}.csv", "wiki.{}.tokens", "{}-0-of-1.jsonl"])
def test_folders_of_something_else_beside_the_files_are_left_alone(name: str, tmp_path: Path) -> None:
    """Where there is nothing else, it is told what they are."""
    for split in splits.SPLITS:
        (tmp_path / split).mkdir()
        (tmp_path / split / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match=f"{tmp_path / 'train'} is a folder, not a text file"):
        corpus.load(tmp_path)
    for split in splits.SPLITS:
        content = '{"text": "a"}' if "json" in name else "a" if "wiki" in name else "text\na"
        (tmp_path / name.format(split)).write_text(f"{content}\n")
    assert corpus.load(tmp_path).vocabulary.words == ("<eos>", "a")


def test_an_empty_file_of_several_is_no_empty_text(tmp_path: Path) -> None:
    for split in splits.SPLITS:
        (tmp_path / f"{split}-00000-of-00002.txt").touch()
        (tmp_path / f"{split}-00001-of-00002.txt").write_text("a\n")
    assert corpus.load(tmp_path).splits["test"].tolist() == [1, 0]
    for split in splits.SPLITS:
        (tmp_path / f"{split}-00001-of-00002.txt").write_text("")
    with pytest.raises(UserError, match=r"train-00000-of-00002\.txt is empty"):
        corpus.load(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "{}-{:05}-of-00011.jsonl",
        "{}-{}-of-11.jsonl",
        "{}-{}-of-11",
        "{}/part-{}.jsonl",
        "{}/{}-best-of-2019.jsonl",
    ],
)
def test_the_shards_of_a_split_are_read_in_their_order(name: str, tmp_path: Path) -> None:
    for number, split in itertools.product(range(11), splits.SPLITS):
        path = tmp_path / name.format(split, number)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"text": "w{number}"}}\n' if path.suffix else f"w{number}\n")
    for other in ("test.jsonl", "valid.jsonl"):  # of another kind, of which there is no train
        (tmp_path / other).write_text('{"text": "x"}\n')
    loaded = corpus.load(tmp_path)
    words = " ".join(loaded.vocabulary.words[i] for i in loaded.splits["test"])
    assert words == " ".join(f"w{number} <eos>" for number in range(11))
    if "-of-" in name and "/" not in name:
        (tmp_path / name.format("valid", 3)).unlink()
        with pytest.raises(UserError, match="10 of the 11 files valid-"):
            corpus.load(tmp_path)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "is a pipe"),
        (os.mkdir, "is a folder"),
        (lambda path: path.symlink_to("no"), "does not exist"),
    ],
)
def test_a_pipe_or_folder_with_the_name_of_a_split_is_named(
    make: Callable[[Path], None], what: str, tmp_path: Path
) -> None:
    for split in ("valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a\n")
    make(tmp_path / "train.txt")
    with pytest.raises(UserError, match=rf"train\.txt {what}"):
        corpus.load(tmp_path)


@pytest.mark.parametrize("url", ["https://example.com/x.txt", "http://localhost:80/a/b", "s3://bucket/c.d"])
def test_a_url_is_called_a_url(url: str) -> None:
    for read in (corpus.load, lambda url: list(text_file.lines(TextSlice(Path(url))))):
        with pytest.raises(UserError, match=rf"^{url} is a URL"):
            read(url)


@installed("datasets")
@pytest.mark.parametrize("config", ["", "/one"])
def test_a_data_set_by_its_name(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "IN_MEMORY_MAX_SIZE", 1e12)  # keeps a set that is small in memory
    folder = tmp_path / "set"
    folder.mkdir()
    for split, line in (("train", "a b a"), ("validation", "b"), ("test", "a")):
        (folder / f"{split}.jsonl").write_text(f'{{"text": "{line}"}}\n')
    if config:
        files = "".join(f"  - split: {s}\n    path: {s}.jsonl\n" for s in ("train", "validation", "test"))
        (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: one\n  data_files:\n{files}---\n")
    monkeypatch.chdir(tmp_path)
    for named in (folder, folder.name):
        assert corpus.load(f"hf:{named}{config}").sha256 == corpus.load(folder).sha256
    assert tables.absolute_name(f"hf:set{config}") == f"hf:{folder}{config}"
    for name in ("some_set", "some/set", "some/set/one"):  # not the folder that we are in
        assert tables.absolute_name(f"hf:{name}") == f"hf:{name}"
    with pytest.raises(UserError, match=f"hf:{folder}/two"):
        corpus.load(f"hf:{folder}/two")
    (folder / "test.jsonl").unlink()
    if not config:
        with pytest.raises(UserError, match=r"lacks the test split; .*train, validation"):
            corpus.load(f"hf:{folder}")
        (folder / "test.jsonl").write_text('{"another": "a"}\n')
        with pytest.raises(UserError, match=rf"hf:{folder}: .*column names don't match"):
            corpus.load(f"hf:{folder}")
