"""--init-from: a run that begins with the weights of another."""

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from support import installed

from ptb_lm import evaluate, train
from ptb_lm.data import corpus
from ptb_lm.model import parameters
from ptb_lm.model.cells import CELLS
from ptb_lm.training import tensors
from ptb_lm.training.fine_tuning import ParentRun
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

SIZE = ("--hidden-size", "16")


def chain(folder: Path, stay: float, seed: int, lines: int, extra: str = "") -> Path:
    """Write text in which a word is followed by the next one in a circle; another seed, other text."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for split, count in (("train", lines), ("valid", 40), ("test", 40)):
        words, text = 0, []
        for _ in range(count):
            line = []
            for _ in range(9):
                words = (words + 1) % 20 if rng.random() < stay else int(rng.integers(20))
                line.append(f"w{words}")
            text.append(" ".join([*line, extra]).strip())
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n<unk>\n")
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large text, part of it, and a small text of the same kind with a word of its own."""
    folder = tmp_path_factory.mktemp("texts")
    chain(folder / "large", 0.95, 1, 500)
    chain(folder / "part", 0.95, 1, 40)
    chain(folder / "small", 0.9, 2, 40, extra="zebra")
    return folder


@pytest.fixture(scope="module")
def run(texts: Path) -> Path:
    """A run on the large text."""
    return runs.train_run(texts / "large", texts / "run", "--epochs", "6", *SIZE)


@pytest.fixture(scope="module")
def whole(texts: Path, run: Path) -> Path:
    """A run on the small text that begins with the weights of that on the large one."""
    return fine_tune(run, texts / "small", texts / "whole", "--extend-vocabulary")


def fine_tune(run: Path, data: Path, to: Path, *more: str) -> Path:
    sizes = ("--batch-size", "4", "--num-steps", "5", "--device", "cpu", "--epochs", "2")
    flags = ["--init-from", str(run), "--data", str(data), "--run-dir", str(to), *sizes, *more]
    assert train.main(flags) == 0
    return to


def test_it_is_better_than_from_scratch(texts: Path, run: Path, whole: Path, tmp_path: Path) -> None:
    scratch = runs.train_run(texts / "small", tmp_path / "scratch", *SIZE)
    better, worse = (runs.result(folder)["test_perplexity"] for folder in (whole, scratch))
    assert better < 0.8 * worse


def test_the_digest_is_of_the_weights_that_were_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the run that they are of trains on, and writes better ones."""
    moving, better = shutil.copytree(run, tmp_path / "moving"), tmp_path / "better.safetensors"
    path, read = moving / "weights.safetensors", RunDirectory.read_weights
    arrays, metadata = tensors.load(path)
    tensors.save(better, {**arrays, "softmax.bias": np.full_like(arrays["softmax.bias"], 0.25)}, metadata)

    def read_and_replace(self: RunDirectory, *given: Any) -> Any:
        weights = read(self, *given)
        if better.exists():
            better.replace(path)
        return weights

    monkeypatch.setattr(RunDirectory, "read_weights", read_and_replace)
    parent = ParentRun.read(moving)
    assert parent.weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (parent.weights["softmax.bias"] == 0.25).all()


def test_the_result_says_from_where_it_came_and_new_words_become_unk(
    texts: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = fine_tune(run, texts / "small", tmp_path / "tuned", "--epochs", "1")
    assert runs.result(tuned)["init_from"] == {
        "run": str(run),
        "weights_sha256": hashlib.sha256((run / "weights.safetensors").read_bytes()).hexdigest(),
        "test_perplexity": runs.result(run)["test_perplexity"],
        "new_words": 0,
    }
    assert runs.metrics(tuned)[0]["learning_rate"] == runs.metrics(run)[0]["learning_rate"] / 2
    assert RunDirectory(tuned).read_vocabulary().words == RunDirectory(run).read_vocabulary().words
    assert "<unk>: train 40, valid 40, test 40" in capsys.readouterr().out
    assert evaluate.main([str(tuned)]) == 0
    found = float(capsys.readouterr().out.split()[2])
    assert found == pytest.approx(runs.result(tuned)["test_perplexity"], abs=5e-5)


def test_settings_that_trained_nothing_are_not_taken_over(run: Path, tmp_path: Path) -> None:
    """As of a run that was resumed after its end, and diverged."""
    directory = RunDirectory(shutil.copytree(run, tmp_path / "diverged"))
    config = directory.read_config()
    wild = config.hyperparameters.replace(epochs=9, learning_rate=9.0, max_grad_norm=99.0)
    directory.write_config(dataclasses.replace(config, hyperparameters=wild))
    flag_values = train.parse_flags(["--init-from", str(directory.path)])
    found = ParentRun.read(directory.path).derive_config(flag_values).hyperparameters
    assert found.max_grad_norm == config.hyperparameters.max_grad_norm
    assert found.learning_rate == config.hyperparameters.learning_rate / 2


@pytest.mark.parametrize("more", [(), ("--seeds", "1")])
def test_a_damaged_result_of_the_earlier_run_is_refused_before_anything_is_written(
    more: tuple[str, ...], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new run's record would have its perplexity."""
    damaged = shutil.copytree(run, tmp_path / "damaged") / "result.json"
    runs.change(damaged, lambda result: result.pop("test_perplexity"))
    new = tmp_path / "new"
    problem = runs.refusal(capsys, train, "--init-from", damaged.parent, "--run-dir", new, *more)
    assert problem.startswith(f"{damaged} is not a run's result: ")
    assert not new.exists()


