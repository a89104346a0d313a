"""scripts/keep: a trained run in the tables, its second checks, and which runs are records."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_rows
import numpy as np
import pytest
import runs
from support import ROOT, reference_perplexity

from ptb_lm import evaluate
from ptb_lm.bench import rows
from ptb_lm.common.errors import UserError
from ptb_lm.comparison import runs as trained
from ptb_lm.training import run_data
from ptb_lm.training.run_directory import RunDirectory
from results import __main__ as command
from results import checks, keep, records, run_tables, store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keep")
    return runs.train_run(runs.write_corpus(folder / "data"), folder / "mine", "--average-epochs", "1")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the command writes to: a copy of the data and the pages."""
    copy = tmp_path / "checkout"
    for folder in ("results", "docs"):
        shutil.copytree(ROOT / folder, copy / folder)
    shutil.copy(ROOT / "README.md", copy)
    monkeypatch.setattr(command, "ROOT", copy)
    return copy


def by_the_reference(run: Path) -> float:
    """The test perplexity that NumPy computes of a run's weights, the split being one row."""
    directory = RunDirectory(run)
    config, vocabulary = directory.read_config(), directory.read_vocabulary()
    weights = directory.read_weights(config, vocabulary)
    ids = run_data.load_again(config, vocabulary).splits["test"]
    return reference_perplexity(weights, ids)


def test_a_run_is_kept_checked_and_shown(
    run: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["keep", str(run), "--check"]) == 0
    assert "wrote results/tables.md" in capsys.readouterr().out
    found = store.read(checkout / "results", store.CHECKS).query("id == 'mine'")
    assert [*found["by"]][1:] == [*checks.BY]
    assert [*found["test_perplexity"]] == pytest.approx([by_the_reference(run)] * 3, rel=1e-5)
    page = (checkout / "results" / "tables.md").read_text()
    assert all(f"| {value:.6f} |" in page for value in found["test_perplexity"])

    before = runs.files(checkout)
    assert command.main(["keep", str(run), "--check", "torch/cudnn", "--id", "again"]) == 0
    assert command.main(["keep", str(run), "--record", "nothing"]) == 2
    assert "not Penn Treebank" in capsys.readouterr().err
    checked = store.read(checkout / "results", store.CHECKS)
    assert [*checked.query("id == 'again'")["by"]] == ["torch/cudnn", "torch/cudnn"]
    assert before["results/records.md"] == runs.files(checkout)["results/records.md"]


@pytest.mark.parametrize("file", ["result.json", "weights.safetensors", "config.json"])
def test_a_run_that_cannot_be_checked_is_refused(file: str, run: Path, tmp_path: Path) -> None:
    results, copy = tmp_path / "results", tmp_path / "mine"
    shutil.copytree(run, copy)
    assert keep.run(results, copy, "mine")
    with pytest.raises(UserError, match="other"):
        checks.check(results, copy, "other")
    (copy / file).unlink()
    with pytest.raises(UserError):
        checks.check(results, copy, "mine")
    assert not (results / store.CHECKS).exists()


def test_a_run_whose_text_has_changed_is_not_checked(tmp_path: Path) -> None:
    data, results = runs.write_corpus(tmp_path / "data"), tmp_path / "results"
    run = runs.train_run(data, tmp_path / "mine")
    assert keep.run(results, run, "mine")
    lines = (data / "test.txt").read_text().splitlines(keepends=True)
    (data / "test.txt").write_text("".join(sorted(lines)))
    with pytest.raises(UserError, match="text differs"):
        checks.check(results, run, "mine")
    assert not (results / store.CHECKS).exists()


def test_a_result_of_the_plan_stays_when_its_run_is_kept_again(run: Path, tmp_path: Path) -> None:
    assert keep.run(tmp_path, run, "mine", result="x")
    assert keep.run(tmp_path, run, "mine")
    (row,) = store.rows(tmp_path, store.RUNS, "mine")
    assert row["result"] == "x"
    assert keep.run(tmp_path, run, "mine", result="y")
    (row,) = store.rows(tmp_path, store.RUNS, "mine")
    assert row["result"] == "y"


