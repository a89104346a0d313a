"""Runs of every cell: trained, resumed, averaged, evaluated, in either framework."""

import json
from pathlib import Path

import pytest
import runs
from support import assert_arrays, installed

from ptb_lm import evaluate, train
from ptb_lm.model import cells
from ptb_lm.model.cells import CELLS
from ptb_lm.model.choice import Choice
from ptb_lm.training import tensors

pytestmark = pytest.mark.slow

REGULARISED = ["--keep-prob", "0.8", "--recurrent-keep-prob", "0.9", "--variational", "--average-epochs", "1"]


@pytest.fixture(scope="module", params=CELLS)
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of each cell."""
    flags = ["--cell", request.param, "--model", "basic", *REGULARISED]
    return runs.train_run(data, tmp_path_factory.mktemp("cells") / request.param, *flags)


def perplexity(capsys: pytest.CaptureFixture[str], *given: object) -> float:
    capsys.readouterr()
    assert runs.run_command(evaluate, *given) == 0
    return float(capsys.readouterr().out.split()[2])


def test_a_run_holds_its_cell(run: Path) -> None:
    cell = run.name
    assert json.loads((run / "config.json").read_text())["hyperparameters"]["cell"] == cell
    carried = {name for name in runs.final_state(run) if name in ("training.h", "training.c")}
    assert carried == {f"training.{name}" for name in cells.get(cell).state_names}
    weights = tensors.load(run / "weights.safetensors")[0]
    assert {name.partition(".")[0] for name in weights} == {"embedding", cell, "softmax"}


def test_a_run_that_stops_goes_on_to_the_bit(run: Path, data: Path, tmp_path: Path) -> None:
    flags = ["--cell", run.name, "--model", "basic", *REGULARISED, "--epochs", "1"]
    parts = runs.train_run(data, tmp_path / "parts", *flags)
    assert train.main(["--resume", str(parts), "--epochs", "2"]) == 0
    assert runs.result(parts)["test_perplexity"] == runs.result(run)["test_perplexity"]
    assert_arrays(runs.final_state(parts), runs.final_state(run))


def test_every_model_that_computes_the_cell_scores_the_same(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = runs.result(run)["test_perplexity"]
    for model in CELLS[run.name].layers["torch"]:
        assert perplexity(capsys, run, "--model", model) == pytest.approx(expected, rel=1e-5)


@installed("tensorflow")
def test_a_run_of_tensorflow_goes_on_in_no_other_framework_but_scores_there(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--cell",
        "layer_norm_lstm",
        "--model",
        "basic",
        "--framework",
        "tensorflow",
        *REGULARISED,
        "--epochs",
        "1",
    ]
    run = runs.train_run(data, tmp_path / "run", *flags)
    expected = runs.result(run)["test_perplexity"]
    for framework in ("tensorflow", "torch"):
        found = perplexity(capsys, run, "--framework", framework)
        assert found == pytest.approx(expected, rel=1e-5), framework


def test_another_cell_is_refused_on_resume(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = next(cell for cell in CELLS if cell != run.name)
    problem = runs.refusal(capsys, train, "--resume", run, "--cell", other)
    assert problem.startswith(f"--cell {other} ")
    assert f"run's {run.name};" in problem


def test_a_model_that_does_not_compute_the_cell_is_refused_before_its_framework_is_imported(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Choice, "import_function")
    flags = runs.arguments(data, tmp_path / "new", "--cell", "layer_norm_lstm", "--model", "cudnn")
    problem = runs.refusal(capsys, train, *flags)
    assert "--model basic" in problem
    assert "--cell lstm or gru" in problem
    assert not (tmp_path / "new").exists()
