"""The run that the package holds: what it is, that its name finds it, and that nobody changes it."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import runs

import ptb_lm
from ptb_lm import compare, evaluate, export, generate, neighbours, predict, score, train
from ptb_lm.data.synthetic import newswire
from ptb_lm.training import run_flags
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_folders import DEMO


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to be in; the run is as it was when a test has ended."""
    monkeypatch.chdir(tmp_path)
    before = runs.files(DEMO)
    yield
    assert runs.files(DEMO) == before


def test_it_is_what_its_script_trains() -> None:
    trained = run_flags.new_config({"data": "synthetic", "config": "demo", "seed": 1, "device": "cpu"})
    demo = RunDirectory(DEMO)
    assert demo.read_config() == trained
    assert {*demo.read_vocabulary().words} == {*newswire()[1]}
    assert demo.read_end(len(demo.read_metrics()))
    assert runs.result(DEMO)["parameters"] == 270_878
    assert sum(map(len, runs.files(DEMO).values())) <= 1_200_000
    named = runs.result(DEMO)["command"].split()
    assert named[-2:] == ["--run-dir", "demo"], "no folder of the machine that trained it"


@pytest.mark.slow
def test_its_perplexity_is_that_of_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.run_command(evaluate, "demo") == 0
    result = runs.result(DEMO)
    assert f"test perplexity {result['test_perplexity']:.2f}" in capsys.readouterr().out
    assert 1 < result["test_perplexity"] / result["best_possible_perplexity"] < 1.05


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (score, ["text"]),
        (evaluate, ["--text", "text"]),
        (generate, ["--prompt", "the judge", "--seed", 1]),
        (predict, ["these", "judges"]),
        (neighbours, ["judge"]),
        (compare, []),
        (export, ["--format", "torchscript", "--out", "model.pt"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.slow
def test_every_command_reads_it(
    command: ModuleType, arguments: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text").write_text("the judge sues the court\n")
    assert runs.run_command(command, "demo", *arguments) == 0
    assert capsys.readouterr().out


def test_a_run_in_a_folder_of_this_name_is_found_first() -> None:
    Path("demo").mkdir()  # of something else
    assert len(ptb_lm.load("demo").vocabulary) == 542
    runs.write_run(Path("demo"), ("a", "<eos>"))
    for name in ("demo", Path("demo"), Path("demo").absolute()):
        assert ptb_lm.load(name).vocabulary.words == ("a", "<eos>")


@pytest.mark.parametrize("run", ["demo", DEMO], ids=["name", "path"])
@pytest.mark.parametrize("more", [[], ["--devices", 2]], ids=str)
def test_it_is_not_resumed(run: object, more: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--init-from" in runs.refusal(capsys, train, "--resume", run, *more)
    assert [*Path().iterdir()] == []


@pytest.mark.slow
def test_a_run_can_start_from_it() -> None:
    Path("data").mkdir()
    for split in ("train", "valid", "test"):
        Path("data", f"{split}.txt").write_text("the judge sues the court\nthese judges sue the court\n" * 40)
    before = ptb_lm.load("demo").perplexity("these judges sue the court")
    flags = ["--init-from", "demo", "--data", "data", "--epochs", 1, "--batch-size", 4, "--device", "cpu"]
    for more in ([], ["--overwrite"]):
        assert runs.run_command(train, *flags, "--run-dir", "run", *more) == 0
    assert ptb_lm.load("run").perplexity("these judges sue the court") < before / 2
    assert runs.result(Path("run"))["init_from"]["run"] == str(DEMO)
