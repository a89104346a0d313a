"""Second checks: what other models compute of a kept run is what the NumPy reference computes."""

import math
import shutil
from pathlib import Path

import pytest
import runs

from ptb_lm.comparison.runs import read
from ptb_lm.errors import UserError
from ptb_lm.model import reference
from ptb_lm.results import __main__ as results_command
from ptb_lm.results import checks, keep
from ptb_lm.training import run_data
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("checks")
    return runs.train_run(runs.write_corpus(folder / "data"), folder / "run", "--epochs", "1")


def by_the_reference(run: Path) -> float:
    directory = RunDirectory(run)
    config, vocabulary = directory.read_config(), directory.read_vocabulary()
    weights = directory.read_weights(config, vocabulary)
    ids_1L = run_data.load_again(config, vocabulary).splits["test"][None]
    nll, _, _ = reference.loss_and_gradients(
        weights, ids_1L[:, :-1], ids_1L[:, 1:], reference.zero_state(weights, 1)
    )
    return math.exp(nll / (ids_1L.size - 1))


def test_every_model_finds_what_the_reference_finds(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    kept = tmp_path / "kept"
    assert keep.keep(run, kept)
    assert results_command.main(["check", str(run), str(kept)]) == 0
    assert capsys.readouterr().out.endswith(f"{kept / checks.FILE}\n")
    found = checks.read(kept)
    assert [each.by for each in found[1:]] == [*checks.BY]
    expected = by_the_reference(run)
    assert [each.test_perplexity for each in found] == pytest.approx([expected] * len(found), rel=1e-5)
    rows = checks.markdown([read(kept)]).splitlines()[2:]
    assert [row.strip("| ").split(" | ")[3] for row in rows] == [
        f"{each.test_perplexity:.6f}" for each in found
    ]
    # They stay with the run, and go when another is kept in its place.
    assert keep.keep(run, kept)
    assert checks.read(kept) == found
    other = runs.train_run(run.parent / "data", tmp_path / "other", "--epochs", "1", "--seed", "2")
    assert keep.keep(other, kept)
    assert checks.read(kept) == []


def test_a_text_that_has_changed_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, copy, kept = tmp_path / "data", tmp_path / "run", tmp_path / "kept"
    shutil.copytree(run.parent / "data", data)
    shutil.copytree(run, copy)
    runs.change(copy / "config.json", lambda config: config.update(data=str(data)))
    runs.change(copy / "config.json", lambda config: config["source"].update(path=str(data)))
    assert keep.keep(copy, kept)
    first, *lines = (data / "test.txt").read_text().splitlines(keepends=True)
    (data / "test.txt").write_text("".join([*lines, first]))
    assert results_command.main(["check", str(copy), str(kept)]) == 2
    assert "the text differs from the one that the run was trained on" in capsys.readouterr().err
    with (data / "train.txt").open("a") as file:
        file.write("another\n")
    assert results_command.main(["check", str(copy), str(kept)]) == 2
    assert "have a different vocabulary from the run" in capsys.readouterr().err
    assert not (kept / checks.FILE).exists()


def test_what_cannot_be_checked_is_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keep.keep(run, tmp_path / "kept")
    for given, said in (
        ([tmp_path, tmp_path / "kept"], "is not a run directory: config.json is missing"),
        ([run, tmp_path / "none"], "does not hold the run in"),
        (
            [run, tmp_path / "kept", "--by", "cudnn"],
            "'cudnn' is not FRAMEWORK/MODEL, for example torch/cudnn",
        ),
        ([run, tmp_path / "kept", "--by", "torch/lstm"], "unknown model 'lstm' for torch"),
    ):
        assert results_command.main(["check", *map(str, given)]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "kept" / checks.FILE).write_text("[1]")
    with pytest.raises(UserError, match="is not what python -m ptb_lm"):
        checks.read(tmp_path / "kept")