def test_a_finished_run_stays_until_another_has_ended(run: Path, tmp_path: Path) -> None:
    results, copy = tmp_path / "results", tmp_path / "mine"
    shutil.copytree(run, copy)
    assert keep.run(results, run, "mine")
    before = runs.files(results)
    (copy / "result.json").unlink()
    assert not keep.run(results, copy, "mine", replace=True)
    assert runs.files(results) == before


def test_a_run_that_was_resumed_with_other_settings_is_refused(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "mine")
    earlier = {"epoch": 1, "step": 0, "settings": {"learning_rate": 0.5}}
    runs.change(copy / "config.json", lambda config: config.update(earlier=[earlier]))
    with pytest.raises(UserError, match=r"learning_rate 0\.5 until epoch 1"):
        keep.run(tmp_path / "results", copy, "mine")
    assert not (tmp_path / "results").exists()


def test_a_run_that_goes_on_is_kept_with_the_epochs_that_it_has_done(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "mine")
    runs.change(copy / "config.json", lambda config: config["hyperparameters"].update(epochs=9))
    assert keep.run(tmp_path, copy, "mine")
    (row,) = store.rows(tmp_path, store.RUNS, "mine")
    assert (row["epochs_done"], row["epochs"], "--epochs 2" in row["overrides"]) == (2, 2, True)


def test_an_adapted_test_has_the_machine_that_computed_it(run: Path, tmp_path: Path) -> None:
    file, results = tmp_path / "out" / "result.json", tmp_path / "results"
    assert runs.run_command(evaluate, run, "--cache", "--tune", "--out", file.parent) == 0
    keep.adaptation(results, file, "on a CPU", "mine")
    runs.change(file, lambda result: result["environment"].update(device="NVIDIA H200", cuda="13.0"))
    keep.adaptation(results, file, "on a GPU", "mine")
    machines = store.read(results, store.RUNS).set_index("id")["machine"]
    assert machines["on a GPU"] == "NVIDIA H200"
    assert "threads: " in machines["on a CPU"]


def test_the_valid_perplexity_of_an_adapted_test_is_of_the_whole_split(run: Path, tmp_path: Path) -> None:
    given, results = (evaluate, run, "--cache", "--tune"), tmp_path / "results"
    for name, more in {"whole": (), "part": ("--tune-words", "20")}.items():
        assert runs.run_command(*given, *more, "--out", tmp_path / name) == 0
        keep.adaptation(results, tmp_path / name / "result.json", name, "mine")
    valid = store.read(results, store.RUNS).set_index("id")["valid"]
    tuned = store.read(results, store.ADAPTATION).set_index("id")["tuned"]
    assert valid["whole"] == tuned["whole"]
    assert math.isnan(valid["part"])


