"""Runs on texts as they lie on disks: tables, packed files, one line alone; each found again, read alike."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import runs
from support import installed

import ptb_lm
from ptb_lm import evaluate, score, train
from ptb_lm.data import corpus, splits
from ptb_lm.training.run_directory import RunDirectory
from results import flags as kept_flags

pytestmark = pytest.mark.slow
SMALL = ("--epochs", "1", "--hidden-size", "8")


def write_wikitext(folder: Path) -> Path:
    """Write a folder like WikiText-2, of articles with headings, empty lines and `<unk>`; return it."""
    rng, folder = np.random.default_rng(0), folder / "wiki"
    folder.mkdir()
    for split, articles in (("train", 40), ("valid", 10), ("test", 10)):
        lines = [""]
        for number in range(articles):
            body = " ".join(f"w{n}" for n in rng.zipf(1.5, size=30).clip(max=40))
            lines += [f" = Title {number % 5} = ", "", f" {body} @-@ <unk> . ", ""]
        (folder / f"wiki.{split}.tokens").write_text("\n".join(lines) + "\n")
    return folder


def lines_of(folder: Path, split: str) -> list[str]:
    return (folder / f"wiki.{split}.tokens").read_text().removesuffix("\n").split("\n")


@installed("datasets")
@pytest.mark.parametrize("saved", ["to_parquet", "save_to_disk", "hf:"])
def test_a_data_set_trains_as_its_text_does(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    text, folder = write_wikitext(tmp_path), tmp_path / "tables"
    names = {"train": "train", "validation": "valid", "test": "test"}
    tables = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text": rows, "n": [*range(len(rows))]})
            for name, split in names.items()
            for rows in [lines_of(text, split)]
        }
    )
    if saved == "save_to_disk":
        tables.save_to_disk(folder)
    else:
        folder.mkdir()
        for name, rows in tables.items():
            rows.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    data = f"hf:{folder.name}" if saved == "hf:" else str(folder)
    run = tmp_path / "run"
    assert train.main(["--data", data, "--run-dir", str(run), *runs.FLAGS, *SMALL]) == 0
    runs.assert_equal_runs(run, runs.train_run(text, tmp_path / "expected", *SMALL))
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert evaluate.main([str(run)]) == 0
    out, err = capsys.readouterr()
    assert float(out.split()[2]) == pytest.approx(runs.result(run)["test_perplexity"], abs=5e-5)
    assert err == ""
    assert train.main(["--resume", str(run), "--epochs", "2"]) == 0
    if saved == "hf:":
        assert f"--data {data}" in kept_flags.others(RunDirectory(run).read_config(), {})


@pytest.mark.parametrize("tokenize", ["whitespace", "characters"])
def test_a_text_of_one_line_is_trained_in_one_command(
    tokenize: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As text8: words in lower case, one line, no newline at its end."""
    rng = np.random.default_rng(0)
    words = ["anarchism", "originated", "as", "a", "term", "of", "abuse", "first"]
    (tmp_path / "text8").write_text(" " + " ".join(rng.choice(words, size=800)))
    flags = ("--tokenize", tokenize, "--valid-fraction", "0.05", "--test-fraction", "0.05")
    run = runs.train_run(tmp_path / "text8", tmp_path / "run", *flags, *SMALL)
    assert "no <eos> is added" in capsys.readouterr().out
    data = corpus.load(tmp_path / "text8", RunDirectory(run).read_config().preparation)
    counts = {split: len(ids) for split, ids in data.splits.items()}
    assert counts["valid"] == counts["test"] == round(sum(counts.values()) * 0.05)
    if tokenize == "whitespace":
        assert sum(counts.values()) == 800
    assert all((ids != data.vocabulary.ids["<eos>"]).all() for ids in data.splits.values())
    assert evaluate.main([str(run)]) == 0
    assert f"{counts['test'] - 1:,} tokens" in capsys.readouterr().out


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a packed table of two texts, a run on one of its columns, and that column as a text."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(1)
    bodies = [" ".join(f"w{n}" for n in rng.zipf(1.5, size=6).clip(max=25)) for _ in range(200)]
    rows = [json.dumps({"title": "no title", "body": body}) + "\n" for body in bodies]
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress("".join(rows).encode()))
    (folder / "corpus.txt").write_text("".join(f"{body}\n" for body in bodies))
    runs.train_run(folder / "corpus.jsonl.gz", folder / "run", "--text-column", "body", *SMALL)
    return folder


