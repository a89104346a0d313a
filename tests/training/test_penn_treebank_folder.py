"""--data ptb, where Penn Treebank's folder has other text: it is said, and such runs are told from others."""

import json
import shutil
from pathlib import Path

import pytest
import runs

from ptb_lm import evaluate, train
from ptb_lm.comparison import runs as comparison_runs
from ptb_lm.data import SPLITS, corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.training import run_data
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config

pytestmark = pytest.mark.slow

PTB = Path("ptb")  # as --data has it
WARNING = "warning: the files in {folder}"


@pytest.fixture
def folder(small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Penn Treebank's folder, with other text."""
    folder = tmp_path / "treebank"
    folder.mkdir()
    for split in SPLITS:
        shutil.copy(small_corpus / f"{split}.txt", folder / f"ptb.{split}.txt")
    monkeypatch.setenv("PTB_LM_DATA", str(folder))
    return folder


@pytest.fixture
def renamed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, but Penn Treebank is this text."""
    for module in (corpus, comparison_runs):
        monkeypatch.setattr(module, "PENN_TREEBANK_SHA256", corpus.load(folder).sha256)
    return folder


def add_line(folder: Path) -> None:
    with (folder / "ptb.test.txt").open("a") as file:
        file.write("w1 w2 w1 w2\n")


def test_other_text_is_said_and_recorded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.train_run(PTB, tmp_path / "run")
    assert WARNING.format(folder=folder) in capsys.readouterr().out
    source = RunDirectory(run).read_config().source
    assert source is not None
    assert (source.path, source.sha256) == (str(folder), corpus.load(folder).sha256)
    # It is found again without the variable, and known if it has changed.
    monkeypatch.setenv("PTB_LM_DATA", str(tmp_path / "nowhere"))
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    assert runs.run_command(evaluate, run) == 0
    assert capsys.readouterr().err == ""
    add_line(folder)
    assert runs.run_command(evaluate, run) == 0
    assert "text differs" in capsys.readouterr().err


def test_the_text_of_an_earlier_run_is_looked_for_again_and_refused_if_it_has_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.train_run(PTB, tmp_path / "run", "--epochs", "1")
    moved = folder.rename(tmp_path / "elsewhere")
    monkeypatch.setenv("PTB_LM_DATA", str(moved))
    more = ("--init-from", run, "--epochs", "1", "--run-dir")
    assert runs.run_command(train, *more, tmp_path / "unchanged") == 0
    add_line(moved)
    problem = runs.refusal(capsys, train, *more, tmp_path / "changed")
    assert problem.startswith(f"{moved} has changed since {run} was trained on it, ")
    assert "; --data ptb " in problem


def test_penn_treebank_is_known_by_its_name(
    renamed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.train_run(PTB, tmp_path / "run")
    assert "warning" not in capsys.readouterr().out
    assert RunDirectory(run).read_config().source is None
    assert runs.run_command(evaluate, run) == 0
    assert capsys.readouterr().err == ""
    add_line(renamed)
    assert runs.run_command(evaluate, run) == 0
    assert "not Penn Treebank" in capsys.readouterr().err


def trained_on_other_words(small_corpus: Path, tmp_path: Path) -> Path:
    """Return a run whose vocabulary has another order, and one word more."""
    other = shutil.copytree(small_corpus, tmp_path / "other-words")
    train_text = (other / "train.txt").read_text()
    (other / "train.txt").write_text("another " * 50 + "\n" + train_text)
    return runs.train_run(other, tmp_path / "first")


def on_ptb_from(start: Path, run: Path) -> list[str]:
    """Return the flags of a run on --data ptb that starts from another one."""
    return ["--init-from", str(start), "--data", "ptb", "--epochs", "1", "--run-dir", str(run)]


@pytest.mark.usefixtures("renamed")
def test_a_run_on_other_text_that_is_resumed_on_it_is_refused_for_the_text(
    small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its vocabulary.txt has not changed."""
    run = trained_on_other_words(small_corpus, tmp_path)
    problem = runs.refusal(capsys, train, "--resume", run, "--data", "ptb", "--epochs", "3")
    assert problem.startswith("the vocabulary of the data ptb (")
    assert problem.endswith(f" words) is not that of {run}; name its own text with --data")


@pytest.mark.parametrize("text", ["renamed", "folder"])
def test_a_run_that_starts_from_another_ones_words_does_not_change_the_text(
    text: str,
    request: pytest.FixtureRequest,
    small_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    warning = WARNING.format(folder=request.getfixturevalue(text))
    flags = on_ptb_from(trained_on_other_words(small_corpus, tmp_path), tmp_path / "second")
    capsys.readouterr()
    assert train.main(flags) == 0
    assert runs.run_command(evaluate, tmp_path / "second") == 0
    out, err = capsys.readouterr()
    assert (warning in out) == (text == "folder")
    assert "Penn Treebank" not in err


@pytest.mark.parametrize("fine_tuned", [False, True])
def test_seeds_on_it_and_on_other_text_are_not_mixed(
    fine_tuned: bool,
    renamed: Path,
    small_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = tmp_path / "several"
    flags = runs.arguments(PTB, several)
    if fine_tuned:
        flags = [*on_ptb_from(trained_on_other_words(small_corpus, tmp_path), several), "--keep-prob", "0.8"]
    assert runs.run_command(train, *flags, "--seeds", "1") == 0
    add_line(renamed)
    capsys.readouterr()
    assert runs.run_command(train, *flags, "--seeds", "1", "2") == 2
    assert f"(data ptb there, {renamed} (SHA-256 " in capsys.readouterr().err
    other = runs.train_run(PTB, tmp_path / "other", "--seed", "2")
    assert [
        len(group.runs) for group in comparison_runs.read_groups([several, other], command="compare")
    ] == [1, 1]


@pytest.mark.parametrize("change", ["names", "line ends"])
def test_penn_treebank_is_known_by_its_words(
    change: str, renamed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in [*renamed.iterdir()]:
        if change == "names":
            path.rename(path.with_name(path.name.removeprefix("ptb.")))
        else:
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    run = runs.train_run(PTB, tmp_path / "run", "--epochs", "1")
    assert "warning" not in capsys.readouterr().out
    assert RunDirectory(run).read_config().source is None


def test_seeds_on_penn_treebank_by_its_path_and_by_its_name_are_one_family(
    renamed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = tmp_path / "several"
    for seeds, data in ((["1"], renamed), (["1", "2"], PTB)):
        assert train.main(runs.arguments(data, several, "--epochs", "1", "--seeds", *seeds)) == 0
    (group,) = comparison_runs.read_groups([several], command="compare")
    assert len(group.runs) == 2


def test_a_column_is_read_and_read_again_only_for_other_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in SPLITS:
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"body": "a b", "summary": "c"}) + "\n")
    monkeypatch.setenv("PTB_LM_DATA", str(tmp_path))
    run = new_config({"data": "ptb", "text_column": "body"})
    own, other = (
        run_data.load_first(run, words, extend=False) for words in (None, Vocabulary(("b", "a", "<eos>")))
    )
    assert own.sha256 != other.sha256
    for data in (other, own):
        source = run_data.with_source(run, data).source
        assert source is not None
        assert (source.path, source.sha256) == (str(tmp_path), data.sha256)
        monkeypatch.delattr(corpus, "load", raising=False)  # the second time nothing can be read


def test_a_run_of_before_on_other_text_goes_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config.json does not say which text it read."""
    run = runs.train_run(PTB, tmp_path / "run")
    runs.change(run / "config.json", lambda config: config.pop("source"))
    capsys.readouterr()
    assert runs.run_command(evaluate, run) == 0
    assert "not Penn Treebank" in capsys.readouterr().err
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    source = RunDirectory(run).read_config().source
    assert source is not None
    assert source.sha256 == corpus.load(folder).sha256