def as_a_record(result: dict[str, Any]) -> None:
    """Let a run's result be what the list of a CPU asks for."""
    result["test_perplexity"] = 78.3
    result["environment"].update(commit="c" * 40, cores=2)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "": lambda result: None,
    "perplexity": lambda result: result.update(test_perplexity=78.301),
    "processes": lambda result: result["environment"].update(processes=2),
    "resumed": lambda result: result.update(earlier_environments=[result["environment"]]),
    "uncommitted": lambda result: result["environment"].update(commit="1 with uncommitted changes"),
    "unknown": lambda result: result["environment"].update(commit=None),
    "cores": lambda result: result["environment"].update(cores=3),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_record_keeps_the_rules_of_its_list(
    what: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, results = tmp_path / "mine", tmp_path / "results"
    shutil.copytree(run, copy)
    config = RunDirectory(copy).read_config()
    monkeypatch.setattr(trained, "PENN_TREEBANK_SHA256", config.source.sha256)
    sizes = config.hyperparameters
    monkeypatch.setattr(records, "UNITS", sizes.hidden_sizes)
    runs.change(copy / "result.json", as_a_record)
    runs.change(copy / "result.json", CHANGES[what])
    if what:
        with pytest.raises(UserError, match=what):
            records.add(results, copy, "mine", "faster")
        assert not results.exists()
        return
    records.add(results, copy, "my|run", "faster | here")
    row, shown = runs.result(copy), run_tables.read(results)
    (line,) = records.table(shown, "records of two CPU cores").splitlines()[2:]
    cells = line.strip("| ").split(" | ")
    assert cells[0] == row["environment"]["started"][:10]
    assert cells[1:3] == ["ccccccc", r"faster \| here"]
    assert cells[-4:] == ["2", "78.30", f"{row['command_seconds']:.1f}", r"`my\|run`"]
    assert len(records.table(shown, "records").splitlines()) == 2
    with pytest.raises(UserError, match="faster"):
        records.add(results, copy, "my|run", "slower")


def test_a_record_of_a_cpu_has_all_units_of_its_list(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "mine")
    config = RunDirectory(copy).read_config()
    monkeypatch.setattr(trained, "PENN_TREEBANK_SHA256", config.source.sha256)
    units = config.hyperparameters.hidden_size
    monkeypatch.setattr(records, "UNITS", (units, units))
    sizes = {"num_layers": 2, "hidden_size": units, "layer_sizes": [1, units]}
    runs.change(copy / "config.json", lambda config: config["hyperparameters"].update(sizes))
    runs.change(copy / "result.json", as_a_record)
    with pytest.raises(UserError, match=rf"1 \+ {units} units"):
        records.add(tmp_path / "results", copy, "mine", "faster")


def test_seeds_share_a_row_with_their_mean_and_their_ends(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunDirectory(run).read_config()
    monkeypatch.setattr(trained, "PENN_TREEBANK_SHA256", config.source.sha256)
    results, tests = tmp_path / "results", []
    for seed in (2, 3):
        flags = ["--average-epochs", "1", "--seed", str(seed)]
        other = runs.train_run(run.parent / "data", tmp_path / f"seed-{seed}", *flags)
        assert keep.run(results, other, other.name)
        tests.append(runs.result(other)["test_perplexity"])
    going_on = tmp_path / "going-on"
    shutil.copytree(other, going_on)
    (going_on / "result.json").unlink()
    assert keep.run(results, going_on, going_on.name)
    rows = run_tables.all_of_them(run_tables.read(results)).splitlines()
    mean = f"**{np.mean(tests):.2f}** ({min(tests):.2f} to {max(tests):.2f})"
    (row,) = (row for row in rows if "`seed-2`, `seed-3`" in row)
    assert ("| 2, 3 | 2 (best " in row, f"| {mean} |" in row) == (True, True)
    (row,) = (row for row in rows if "`going-on`" in row)
    assert f"{np.mean(tests):.2f}" not in row
    assert row.count("|  |") >= 1


@pytest.mark.parametrize("out", ["--out a", "--out=a", "--out 'a folder/b'"])
def test_a_benchmark_is_kept_without_the_place_of_its_rows(out: str, tmp_path: Path) -> None:
    command = "python -m ptb_lm.bench run quick"
    written = bench_rows.write(tmp_path / "rows", [bench_rows.row(command=f"{command} {out} --rounds 5")])
    keep.benchmark(tmp_path, written, "kept")
    ((kept,), _) = rows.read(tmp_path / "bench" / "kept.jsonl.gz")
    assert kept.command == f"{command} --rounds 5"


def test_a_benchmark_in_which_nothing_was_measured_is_not_kept(tmp_path: Path) -> None:
    written = bench_rows.write(tmp_path / "rows", [bench_rows.unmeasured("failed", "killed")])
    with pytest.raises(UserError, match=r"nothing was measured$"):
        keep.benchmark(tmp_path, written, "kept")
    assert not (tmp_path / "bench").exists()