@pytest.mark.parametrize("flags", [(), ("--tie-weights",)])
def test_new_words_are_drawn_as_initial_ones(flags: tuple[str, ...], texts: Path, tmp_path: Path) -> None:
    old = runs.train_run(texts / "part", tmp_path / "old", "--epochs", "1", *flags)
    parent = ParentRun.read(old)
    data = corpus.load(texts / "small", vocabulary=parent.vocabulary, extend=True)
    assert data.vocabulary.words == (*parent.vocabulary.words, "zebra")
    config = parent.derive_config({"seed": 7})
    weights = parent.make_initial_weights(config, len(data.vocabulary))
    parameters.check(weights, parameters.shapes(config.hyperparameters, len(data.vocabulary)))
    drawn = parameters.draw_initial(config.hyperparameters, len(data.vocabulary), seed=7)
    for name, array in weights.items():
        if name in parent.weights and array.shape == parent.weights[name].shape:
            np.testing.assert_array_equal(array, parent.weights[name])
            continue
        known, new = (array[:-1], array[-1:]) if name != "softmax.kernel" else (array[:, :-1], array[:, -1:])
        np.testing.assert_array_equal(known, parent.weights[name])
        last = drawn[name][-1:] if name != "softmax.kernel" else drawn[name][:, -1:]
        np.testing.assert_array_equal(new, last)
        assert np.ptp(new) > 0 or name == "softmax.bias"
    assert {name for name in weights if weights[name].shape != parent.weights[name].shape} == (
        {"embedding", "softmax.bias"} | (set() if flags else {"softmax.kernel"})
    )


