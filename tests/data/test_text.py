"""Reading text: tokens, counts, and errors that name the line."""

from pathlib import Path

import numpy as np
import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.data import text, text_file
from ptb_lm.data.preparation import Tokenizer
from ptb_lm.data.text_file import LineBlocks, TextSlice
from ptb_lm.data.vocabulary import Vocabulary


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def words(folder: Path, content: str | bytes) -> list[str]:
    vocabulary, ids = text.build_vocabulary(TextSlice(write(folder, content)))
    return [vocabulary.words[index] for index in ids]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a b\nc\n", "a b <eos> c <eos>"),
        (" a  b \n c \n", "a b <eos> c <eos>"),
        ("a b\nc", "a b <eos> c <eos>"),  # the last line ends with the file
        ("a b\nc ", "a b <eos> c <eos>"),
        ("a\n\nb\n", "a <eos> <eos> b <eos>"),
        ("a\r\nb\r\n", "a <eos> b <eos>"),
        ("\ufeffa\tb\n", "a b <eos>"),  # a byte order mark is not part of a word
        ("été 中文 naïve\n", "été 中文 naïve <eos>"),
        ("ab", "ab <eos>"),
        ("\n", "<eos>"),
    ],
)
def test_words(content: str, expected: str, tmp_path: Path) -> None:
    assert words(tmp_path, content) == expected.split()


def test_the_vocabulary_is_by_descending_count_and_then_word(tmp_path: Path) -> None:
    vocabulary, ids = text.build_vocabulary(TextSlice(write(tmp_path, "b a c b\nd a b\n")))
    assert vocabulary.words == ("b", "<eos>", "a", "c", "d")
    assert ids.tolist() == [0, 2, 3, 0, 1, 4, 2, 0, 1]
    assert ids.dtype == np.int32


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_chunks_cut_no_word_and_no_character(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(chunk)
    pieces = ["été", "a", "中文字", "\n", " ", "  ", "\r\n", "long-word-of-many-letters"]
    content = " ".join(pieces[index] for index in rng.integers(len(pieces), size=300))
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    whole = content if content.endswith("\n") else content + "\n"
    assert words(tmp_path, content) == whole.replace("\n", " <eos> ").split()


def test_unknown_words_become_unk(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["a", "<unk>", "<eos>"])
    ids, is_unknown = text.encode(TextSlice(write(tmp_path, "a b a\nc\n")), vocabulary)
    assert ids.tolist() == [0, 1, 0, 2, 1, 2]
    assert is_unknown.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb a\na zebra\n", r"text\.txt, line 3: .*'zebra' .*<unk>"),
        (b"a\rb\r\n\xff a\n", r"text\.txt, line 3: .*0xff"),
        (b"a\nb\n\xff a\n", r"text\.txt, line 3: .*0xff"),
        (b"a\nb \xc3", r"text\.txt, line 2: .*0xc3"),
        (b"a\na\nb\0\n", r"text\.txt, line 3: .*0x00"),
        (b"", r"text\.txt is empty"),
    ],
)
def test_errors_name_file_and_line(
    content: bytes, message: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    path = write(tmp_path, content)
    with pytest.raises(UserError, match=message):
        text.encode(TextSlice(path), Vocabulary(["a", "b", "<eos>"]))


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
@pytest.mark.parametrize("blocks", [None, LineBlocks(2, frozenset({1}))], ids=["whole", "its last two lines"])
@pytest.mark.parametrize("tokenize", ["whitespace", "words"])
def test_an_eos_in_the_text_ends_no_line(
    tokenize: str, blocks: LineBlocks | None, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tokenize == "words":
        pytest.importorskip("nltk")
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    path = write(tmp_path, "a <eos>\n" * 3 + "A <eos> Zebra\n")
    text_slice = TextSlice(path, blocks, Tokenizer(tokenize=tokenize, lowercase=True))
    with pytest.raises(UserError, match=r"text\.txt, line 4: .*'zebra'"):
        text.encode(text_slice, Vocabulary(["a", "<", "eos", ">", "<eos>"]))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"a\n\xff b\n\0\n", "line 2: byte 0xff"),
        (b"a\n\0 b \xff\n", "line 2: byte 0x00"),
        (b"\n\xc3\n\0\xff", "line 2: byte 0xc3"),
        (b"a \xe2\x82\n\0", "line 1: byte 0xe2"),
    ],
)
def test_lines_and_chunks_name_the_same_byte(content: bytes, where: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    for read in (
        lambda path: list(text_file.chunks(TextSlice(path))),
        lambda path: list(text_file.lines(TextSlice(path))),
    ):
        with pytest.raises(UserError, match=f"{path}, {where}"):
            read(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.txt does not exist"):
        text.build_vocabulary(TextSlice(tmp_path / "nothing.txt"))
    with pytest.raises(UserError, match="is a folder"):
        text.build_vocabulary(TextSlice(tmp_path))
