"""Raw text: its words, its vocabulary and its splits; and prepared text, read as it is."""

import dataclasses
import hashlib
import itertools
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support import installed

from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus, preparation, splits, text, text_file
from ptb_lm.data.preparation import SPACE, TOKENIZERS, Preparation, Tokenizer, from_flags
from ptb_lm.data.text_file import TextSlice
from ptb_lm.data.vocabulary import Vocabulary

# Digests of the corpus that version 0.1.0 read from the files in data/README.md.
PTB_VOCABULARY = "ab5a101c0a4fc91bce28e83556c3ab4f550a1982221752f1c964bb0d27590f7d"
PTB_CORPUS = "7b2a69b6f7bf27400cccca8ccc3993728b83cd70d81ed2907c69d36759f39a28"
# Digest of the numbers of the lines that are held out of a file of a thousand.
HELD_OUT = "a6d4ddaf886a44e0ccfd38089314deab2d80e1f49a687e62a0b7ab80dab1f3ad"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def greek(lines: int, seed: int = 0) -> str:
    """Text in another alphabet, with rare words, numbers, capitals and marks beyond the first plane."""
    rng = np.random.default_rng(seed)
    words = [
        f"{stem}{end}" for stem in ("Λόγος", "ΘΆΛΑΣΣΑ", "φῶς", "été", "中文", "😀") for end in ("", "ν", "ς")
    ]
    drawn = rng.zipf(1.4, size=(lines, 7)).clip(max=60) - 1
    return "".join(
        " ".join(words[n] if n < len(words) else str(1900 + n) for n in line) + "\n" for line in drawn
    )


def decode(loaded: corpus.Corpus, split: str) -> list[str]:
    return " ".join(loaded.vocabulary.words[i] for i in loaded.splits[split]).split("<eos>")[:-1]


def test_penn_treebank_is_read_as_ever(penn_treebank: Path) -> None:
    loaded = corpus.load(penn_treebank)
    assert loaded.vocabulary.sha256 == PTB_VOCABULARY
    assert loaded.sha256 == PTB_CORPUS == corpus.PENN_TREEBANK_SHA256
    for steps, windows in ((20, 2323), (35, 1327)):  # of an epoch of small, and of medium
        assert corpus.count_windows(loaded.splits["train"], batch_size=20, num_steps=steps) == windows


def test_a_prepared_folder_is_read_as_ever(tmp_path: Path) -> None:
    content = {"train": "b A\tb 7 <unk>\n\nA b\r\n", "valid": "7 <eos> zebra\n", "test": "A\u00a0b"}
    for split, lines in content.items():
        write(tmp_path / f"{split}.txt", lines)
    loaded = corpus.load(tmp_path)
    expected = {
        split: (lines.removesuffix("\n") + "\n").replace("\n", " <eos> ").split()
        for split, lines in content.items()
    }
    counts = Counter(expected["train"])
    words = sorted(counts, key=lambda word: (-counts[word], word))
    assert loaded.vocabulary.words == tuple(words)
    for split, tokens in expected.items():
        ids = [words.index(word if word in counts else "<unk>") for word in tokens]
        assert loaded.splits[split].tolist() == ids


@pytest.mark.parametrize(
    ("min_count", "vocab_size"),
    [(1, None), (2, None), (5, None), (None, 10), (None, 3), (None, 9), (None, 55)],  # 49 are seen twice
)
def test_a_limit_does_what_replacing_rare_words_beforehand_does(
    min_count: int | None, vocab_size: int | None, tmp_path: Path
) -> None:
    content = greek(200) + "<unk> a b\n"
    tokens = content.replace("\n", " <eos> ").split()
    counts = Counter(word for word in tokens if word not in ("<eos>", "<unk>"))
    common = sorted(counts, key=lambda word: (-counts[word], word))
    kept = [word for word in common if counts[word] >= (min_count or 1)][: vocab_size and vocab_size - 2]
    lines = (" ".join(w if w in kept else "<unk>" for w in line.split()) for line in content.splitlines())
    vocabulary, ids = text.build_vocabulary(
        TextSlice(write(tmp_path / "raw.txt", content)),
        Preparation(min_count=min_count, vocab_size=vocab_size),
    )
    expected, expected_ids = text.build_vocabulary(
        TextSlice(write(tmp_path / "done.txt", "\n".join(lines) + "\n"))
    )
    assert vocabulary.words == expected.words
    assert len(vocabulary) == (vocab_size or len(vocabulary))
    np.testing.assert_array_equal(ids, expected_ids)