@pytest.mark.parametrize(
    ("cell", "framework"),
    [
        *((cell, "torch") for cell in CELLS),
        pytest.param("lstm", "tensorflow", marks=installed("tensorflow")),
    ],
)
def test_of_any_cell_in_either_framework(
    cell: str, framework: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a rate that moves nothing, what was trained in torch scores the same text as it did."""
    # A layer more would take TensorFlow a second more to trace.
    flags = ("--cell", cell, "--model", "basic", "--epochs", "1", "--num-layers", "1")
    old = runs.train_run(texts / "part", tmp_path / "old", *flags)
    more = ("--framework", framework, "--learning-rate", "1e-30", "--epochs", "1")
    tuned = fine_tune(old, texts / "part", tmp_path / "tuned", *more)
    assert runs.result(tuned)["test_perplexity"] == pytest.approx(
        runs.result(old)["test_perplexity"], rel=1e-5
    )
    assert RunDirectory(tuned).read_config().choice.framework == framework


def test_it_is_resumed_to_the_same_end(texts: Path, run: Path, whole: Path, tmp_path: Path) -> None:
    half = fine_tune(run, texts / "small", tmp_path / "half", "--extend-vocabulary", "--epochs", "1")
    assert train.main(["--resume", str(half), "--epochs", "2"]) == 0
    assert runs.result(half)["test_perplexity"] == runs.result(whole)["test_perplexity"]
    assert runs.result(half)["init_from"] == runs.result(whole)["init_from"]


def test_a_divergence_gives_no_advice_that_a_run_from_weights_refuses(
    texts: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smaller range of random weights: it has none."""
    tuned = tmp_path / "tuned"
    given = ("--init-from", run, "--data", texts / "small", "--run-dir", tuned, "--device", "cpu")
    assert runs.run_command(train, *given, "--learning-rate", "3e38") == 1
    problem = runs.sentence(capsys.readouterr().err, train)
    assert "a new run needs a smaller --learning-rate" in problem
    assert "init-scale" not in problem


CASES = "The Dog saw 12 Cats\nA dog SAW it\n" * 60


def test_a_run_of_characters_reads_no_text_of_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = runs.write_run(tmp_path / "old", ("a", "<eos>"), tokenize="characters", data="text.txt")
    given = ("--init-from", old, "--data", "ptb", "--run-dir", tmp_path / "no")
    assert f"{old} reads characters" in runs.refusal(capsys, train, *given)


@pytest.mark.parametrize(
    ("flags", "new_ones", "told"),
    [
        (("--vocab-size", "5"), 2, "the 2 most frequent new words"),
        (("--min-count", "3"), 3, "every new word seen 3 times or more"),
    ],
)
def test_the_limit_of_a_vocabulary_is_told_as_one_of_new_words(
    flags: tuple[str, ...], new_ones: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, text = runs.write_run(tmp_path / "old", ("a", "<eos>", "<unk>")), tmp_path / "text.txt"
    text.write_text("b b b b c c d\n" * 20 + "e e\n")
    fine_tune(old, text, tmp_path / "new", "--extend-vocabulary", "--epochs", "1", *flags)
    assert len(RunDirectory(tmp_path / "new").read_vocabulary()) == 3 + new_ones
    out = capsys.readouterr().out
    assert f"tokenized by whitespace, {told};" in out


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ((), "--extend-vocabulary"),
        (("--extend-vocabulary",), "--min-count 2"),
    ],
)
def test_an_unknown_word_is_refused_with_advice(
    flags: tuple[str, ...], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = runs.write_run(tmp_path / "old", ("a", "<eos>"))
    data = tmp_path / "data"
    data.mkdir()
    for split, content in (("train", "a\n"), ("valid", "a\n"), ("test", "a\nzebra\n")):
        (data / f"{split}.txt").write_text(content)
    given = ("--init-from", old, "--data", data, "--run-dir", tmp_path / "no", *flags)
    problem = runs.refusal(capsys, train, *given)
    assert problem.startswith(f"{data / 'test.txt'}, line 2: the word 'zebra'")
    assert f"; {hint} " in problem


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--hidden-size", 7), "--hidden-size 7 contradicts the run {}, which has 16"),
        (("--num-layers", 3), "--num-layers 3 contradicts the run {}, which has 2"),
        (("--mogrifier-rounds", 5), "--mogrifier-rounds would change nothing with --cell lstm"),
        (
            ("--init-scale", 0.2),
            "--init-scale would change nothing: --init-from begins with the weights of {}",
        ),
        (
            ("--layer-init-scale", 1, "--extend-vocabulary"),
            "--layer-init-scale would change nothing: --init-from begins with the weights of {}",
        ),
        (("--cell", "gru"), "--cell gru contradicts the run {}, which has lstm"),
        (("--tie-weights",), "--tie-weights contradicts the run {}, which has --no-tie-weights"),
        (
            ("--tokenize", "characters"),
            "--tokenize characters contradicts the run {}, whose text was prepared",
        ),
        (("--config", "medium"), "--config medium contradicts the run {}, which has small"),
        (
            ("--min-count", 2),
            "--extend-vocabulary",
        ),
    ],
)
def test_flags_that_contradict_are_refused(
    given: tuple[object, ...],
    problem: str,
    texts: Path,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--init-from", run, "--data", texts / "small", "--run-dir", tmp_path / "new", *given)
    assert problem.format(run) in runs.refusal(capsys, train, *flags)
    assert not (tmp_path / "new").exists()


def test_without_data_the_text_and_its_tokenizer_are_the_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From any folder, and with the same lines held out."""
    (tmp_path / "text.txt").write_text(CASES)
    monkeypatch.chdir(tmp_path)
    flags = ("--lowercase", "--numbers", "--test-fraction", "0.3")
    runs.train_run(Path("text.txt"), Path("old"), *flags, "--epochs", "1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert train.main(["--init-from", "../old", "--run-dir", "new", "--device", "cpu", "--epochs", "1"]) == 0
    assert "text is that of ../old\n" in capsys.readouterr().out
    old, new = (RunDirectory(Path(run)).read_config() for run in ("../old", "new"))
    assert (old.source, old.preparation) == (new.source, new.preparation)
    assert new.preparation is not None
    assert (new.preparation.lowercase, new.preparation.numbers) == (True, True)
    parent = ParentRun.read(Path("../old"))
    assert parent.derive_config({"data": "../text.txt"}).preparation == old.preparation
    given = ("--init-from", "../old", "--run-dir", "no")
    problem = runs.refusal(capsys, train, *given, "--data", "../text.txt", "--tokenize", "characters")
    assert "--tokenize contradicts" in problem
    (tmp_path / "copy.txt").write_text(CASES)
    for named in ((), *(("--data", tmp_path / name) for name in ("text.txt", "copy.txt"))):
        # With smaller parts, too, lines move from one to another: the test's begin where the others end.
        for other in (("--test-fraction", "0.31"), ("--valid-fraction", "0.05")):
            problem = runs.refusal(capsys, train, *given, *named, *other)
            assert problem.startswith(f"{other[0]} contradicts the run ../old, ")
    same = {"data": "../copy.txt", "test_fraction": 0.3, "valid_fraction": 0.1}
    assert parent.derive_config(same).preparation == old.preparation
    (tmp_path / "other.txt").write_text(f"the {CASES}")
    others = parent.derive_config({"data": "../other.txt", "test_fraction": 0.4}).preparation
    assert others == dataclasses.replace(old.preparation, test_fraction=0.4)
    (tmp_path / "text.txt").unlink()
    moved = "there is no file or folder {}, the text of ../old; name a text with --data"
    assert runs.refusal(capsys, train, *given) == moved.format(tmp_path / "text.txt")
    runs.change(Path("../old/config.json"), lambda config: config.pop("source"))  # as of an older program
    assert runs.refusal(capsys, train, *given) == moved.format("text.txt")


@pytest.mark.parametrize("more", [(), ("--extend-vocabulary", "--min-count", "1")])
def test_a_text_that_has_changed_since_is_taken_only_if_data_names_it(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that it has gained move others from one split to another."""
    text, old, new = tmp_path / "text.txt", tmp_path / "old", tmp_path / "new"
    text.write_text(CASES)
    runs.train_run(text, old, "--min-count", "2", "--epochs", "1")
    given = ("--init-from", old, "--device", "cpu", "--epochs", "1", *more)
    assert runs.run_command(train, *given, "--run-dir", tmp_path / "unchanged") == 0
    assert "has changed since" not in capsys.readouterr().out
    text.write_text(f"{CASES.splitlines()[0]}\n{CASES}")
    problem = runs.refusal(capsys, train, *given, "--run-dir", new)
    assert problem.startswith(f"{text} has changed since {old} was trained on it, ")
    assert f"; --data {text} " in problem
    assert not new.exists()
    assert runs.run_command(train, *given, "--run-dir", new, "--data", text) == 0
    assert f"{text} has changed since {old} was trained on it, " in capsys.readouterr().out


def test_without_new_words_the_limits_are_those_that_made_the_vocabulary(tmp_path: Path) -> None:
    text, old = tmp_path / "text.txt", tmp_path / "old"
    text.write_text(CASES)
    runs.train_run(text, old, "--min-count", "3", "--epochs", "1")
    parent = ParentRun.read(old)
    same, extended = (parent.derive_config(flags).preparation for flags in ({}, {"extend_vocabulary": True}))
    assert same == parent.run.preparation
    assert extended is not None
    assert (extended.min_count, extended.least_count) == (None, 2)


def test_the_run_that_it_starts_from_is_not_overwritten(
    texts: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, same = runs.files(run), tmp_path / "same"
    same.symlink_to(run)
    flags = ("--init-from", run, "--data", texts / "small", "--run-dir", same, "--overwrite")
    assert f"weights of {same}" in runs.refusal(capsys, train, *flags)
    several = tmp_path / "several"
    several.mkdir()
    (several / "seed-2").symlink_to(run)
    flags = ("--init-from", run, "--data", texts / "small", "--run-dir", several, "--overwrite")
    problem = runs.refusal(capsys, train, *flags, "--seeds", 2)
    assert f"weights of {several / 'seed-2'}" in problem
    assert runs.files(run) == before


def test_flags_that_agree_are_taken(run: Path) -> None:
    parent = ParentRun.read(run)
    flag_values = {
        "hidden_size": 16,
        "embedding_size": 16,
        "config": "small",
        "epochs": 3,
        "learning_rate": 0.7,
    }
    config = parent.derive_config(flag_values).hyperparameters
    assert config == parent.run.hyperparameters.replace(epochs=3, learning_rate=0.7)
