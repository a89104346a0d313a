"""Runs on raw text: the text is found again, told from another, and new text is tokenized as it was."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import runs
from support import installed

import ptb_lm
from ptb_lm import evaluate, generate, score, train
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import resumed_config

pytestmark = pytest.mark.slow


def norwegian(lines: int, seed: int = 1) -> str:
    """Sentences in another language than English, with rare words, numbers and capitals."""
    rng = np.random.default_rng(seed)
    who = ["Bjørn", "Åse", "Søren", "En gutt", "Ei jente", "Læreren"]
    does = ["så", "hørte", "fant", "kjøpte", "glemte"]
    what = ["en båt", "ei øy", "en sjø", "et brød", "et træ", "en nål"]
    return "".join(
        f"{who[a]} {does[b]} {what[c]} i {1900 + d} , sa navn{e} .\n"
        for a, b, c, d, e in zip(*(rng.integers(n, size=lines) for n in (6, 5, 6, 90, 9000)), strict=True)
    )


LONGER = ("--hidden-size", "16", "--epochs", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and a run on it that was named by a relative path."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "norsk.txt").write_text(norwegian(400), encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        runs.train_run(
            Path("norsk.txt"), folder / "run", "--lowercase", "--numbers", "--min-count", "3", *LONGER
        )
    finally:
        os.chdir(before)
    return folder


def test_a_file_in_another_language_is_trained_in_one_command(folder: Path) -> None:
    directory = RunDirectory(folder / "run")
    run, vocabulary = directory.read_config(), directory.read_vocabulary()
    assert {"bjørn", "øy", "N", "<unk>", "<eos>"} <= vocabulary.ids.keys()
    assert not any(word.startswith("navn") for word in vocabulary.words)
    data = corpus.load(folder / "norsk.txt", run.preparation)
    assert run.source is not None
    assert run.source.path == str(folder / "norsk.txt")
    assert run.source.sha256 == data.sha256
    # Better than the best model without memory, which is the words' frequencies.
    ids = data.splits["test"]
    frequencies = np.bincount(data.splits["train"], minlength=len(vocabulary)) / len(data.splits["train"])
    assert runs.result(directory.path)["test_perplexity"] < np.exp(-np.log(frequencies[ids]).mean())


def test_the_preparation_is_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.train_run(folder / "norsk.txt", tmp_path / "run", "--vocab-size", "20", "--epochs", "1")
    data = corpus.load(folder / "norsk.txt", RunDirectory(tmp_path / "run").read_config().preparation)
    eos, unk = data.vocabulary.ids["<eos>"], data.vocabulary.ids["<unk>"]
    words = {split: ids[ids != eos] for split, ids in data.splits.items()}
    shares = {split: float((ids == unk).mean()) for split, ids in words.items()}
    out = capsys.readouterr().out
    assert "tokenized by whitespace, the 20 most" in out
    assert f"covers {1 - shares['train']:.2%} of" in out
    for split, share in shares.items():
        assert f"{share:.2%} of {split}" in out


def test_a_run_finds_its_text_from_any_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluate.main([str(folder / "run")]) == 0
    out, err = capsys.readouterr()
    assert float(out.split()[2]) == pytest.approx(runs.result(folder / "run")["test_perplexity"], abs=5e-5)
    assert err == ""


def test_another_text_in_its_place_is_told_and_not_resumed_with(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text(norwegian(400) + "Bjørn så en båt .\n", encoding="utf-8")
    assert evaluate.main([str(folder / "run"), "--data", str(tmp_path / "other.txt")]) == 0
    err = runs.sentence(capsys.readouterr().err, evaluate)
    assert err.startswith("the text differs")
    assert str(folder / "norsk.txt") in err
    given = ("--resume", folder / "run", "--epochs", 6, "--data", tmp_path / "other.txt")
    assert "data differ" in runs.refusal(capsys, train, *given)


def test_a_vocabulary_that_has_changed_is_not_called_other_data(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is encoded by it, and so has another digest, too."""
    run = RunDirectory(shutil.copytree(folder / "run", tmp_path / "run"))
    words = run.vocabulary_path.read_text().splitlines(keepends=True)
    run.vocabulary_path.write_text("".join([words[1], words[0], *words[2:]]))
    given = ("--resume", run.path, "--epochs", 6)
    said = runs.refusal(capsys, train, *given)
    assert said.startswith(
        f"{run.weights_path} was trained with another vocabulary than {run.vocabulary_path}"
    )
    run.weights_path.unlink()  # as before the first epoch's end
    assert runs.refusal(capsys, train, *given).startswith(f"the data or {run.vocabulary_path} differ from ")