def test_unk_has_a_place_even_if_no_word_is_rare(tmp_path: Path) -> None:
    vocabulary, ids = text.build_vocabulary(
        TextSlice(write(tmp_path / "raw.txt", "a a\n")), Preparation(min_count=1)
    )
    assert vocabulary.words == ("a", "<eos>", "<unk>")
    assert ids.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("tokenizer", "line", "expected"),
    [
        (Tokenizer(), " Two  words\n", "Two words"),
        (Tokenizer(lowercase=True), "ΘΆΛΑΣΣΑ Été", "θάλασσα été"),
        (Tokenizer(numbers=True), "7 -3.5 1,000 1987/88 10:30 ٣ 7th U2 . -", "N N N N N N 7th U2 . -"),
        (Tokenizer(lowercase=True, numbers=True), "N 5 n", "N N n"),
        (Tokenizer(tokenize="characters"), " ab  c\n", f"a b {SPACE} c"),
        (Tokenizer(tokenize="characters", lowercase=True), "Ω😀İ", "ω 😀 i \u0307"),
        (Tokenizer(tokenize="characters", lowercase=True, numbers=True), "NO 12", f"n o {SPACE} N N"),
    ],
)
def test_words(tokenizer: Tokenizer, line: str, expected: str) -> None:
    assert tokenizer.words(line) == expected.split(" ")
    assert tokenizer.prefix_tokens(f"{line.rstrip()}\nx\n") == [*expected.split(" "), "<eos>", "x", "<eos>"]


@pytest.mark.parametrize(
    ("text", "at_the_beginning", "within"),
    [
        ("ab ", f"a b {SPACE}", f"a b {SPACE}"),
        (" \tab\n c", f"a b {SPACE} c", f"{SPACE} a b {SPACE} c"),
        (" ", "", SPACE),
        ("", "", ""),
    ],
)
def test_the_space_after_a_prefix_is_a_character(text: str, at_the_beginning: str, within: str) -> None:
    tokenizer = Tokenizer(tokenize="characters")
    assert tokenizer.prefix(text) == at_the_beginning.split()
    assert tokenizer.prefix(text, begins=False) == within.split()
    for begins in (True, False):
        assert Tokenizer(lowercase=True).prefix(text.upper(), begins=begins) == text.split()


@pytest.mark.parametrize(
    ("text", "at_the_beginning", "within"),
    [
        (" ab\tc \n b ", f"a b {SPACE} c <eos> b {SPACE}", f"{SPACE} a b {SPACE} c <eos> b {SPACE}"),
        ("a\n\n", "a <eos> <eos>", "a <eos> <eos>"),
        ("\nB", "<eos> b", "<eos> b"),
        ("a ", f"a {SPACE}", f"a {SPACE}"),
    ],
)
def test_each_newline_of_a_text_that_goes_on_is_an_eos(text: str, at_the_beginning: str, within: str) -> None:
    tokenizer = Tokenizer(tokenize="characters", lowercase=True)
    assert tokenizer.prefix_tokens(text) == at_the_beginning.split()
    assert tokenizer.prefix_tokens(text, begins=False) == within.split()
    for begins in (True, False):
        words = Tokenizer(lowercase=True).prefix_tokens(text, begins=begins)
        assert words == text.lower().replace("\n", " <eos> ").split()


@installed("nltk")
def test_only_the_last_line_of_a_text_goes_on() -> None:
    tokenizer = Tokenizer(tokenize="words")
    assert tokenizer.prefix_tokens("in the U.S.\nof Mr.") == ["in", "the", "U.S", ".", "<eos>", "of", "Mr."]


@installed("nltk")
def test_words_are_penn_treebank_s() -> None:
    tokenizer = Tokenizer(tokenize="words", lowercase=True, numbers=True)
    line = 'Mr. Vinken doesn\'t like "the U.S. dollar". He paid $3.50 (twice) to <unk>.'
    expected = "mr. vinken does n't like `` the u.s. dollar '' . he paid $ N ( twice ) to <unk> ."
    assert tokenizer.words(line) == expected.split()


@installed("nltk")
@pytest.mark.parametrize(
    "text",
    [
        "the judge likes the Mr.",
        "in the U.S.",
        'he said "of Apple Inc."',
        "apples, etc.",
        "by J.",
        "he spoke.",
        "at 3 p.m. he spoke?!",
        "",
        " ",
        "<unk>",
        "Mr. <unk>",
        "he met Mr.<unk>.",
    ],
)
def test_the_end_of_a_prefix_is_not_that_of_a_sentence(text: str) -> None:
    tokenizer = Tokenizer(tokenize="words", lowercase=True)
    for word in ("smith", "Smith", "<unk>"):
        assert tokenizer.prefix(text) == tokenizer.words(f"{text} {word}")[:-1]
        assert tokenizer.words(f"{text} {word}")[-1] == word.lower()


