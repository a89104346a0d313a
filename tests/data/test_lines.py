"""Lines: how they end, what only looks like an end, and a text of one line alone."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support import installed

from ptb_lm.data import corpus, splits, text_file
from ptb_lm.data.preparation import Preparation, Tokenizer
from ptb_lm.data.reading_notes import ReadingNotes
from ptb_lm.data.vocabulary import Vocabulary


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "tokenize", [pytest.param("words", marks=installed("nltk")), "whitespace", "characters"]
)
@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_ends_of_lines_are_those_of_python_s_text_files(
    end: str, tokenize: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "a  b\n\n c é \nd\u3000 \u3000e\n" * 3 + "last"
    preparation, digests = Preparation(tokenize=tokenize), set()
    for name, ends, size in (("lf.txt", "\n", 1 << 20), ("other.txt", end, chunk)):
        monkeypatch.setattr(text_file, "CHUNK_BYTES", size)
        (tmp_path / name).write_bytes(content.replace("\n", ends).encode())
        assert list(text_file.lines(text_file.TextSlice(tmp_path / name))) == content.split("\n")
        digests.add(corpus.load(tmp_path / name, preparation).sha256)
    assert len(digests) == 1


def test_a_note_counts_other_ends_of_lines_once(tmp_path: Path) -> None:
    for split in splits.SPLITS:
        (tmp_path / f"{split}.txt").write_text("a\u2028b a\u2028b\x0cb\n" if split == "train" else "a \x85\n")
    (note,) = corpus.load(tmp_path).notes
    assert "2 U+2028 and 2 NEL and 1 form feed" in note
    assert corpus.load(tmp_path, Preparation(min_count=1), vocabulary=Vocabulary("a"), extend=True).notes == (
        note,
    )
    (tmp_path / "line").write_text("a a\u2028" * 100)
    _, note = corpus.load(tmp_path / "line", Preparation()).notes
    assert "100 U+2028" in note
    for split in splits.SPLITS:
        (tmp_path / f"{split}.txt").write_text("a b " * 5_000 if split == "train" else "a\n" * 10_000)
    (note,) = corpus.load(tmp_path).notes
    assert "one line" in note
    assert "10,001" in note


def test_the_lines_of_one_file_have_that_note_too(tmp_path: Path) -> None:
    """As score reads it."""
    (tmp_path / "text").write_text("a\u2028b\x85c\nd \x0ce")
    notes = ReadingNotes()
    assert list(text_file.lines(text_file.TextSlice(tmp_path / "text", notes=notes))) == [
        "a\u2028b\x85c",
        "d \x0ce",
    ]
    (note,) = notes.sentences()
    assert "1 U+2028 and 1 NEL and 1 form feed" in note


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    "tokenize", [pytest.param("words", marks=installed("nltk")), "whitespace", "characters"]
)
@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_a_file_of_one_line_is_split_by_words(
    chunk: int, tokenize: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    rng = np.random.default_rng(0)
    line = " ".join(rng.choice(["the", "cat", "sat", "on", "a", "mat"], size=300))
    path = tmp_path / "text8"
    path.write_text(line + end)
    expected = Tokenizer(tokenize=tokenize).words(line)
    loaded = corpus.load(path, Preparation(tokenize=tokenize, valid_fraction=0.05, test_fraction=0.2))
    words = {split: [loaded.vocabulary.words[i] for i in ids] for split, ids in loaded.splits.items()}
    assert [*words["train"], *words["valid"], *words["test"]] == expected
    assert (len(words["valid"]), len(words["test"])) == (
        round(len(expected) * 0.05),
        round(len(expected) * 0.2),
    )
    (note,) = loaded.notes
    assert "no <eos> is added" in note


@pytest.mark.parametrize("unit", ["abc de ", "这是没有空格的文字"])
def test_characters_of_one_line_take_twelve_bytes_each(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 1 << 10)
    path = tmp_path / "line.txt"
    path.write_text(unit * (60_000 // len(unit)))
    tracemalloc.start()
    try:
        loaded = corpus.load(path, Preparation(tokenize="characters"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    characters = sum(map(len, loaded.splits.values()))
    assert characters == pytest.approx(60_000, abs=10)
    assert peak < 12 * characters + 100 * text_file.CHUNK_BYTES
