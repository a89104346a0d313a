"""The table of models that adapt to the text: what `evaluate --out` wrote, in a part of its own."""

import shutil
from pathlib import Path

import pytest
import runs
from support import ROOT

from ptb_lm import evaluate
from ptb_lm.results import __main__ as results_command
from ptb_lm.training import json_files

pytestmark = pytest.mark.slow

PAGE = "before\n\n<!-- adaptation: written by a test -->\n\n<!-- end of adaptation -->\n\nafter\n"


def written(results: Path) -> int:
    return results_command.main(["adaptation", "--results", str(results)])


def test_the_table_is_made_of_what_evaluate_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    results = tmp_path / "results"
    (results / "adaptation-tiny").mkdir(parents=True)
    (results / "README.md").write_text(PAGE)
    run = runs.train_run(runs.write_corpus(tmp_path / "data"), tmp_path / "run", "--epochs", "1")
    steps = ["--dynamic", "--dynamic-rate", "0.1"]
    tuned = ["--cache", "--cache-words", "9", "--tune", "--tune-words", "50"]
    for name, flags in (("dynamic", steps), ("tuned", [*steps, "--dynamic-rule", "sgd", *tuned])):
        out = results / "adaptation-tiny" / name
        assert runs.run_command(evaluate, run, *flags, "--out", out) == 0
    capsys.readouterr()
    assert written(results) == 0
    assert capsys.readouterr().out == f"wrote the table of 2 results into {results / 'README.md'}\n"
    page = (results / "README.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    first, second = [
        line.strip("| ").split(" | ") for line in page.splitlines() if "](adaptation-tiny" in line
    ]
    plain = runs.result(run)["test_perplexity"]
    found = runs.result(results / "adaptation-tiny" / "tuned")
    assert first[0] == "[dynamic evaluation](adaptation-tiny/dynamic)"
    assert first[2] == "sgd, segments of 10, rate 0.1, decay 0.005"
    assert first[3:7] == ["", "", "", ""]
    assert first[8] == f"{plain:.2f}"
    assert second[0] == "[dynamic evaluation and a cache](adaptation-tiny/tuned)"
    assert second[3:5] == ["the first 50 words of valid", str(len(found["trials"]))]
    alone = found["adapted_perplexity_without_cache"]
    assert second[9] == f"**{found['adapted_perplexity']:.2f}** (without the cache {alone:.2f})"


def test_a_foreign_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "adaptation-x" / "y").mkdir(parents=True)
    (tmp_path / "adaptation-x" / "y" / "result.json").write_text("{}")
    assert written(tmp_path) == 2
    assert "is not what python -m ptb_lm.evaluate --out writes" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == PAGE


def test_a_changed_digit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = sorted((ROOT / "results").glob("adaptation-*/*/result.json"))[0]
    values = runs.unsealed(kept.read_text())
    (tmp_path / "README.md").write_text(PAGE)
    file = tmp_path / "adaptation-x" / "y" / "result.json"
    file.parent.mkdir(parents=True)
    json_files.write(file, values)
    assert written(tmp_path) == 0
    perplexity = f'"adapted_perplexity": {values["adapted_perplexity"]}'
    file.write_text(file.read_text().replace(perplexity, perplexity.replace(": 6", ": 5")))
    capsys.readouterr()
    assert written(tmp_path) == 2
    assert f"{file} has changed since it was written (its sha256 does not fit): restore it, or, if the " in (
        capsys.readouterr().err
    )


def test_what_is_kept_is_what_the_page_shows(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    for path in (ROOT / "results").glob("adaptation-*"):
        shutil.copytree(path, copy / path.name)
    shutil.copy(ROOT / "results" / "README.md", copy)
    assert written(copy) == 0
    assert (copy / "README.md").read_text() == (ROOT / "results" / "README.md").read_text()