@installed("nltk")
def test_a_prefix_that_ends_in_an_abbreviation_keeps_its_period() -> None:
    tokenizer = Tokenizer(tokenize="words")
    assert tokenizer.prefix("he likes Mr.") == ["he", "likes", "Mr."]
    assert tokenizer.prefix("he spoke.") == ["he", "spoke", "."]
    assert tokenizer.words("I met Mr. <unk> today.") == ["I", "met", "Mr.", "<unk>", "today", "."]
    assert tokenizer.words("I met Mr. <unk>.") == ["I", "met", "Mr.", "<unk>", "."]


def test_words_without_nltk_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation._word_splitter.cache_clear()
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(UserError, match=r"needs the package nltk, which is not installed; .*\[text\]"):
        Tokenizer(tokenize="words").words("a")


@pytest.mark.parametrize(
    "tokenize", [pytest.param("words", marks=installed("nltk")), "whitespace", "characters"]
)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_nothing(
    tokenize: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "raw.txt", "\ufeff" + greek(30) + "He's in the U.S. now. It's 5.\r\nlast line.")
    preparation = Preparation(tokenize=tokenize, lowercase=True)
    whole = corpus.load(path, preparation)
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    assert corpus.load(path, preparation).sha256 == whole.sha256


@pytest.mark.parametrize("lines", [3, 10, 199, 201, 1234])
@pytest.mark.parametrize("fractions", [(0.1, 0.1), (0.25, 0.05)])
def test_every_line_of_a_file_is_in_one_split_beside_its_neighbours(
    lines: int, fractions: tuple[float, float], tmp_path: Path
) -> None:
    path = write(tmp_path / "raw.txt", "".join(f"line {n}\n" for n in range(lines)))
    valid, test = fractions
    loaded = corpus.load(path, Preparation(min_count=1, valid_fraction=valid, test_fraction=test))
    # The numbers that training lacks are <unk> there: the places are told by a vocabulary of all.
    everything = Vocabulary(["line", "<eos>", *map(str, range(lines))])
    found = corpus.load(path, Preparation(valid_fraction=valid, test_fraction=test), vocabulary=everything)
    numbers = {split: [int(line.split()[1]) for line in decode(found, split)] for split in splits.SPLITS}
    assert all(numbers[split] == sorted(numbers[split]) for split in numbers)
    assert sorted(itertools.chain(*numbers.values())) == list(range(lines))
    assert loaded.vocabulary.unknown is not None
    size = max(1, lines // splits.BLOCKS)
    for split, share in (("valid", valid), ("test", test)):
        held_out = numbers[split]
        assert abs(len(held_out) - share * lines) <= max(size, 1)
        # Neighbours: whole blocks, but for the last one of the file.
        whole = Counter(number // size for number in held_out)
        assert all(count == size or block == (lines - 1) // size for block, count in whole.items())


def test_the_lines_held_out_are_spread_over_a_file_and_are_the_same_as_ever(tmp_path: Path) -> None:
    found = splits.find(write(tmp_path / "raw.txt", "a line\n" * 1000), Preparation())
    numbers = {split: [n for n in range(1000) if n in found[split].blocks] for split in ("valid", "test")}
    for held_out in numbers.values():
        assert {number // 250 for number in held_out} == {0, 1, 2, 3}
    assert hashlib.sha256(str(numbers).encode()).hexdigest() == HELD_OUT


@pytest.mark.parametrize("name", ["wiki.{}.tokens", "wiki.{}.raw", "{}.txt"])
def test_a_folder_of_raw_text_is_prepared(name: str, tmp_path: Path) -> None:
    for split in splits.SPLITS:
        write(
            tmp_path / name.format(split),
            " = Title = \n\n The dog , the rare <unk> \n The end \n".replace("rare", split),
        )
    plain = corpus.load(tmp_path)
    assert plain.vocabulary.words[0] == "<eos>"
    assert {"The", "the", "train"} <= plain.vocabulary.ids.keys()
    prepared = corpus.load(tmp_path, Preparation(lowercase=True))
    assert decode(prepared, "valid") == [
        "= <unk> = ",
        " ",
        " the <unk> <unk> the <unk> <unk> ",
        " the <unk> ",
    ]


def test_known_words_are_extended_by_count(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.txt", "new new new old other other third\n" * 9 + "once\n")
    known = Vocabulary(["old", "<eos>", "gone"])
    preparation = Preparation(min_count=2, valid_fraction=0.2, test_fraction=0.2)
    extended = corpus.load(path, preparation, vocabulary=known, extend=True).vocabulary
    assert extended.words == ("old", "<eos>", "gone", "<unk>", "new", "other", "third")
    for size in range(4, 8):
        limited = Preparation(vocab_size=size, valid_fraction=0.2, test_fraction=0.2)
        found = corpus.load(path, limited, vocabulary=known, extend=True).vocabulary
        assert found.words == extended.words[:size]
    with pytest.raises(UserError, match=r"--vocab-size .*3 words"):
        corpus.load(path, Preparation(vocab_size=3), vocabulary=known, extend=True)


def test_memory_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 1 << 14)
    numbers = np.random.default_rng(0).zipf(1.3, size=(15_000, 10)).clip(max=10_000)
    path = write(tmp_path / "raw.txt", "".join(" ".join(f"word{n}" for n in line) + "\n" for line in numbers))
    assert path.stat().st_size > 1_000_000
    tracemalloc.start()
    try:
        loaded = corpus.load(path, Preparation(lowercase=True))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = sum(map(len, loaded.splits.values()))
    assert tokens == 15_000 * 11
    # 4 bytes an id, three times over while they are joined and renumbered, and some chunks of words. A
    # Python list of the words would take some ten times the text.
    assert peak < 3 * 4 * tokens + 50 * text_file.CHUNK_BYTES


@pytest.mark.parametrize(
    ("content", "fractions", "problem"),
    [
        ("", (0.1, 0.1), "is empty"),
        ("a", (0.1, 0.1), r"1 line and 1 word, .*train\.txt"),
        ("a b c d\n" * 2 + "\xff", (0.1, 0.1), "line 3: byte 0xff is not UTF-8"),
        ("a b\nc d\ne\0\n", (0.1, 0.1), "line 3: byte 0x00 is not UTF-8"),
        ("\n" * 4, (0.1, 0.1), r"^the part of .*raw\.txt that is trained on has no words .*<unk>$"),
        ("<unk> <unk>\n" * 4, (0.1, 0.1), "no words .*<unk>$"),
        ("a b\nc d\ne f\ng h\n", (0.1, 0.1), "2 times.*--min-count"),
        # The word occurs three times, but once in what is not held out.
        (
            "a\n" * 3,
            (0.1, 0.1),
            r"^the part of .*raw\.txt that is trained on has no word .* 2 times, as --min-count requires$",
        ),
        ("a b c d a", (0.1, 0.1), r"^the part of .*raw\.txt that is trained on has no word .* 2 times"),
        ("这是一个句子\n那是另一个\n今天很好\n再见\n", (0.1, 0.1), "--tokenize characters"),
        (
            "a\n" * 4,
            (0.5, 0.4),
            "4 lines, of which --valid-fraction 0.5 and --test-fraction 0.4 leave none to",
        ),
        ("a\n" * 300, (0.5, 0.4999), "300 lines, of which .* --test-fraction 0.4999 leave none to train on$"),
        ("a " * 10, (0.5, 0.49), "1 line and 10 words, of which .* leave none to train on$"),
        ("a\n" * 2, (0.5, 0.4), "2 lines and 3 words, of which .* leave none to train on$"),
        ("a", (0.5, 0.4), "1 line and 1 word, too few to be split"),
    ],
)
def test_a_file_that_cannot_be_prepared_is_refused(
    content: str, fractions: tuple[float, float], problem: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "raw.txt", content.encode("latin-1" if "\xff" in content else "utf-8"))
    valid, test = fractions
    with pytest.raises(UserError, match=problem):
        corpus.load(path, Preparation(valid_fraction=valid, test_fraction=test))


@pytest.mark.parametrize(
    ("flag_values", "problem"),
    [
        ({"min_count": 2, "vocab_size": 9}, "--min-count and --vocab-size"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, "sum"),
        ({"valid_fraction": 0.95}, "sum"),
        ({"valid_fraction": 0.0}, "--valid-fraction .*0.0"),
        ({"test_fraction": float("nan")}, "--test-fraction .*nan"),
        ({"vocab_size": 1}, "--vocab-size .*least 3"),
        ({"min_count": 0}, "--min-count .*least 1"),
    ],
)
def test_impossible_values_are_refused(flag_values: dict[str, float], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        from_flags(flag_values, "file.txt")


def test_a_file_is_prepared_and_none_is_meant_by_the_name_of_a_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, wanted in (("text", Preparation()), ("ptb", None), ("synthetic", None)):
        write(tmp_path / name, "a a\n")
        assert from_flags({}, name) == wanted


def test_prepared_text_is_not_prepared_again(tmp_path: Path) -> None:
    for data in ("ptb", "synthetic"):
        with pytest.raises(UserError, match=rf"--lowercase .*--data {data}, .*prepared"):
            from_flags({"lowercase": True}, data)
    for folder in (str(tmp_path), "hf:user/name"):
        with pytest.raises(UserError, match=rf"--test-fraction .* {folder} has its own splits"):
            from_flags({"test_fraction": 0.2}, folder)
    problem = rf"{tmp_path / 'gone'}: there is no such file"
    with pytest.raises(UserError, match=problem):
        splits.find(tmp_path / "gone", from_flags({"test_fraction": 0.2}, "gone"))
    for split in splits.SPLITS:
        write(tmp_path / f"ptb.{split}.txt", "a a\n")
    with pytest.raises(UserError, match=r"ptb\.train\.txt is prepared text"):
        corpus.load(tmp_path, Preparation(lowercase=True))


def test_a_preparation_is_kept_as_json() -> None:
    for tokenize in TOKENIZERS:
        preparation = Preparation(tokenize=tokenize, numbers=True, vocab_size=30, test_fraction=0.3)
        assert Preparation.from_json(dataclasses.asdict(preparation)) == preparation
    default = dataclasses.asdict(Preparation())
    assert Preparation.from_json(default) == Preparation()
    assert msgspec.to_builtins(Preparation.from_json(default)) == default, "as a resumed run writes it again"
    for broken in (None, {}, {**default, "more": 1}):
        with pytest.raises(UserError, match="must have the keys tokenize, "):
            Preparation.from_json(broken)
    wrong_values = [("lowercase", 1), ("min_count", True), ("vocab_size", "9"), ("test_fraction", "0")]
    for name, wrong in [*wrong_values, ("lowercase", None), ("valid_fraction", None)]:
        with pytest.raises(ValueError, match=f"{name} cannot be {wrong!r}"):
            Preparation.from_json({**default, name: wrong})
    with pytest.raises(UserError, match="syllables"):
        Preparation.from_json({**default, "tokenize": "syllables"})


def test_a_slice_reads_its_lines_only(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.txt", "a\r\nb\nc\nd\ne")
    for numbers, expected in (({0, 2}, "a b e"), ({1}, "c d"), ({2}, "e")):
        vocabulary, ids = text.build_vocabulary(TextSlice(path, text_file.LineBlocks(2, frozenset(numbers))))
        assert [vocabulary.words[i] for i in ids if vocabulary.words[i] != "<eos>"] == expected.split()
    # The file may become shorter after its lines were counted.
    with pytest.raises(UserError, match=r"raw\.txt is empty"):
        text.build_vocabulary(TextSlice(path, text_file.LineBlocks(2, frozenset({3}))))


@pytest.mark.parametrize("chunk", [16, 1 << 20])
@pytest.mark.parametrize("lines", [10, 1234])
def test_a_word_that_cannot_be_read_is_told_with_its_line_of_the_file(
    lines: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever split the line is in."""
    monkeypatch.setattr(text_file, "CHUNK_BYTES", chunk)
    for number in (1, lines, *np.random.default_rng(0).integers(1, lines, size=6).tolist()):
        content = ["a b a\n"] * lines
        content[number - 1] = "a zebra\n"
        path = write(tmp_path / "raw.txt", "".join(content))
        with pytest.raises(UserError, match=rf"raw\.txt, line {number}: the word 'zebra' is not in"):
            corpus.load(path, Preparation(), vocabulary=Vocabulary(["a", "<eos>", "b"]))


def test_a_digest_is_of_words_and_order(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.txt", greek(50))
    first = corpus.load(path, Preparation()).sha256
    write(path, greek(50, seed=1))
    second = corpus.load(path, Preparation())
    assert second.sha256 != first
    whole, ends = np.concatenate([*second.splits.values()]), np.cumsum([*map(len, second.splits.values())])
    parts = dict(zip(second.splits, np.split(whole, [ends[0] - 10, ends[1]]), strict=True))
    assert dataclasses.replace(second, splits=parts).sha256 != second.sha256, "a line is in another split"