def test_a_column_trains_as_its_text_does(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.assert_equal_runs(table / "run", runs.train_run(table / "corpus.txt", tmp_path / "expected", *SMALL))
    assert "--text-column body" in kept_flags.others(RunDirectory(table / "run").read_config(), {})
    assert train.main(["--resume", str(table / "run"), "--text-column", "body"]) == 0
    tuned = tmp_path / "tuned"
    assert train.main(["--init-from", str(table / "run"), "--run-dir", str(tuned), "--epochs", "1"]) == 0
    assert RunDirectory(tuned).read_config().text_column == "body"


@pytest.mark.parametrize("named", [False, True])
def test_another_column_is_no_change_of_the_text(
    named: bool, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the table that a run begins from; a change of it is told all the same."""
    place = shutil.copy(table / "corpus.jsonl.gz", tmp_path)
    old = runs.train_run(Path(place), tmp_path / "old", "--text-column", "body", *SMALL)
    given = ("--init-from", old, "--text-column", "title", "--epochs", "1", *(("--data", place) * named))
    capsys.readouterr()
    assert runs.run_command(train, *given, "--run-dir", tmp_path / "unchanged") == 0
    out = capsys.readouterr().out
    assert "has changed since" not in out
    assert "text is that of" not in out
    rows = gzip.decompress(Path(place).read_bytes())
    Path(place).write_bytes(gzip.compress(rows.replace(b"w1", b"w2")))
    assert runs.run_command(train, *given, "--run-dir", tmp_path / "changed") == (0 if named else 2)
    assert "has changed since" in "".join(capsys.readouterr())


def test_a_table_is_scored_as_its_text_is(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for name, column in (("corpus.jsonl.gz", ["--text-column", "body"]), ("corpus.txt", [])):
        capsys.readouterr()
        assert evaluate.main([str(table / "run"), "--text", str(table / name), *column]) == 0
        assert evaluate.main([str(table / "run"), "--text", str(table / name), "--dynamic", *column]) == 0
        assert score.main([str(table / "run"), str(table / name), *column]) == 0
        printed.append(capsys.readouterr().out.replace(name, "corpus"))
    assert printed[0] == printed[1]
    given = ("--data", table / "corpus.jsonl.gz", "--text-column", "title")
    assert evaluate.main([str(table / "run"), *map(str, given)]) == 0
    assert "the text differs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "given", "problem"),
    [
        (train, ("--resume", "{}/run", "--text-column", "title"), "--text-column"),
        (train, ("--data", "{}/corpus.jsonl.gz"), "the columns title, body"),
        (train, ("--data", "{}/corpus.txt", "--text-column", "body"), "plain text"),
        (evaluate, ("{}/run", "--text", "{}/corpus.jsonl.gz"), "the columns title, body"),
        (score, ("{}/run", "{}/corpus.jsonl.gz"), "the columns title, body"),
        (score, ("{}/run", "https://example.com/x.txt"), "https://example.com/x.txt is a URL"),
        (evaluate, ("{}/run", "--text", "https://example.com/x.txt"), "https://example.com/x.txt is a URL"),
        (train, ("--data", "https://example.com/x.txt"), "https://example.com/x.txt is a URL"),
    ],
)
def test_a_wrong_column_or_place_is_refused(
    module: object, given: tuple[str, ...], problem: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in runs.refusal(capsys, module, *(each.format(table) for each in given))


def test_other_ends_of_lines_change_nothing_and_others_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = runs.write_corpus(tmp_path / "lf")
    other = tmp_path / "cr"
    other.mkdir()
    for split in splits.SPLITS:
        content = (data / f"{split}.txt").read_bytes()
        (other / f"{split}.txt").write_bytes(content.replace(b"\n", b"\r"))
    runs.assert_equal_runs(
        runs.train_run(other, tmp_path / "run", *SMALL), runs.train_run(data, tmp_path / "expected", *SMALL)
    )
    (other / "train.txt").write_bytes(content.replace(b"\n", "\u2028".encode()) * 20)
    capsys.readouterr()
    runs.train_run(other, tmp_path / "said", *SMALL)
    assert capsys.readouterr().out.count("400 U+2028") == 1
    assert evaluate.main([str(tmp_path / "said"), "--text", str(other / "train.txt")]) == 0
    assert "400 U+2028" in capsys.readouterr().out
    assert ptb_lm.load(tmp_path / "said").score("w1 w2").total < 0
