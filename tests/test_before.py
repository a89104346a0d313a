"""What was measured before is still read: results/ keeps runs and benchmark folders of every age."""

import json
import shutil
from pathlib import Path

import pytest
from support import ROOT

from ptb_lm.bench import __main__ as bench
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import SMALL
from ptb_lm.training.run_directory import RunDirectory

RESULTS = ROOT / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("*/config.json"))


def test_the_oldest_run_directory_is_read() -> None:
    """Its config.json is from before executions, recipes and half of the hyper-parameters."""
    directory = RunDirectory(RESULTS / "small-1-epoch-cudnn-cpu")
    assert {"execution", "recipe"}.isdisjoint(json.loads(directory.config.read_text()))
    run, (row,), result = directory.read_config(), directory.read_metrics(), directory.read_result()
    assert run.choice == Choice.of(execution="eager", device="cpu")
    assert (run.config, run.recipe, run.data) == ("small", "tutorial", "data/ptb")
    assert run.hyperparameters == SMALL.replace(epochs=1)
    assert result is not None
    assert row["valid_perplexity"] == result["valid_perplexity"]


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_every_run_directory_is_read_and_would_be_written_with_the_same_values(folder: Path) -> None:
    directory = RunDirectory(folder)
    kept, written = json.loads(directory.config.read_text()), directory.read_config().to_json()
    assert kept.pop("hyperparameters").items() <= written.pop("hyperparameters").items()
    kept.pop("sha256", None)  # which reading has compared
    assert kept.items() <= written.items()
    assert len(directory.read_metrics()) >= 1


def test_the_oldest_benchmark_folder_gives_the_same_tables(tmp_path: Path) -> None:
    kept = RESULTS / "bench-quick-cpu"
    shutil.copy(kept / "rows.jsonl", tmp_path)
    assert bench.main(["report", str(tmp_path)]) == 0
    again, then = ((folder / "report.md").read_text().splitlines() for folder in (tmp_path, kept))
    tables = [line for line in then if line.startswith("|")]
    assert len(tables) > 10
    assert [line for line in again if line.startswith("|")] == tables
