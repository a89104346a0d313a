"""What keeps a run in results/: what was kept before is not lost."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import runs
from support import ROOT

from ptb_lm.results import __main__ as results
from ptb_lm.results import keep
from ptb_lm.training.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, that was kept before."""
    for folder in ("run", "kept"):
        shutil.copytree(ROOT / "results" / "small-tutorial-cudnn-cpu", tmp_path / folder)
    return tmp_path / "run"


def test_a_run_that_has_gone_on_does_not_replace_one_that_has_ended(run: Path) -> None:
    """Its result is of fewer epochs than it has done."""
    kept = run.parent / "kept"
    before = runs.files(kept)
    last = runs.metrics(run)[-1]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**last, "epoch": last["epoch"] + 1}) + "\n")
    assert not keep.keep(run, kept)
    assert runs.files(kept) == before


def test_a_full_disk_is_an_error_of_the_system(run: Path) -> None:
    """One with a number, also while what was kept before is copied, with its folders."""
    kept = run.parent / "kept"
    (kept / "notes").mkdir()
    (kept / "notes" / "long.md").write_text("by hand " * 100_000)
    before = runs.files(kept)
    with runs.disk_with_room_for(700_000), pytest.raises(OSError, match="File too large") as caught:
        keep.keep(run, kept)
    assert caught.value.errno == errno.EFBIG
    assert runs.files(kept) == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.run_command(results, "keep", tmp_path / "nosuch", "--results", tmp_path) == 2
    assert capsys.readouterr().err == (
        f"python -m ptb_lm.results keep: the run directory {tmp_path / 'nosuch'} does not exist\n"
    )


def kept_again(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Keep a run by the name of the one that was kept before; return what is said."""
    capsys.readouterr()
    runs.run_command(results, "keep", run, "--results", run.parent, "--name", "kept")
    return capsys.readouterr().err


def set_hyperparameters(run: Path, **values: float) -> None:
    """Give a run other ones, as --resume may."""
    runs.change(run / "config.json", lambda config: config["hyperparameters"].update(values))


def test_a_run_with_another_schedule_replaces_one_only_if_it_went_on_from_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = run.parent / "kept"
    set_hyperparameters(run, learning_rate=0.7)
    assert kept_again(run, capsys) == ""
    assert RunDirectory(kept).read_config().hyperparameters.learning_rate == 0.7
    before = runs.files(kept)
    set_hyperparameters(run, learning_rate=0.6)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = runs.unsealed(lines[0])
    lines[0] = json.dumps({**first, "valid_perplexity": first["valid_perplexity"] + 1}) + "\n"
    (run / "metrics.jsonl").write_text("".join(lines))
    assert "holds another run (learning_rate 0.7 there, 0.6 here); choose another --name" in kept_again(
        run, capsys
    )
    set_hyperparameters(run, learning_rate=0.7, epochs=99)
    assert "holds another run (epochs 13 there, 99 here); choose another --name" in kept_again(run, capsys)
    assert runs.files(kept) == before


def test_another_run_of_the_same_name_is_not_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As seed-1 of --seeds, of one configuration and then of another."""
    kept = run.parent / "kept"
    before = runs.files(kept)
    runs.change(run / "config.json", lambda config: config.update(config="medium"))
    assert runs.run_command(results, "keep", run, "--results", run.parent, "--name", "kept") == 2
    assert capsys.readouterr().err == (
        f"python -m ptb_lm.results keep: {kept} holds another run (config 'small' there, 'medium' here); "
        "choose another --name\n"
    )
    assert runs.files(kept) == before