def test_a_resumed_run_ends_as_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--lowercase", "--tokenize", "characters", "--numbers")
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path / "text")
    Path("norsk.txt").write_text(norwegian(40))
    for run, epochs in (("whole", "2"), ("half", "1")):
        runs.train_run(Path("norsk.txt"), tmp_path / run, *flags, "--epochs", epochs)
    monkeypatch.chdir(tmp_path)
    assert train.main(["--resume", "half", "--epochs", "2", "--tokenize", "characters"]) == 0
    for name in ("test_perplexity", "valid_perplexity"):
        assert runs.result(tmp_path / "half")[name] == runs.result(tmp_path / "whole")[name]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--min-count", 5), "--min-count"),
        (("--tokenize", "words"), "--tokenize"),
        (("--init-from", "x"), "--resume"),
    ],
)
def test_a_resumed_run_keeps_its_text(
    folder: Path, given: tuple[object, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in runs.refusal(capsys, train, "--resume", folder / "run", *given)


def test_an_explicit_default_changes_no_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c d\ne f g h\n" * 60)
    run = RunDirectory(runs.train_run(text, tmp_path / "run", "--epochs", "1")).read_config()
    flag_values = {"min_count": 2, "tokenize": "whitespace", "valid_fraction": 0.1}
    assert resumed_config(run, flag_values) == run
    with pytest.raises(UserError, match="--min-count"):
        resumed_config(run, {"min_count": 1})


def test_new_text_is_treated_as_that_of_the_training(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, done = "BJØRN så En Båt i 1950\nÅSE 7\n", "bjørn så en båt i N\nåse N\n"
    printed = []
    for number, content in enumerate((raw, done)):
        path = tmp_path / f"{number}.txt"
        path.write_text(content)
        assert evaluate.main([str(folder / "run"), "--text", str(path)]) == 0
        assert score.main([str(folder / "run"), str(path), "--per-word"]) == 0
        printed.append(capsys.readouterr().out.replace(str(path), ""))
    assert printed[0] == printed[1]
    model = ptb_lm.load(folder / "run")
    assert model.score(raw).total == model.score(done).total
    assert model.predict("BJØRN") == model.predict("bjørn")


def test_characters_are_written_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "norsk.txt").write_text(norwegian(40))
    flags = ("--tokenize", "characters", "--epochs", "1")
    run = runs.train_run(tmp_path / "norsk.txt", tmp_path / "run", *flags)
    capsys.readouterr()
    assert generate.main([str(run), "--prompt", "En b", "--length", "60", "--seed", "1"]) == 0
    written = capsys.readouterr().out
    words = [*ptb_lm.load(run).generate("En b", 60, seed=1)]
    assert written == "En b" + "".join(words).replace("<eos>", "\n").replace("▁", " ") + "\n" * (
        words[-1] != "<eos>"
    )
    assert "▁" in words


@installed("nltk")
def test_wikitext_is_found_and_tokenized(tmp_path: Path) -> None:
    for split, lines in (("train", 60), ("valid", 20), ("test", 20)):
        text = "".join(f" = Title {n} = \n\nIt's the {n}th day. They don't mind!\n" for n in range(lines))
        (tmp_path / f"wiki.{split}.raw").write_text(text)
    run = runs.train_run(tmp_path, tmp_path / "run", "--tokenize", "words", "--epochs", "1")
    assert {"'s", "n't", "day", "!"} <= RunDirectory(run).read_vocabulary().ids.keys()


def test_words_of_prepared_text_that_the_vocabulary_lacks_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = runs.write_corpus(tmp_path / "data")
    runs.train_run(data, tmp_path / "known", "--epochs", "1")
    assert "read as <unk>" not in capsys.readouterr().out
    with (data / "valid.txt").open("a") as file:
        file.write("zebra w1 quagga\n")
    runs.train_run(data, tmp_path / "run", "--epochs", "1")
    assert "lacks, read as <unk>: valid 2, test 0\n" in capsys.readouterr().out


def test_prepared_text_leaves_the_configuration_as_it_was(tmp_path: Path) -> None:
    data = runs.write_corpus(tmp_path / "data")
    run = runs.train_run(data, tmp_path / "run", "--epochs", "1")
    config = runs.without_checksum((run / "config.json").read_text())
    assert config["source"]["path"] == str(data)
    assert not {"preparation", "init_from"} & config.keys()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            ("--data", "synthetic", "--numbers"),
            "--numbers",
        ),
        (
            ("--min-count", 2, "--vocab-size", 9),
            "--min-count and --vocab-size",
        ),
        (
            ("--valid-fraction", 0.6, "--test-fraction", 0.4),
            "--valid-fraction 0.6 and --test-fraction 0.4",
        ),
        (("--min-count", 10**6), "the part of {} that is trained on has no word"),
        (
            ("--vocab-size", 1),
            "at least 3",
        ),
        (
            ("--min-count", 0),
            "at least 1",
        ),
        (
            ("--extend-vocabulary",),
            "--init-from",
        ),
        (("--init-from", "nowhere"), "nowhere does not exist"),
    ],
)
def test_bad_flags_are_refused_in_a_sentence(
    folder: Path, tmp_path: Path, given: tuple[object, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder / "norsk.txt"
    flags = ("--data", data, "--run-dir", tmp_path / "run", *runs.FLAGS, *given)
    assert problem.format(data) in runs.refusal(capsys, train, *flags)
    assert not (tmp_path / "run").exists()
