"""The command that compares runs: its table, its CSV, its page and its picture, against the runs' files."""

import csv
import io
import shutil
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import runs

from ptb_lm import compare, train
from ptb_lm.data import corpus

pytestmark = pytest.mark.slow

WIDE = ("--init-scale", "1")  # so that seeds differ


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one configuration, a smaller and slower-learning model, and a run that has not ended."""
    folder = tmp_path_factory.mktemp("compare")
    data = runs.write_corpus(folder / "data")
    runs.train_run(data, folder / "seeds", "--seeds", "1", "2", *WIDE)
    runs.train_run(
        data, folder / "other", "--hidden-size", "5", "--learning-rate", "0.25", "--epochs", "3", *WIDE
    )
    runs.train_run(data, folder / "going-on", "--tie-weights", *WIDE)
    (folder / "going-on" / "result.json").unlink()
    runs.change(
        folder / "going-on" / "config.json", lambda config: config["hyperparameters"].update(epochs=9)
    )
    return folder


def compared(capsys: pytest.CaptureFixture[str], *given: object) -> str:
    capsys.readouterr()
    assert runs.run_command(compare, *given) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def markdown_rows(text: str) -> list[dict[str, str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    titles, _, *rows = lines
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_the_table_tells_what_differs_and_what_was_reached(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = compared(capsys, folder / "seeds", folder / "other", folder / "going-on")
    seeds, other, going_on = markdown_rows(text)
    assert [row["run"] for row in (seeds, other, going_on)] == ["`seeds`", "`other`", "`going-on`"]
    assert list(seeds)[2:-7] == ["hidden size", "epochs", "learning rate", "tie weights"]
    assert [row["seeds"] for row in (seeds, other, going_on)] == ["1, 2", "1", "1"]
    assert [row["hidden size"] for row in (seeds, other, going_on)] == ["6", "5", "6"]
    assert [row["learning rate"] for row in (seeds, other, going_on)] == ["1", "0.25", "1"]
    assert [row["tie weights"] for row in (seeds, other, going_on)] == ["no", "no", "yes"]
    result, rows = runs.result(folder / "other"), runs.metrics(folder / "other")
    best = min(rows, key=lambda row: row["valid_perplexity"])
    assert other["epochs (best)"] == f"3 ({best['epoch']})"
    assert other["best test"] == f"{result['test_perplexity']:.2f}"
    assert other["best valid"] == f"{best['valid_perplexity']:.2f}"
    assert other["last test"] == f"{result['final_test_perplexity']:.2f}"
    assert other["last valid"] == f"{rows[-1]['valid_perplexity']:.2f}"
    assert other["parameters"] == f"{result['parameters']:,}"
    assert float(other["words/s"].replace(",", "")) == pytest.approx(result["words_per_second"], rel=1e-3)
    assert (going_on["best test"], going_on["last test"], going_on["parameters"]) == ("–", "–", "–")
    assert going_on["epochs (best)"].startswith("2 of 9 (")


def test_seeds_are_one_row_with_mean_and_deviation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However they were named."""
    given = [folder / "seeds"], [folder / "seeds" / f"seed-{seed}" for seed in (2, 1)]
    texts = [compared(capsys, *folders, folder / "other") for folders in given]
    assert texts[0] == texts[1]
    values = [runs.result(folder / "seeds" / f"seed-{seed}")["test_perplexity"] for seed in (1, 2)]
    (seeds, _) = markdown_rows(texts[0])
    assert seeds["best test"] == f"{sum(values) / 2:.2f} ± {statistics.stdev(values):.2f}"
    assert seeds["parameters"] == f"{runs.result(folder / 'seeds' / 'seed-1')['parameters']:,}"


def test_another_run_of_a_seed_is_another_row(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = shutil.copytree(folder / "seeds" / "seed-1", tmp_path / "again")
    rows = markdown_rows(compared(capsys, folder / "seeds", again))
    assert [(row["run"], row["seeds"]) for row in rows] == [("`seeds`", "1, 2"), ("`again`", "1")]
    assert "±" not in rows[1]["best test"]


def test_runs_on_other_text_are_another_row(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two texts in folders of one name; a copy of the first text is the first text."""
    copy, other = (runs.write_corpus(tmp_path / name / "data") for name in ("copy", "other"))
    with (other / "train.txt").open("a") as file:
        file.write("w1 w2 w1 w2\n")
    third = runs.train_run(copy, tmp_path / "third", "--seed", "3", *WIDE)
    fourth = runs.train_run(other, tmp_path / "fourth", "--seed", "4", *WIDE)
    rows = markdown_rows(compared(capsys, folder / "seeds", third, fourth))
    assert [row["seeds"] for row in rows] == ["1, 2, 3", "4"]
    assert [row["data"] for row in rows] == [
        f"data (SHA-256 {corpus.load(text).sha256[:12]}…)" for text in (folder / "data", other)
    ]


def test_the_runs_of_one_command_stay_together_where_a_seed_is_there_twice(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The older command lacks its second seed, as if it had diverged in its first epoch."""
    older, newer = (shutil.copytree(folder / "seeds", tmp_path / name) for name in ("older", "newer"))
    shutil.copytree(newer / "seed-1", newer / "seed-3")
    set_values(newer / "seed-3" / "config.json", seed=3)
    shutil.copytree(newer / "seed-3", older / "seed-3")
    shutil.rmtree(older / "seed-2")
    rows = markdown_rows(compared(capsys, older, newer))
    assert {row["run"]: row["seeds"] for row in rows} == {"`older`": "1, 3", "`newer`": "1, 2, 3"}


def set_values(path: Path, **values: object) -> None:
    runs.change(path, lambda content: content.update(values))


def test_penn_treebank_is_one_text_wherever_it_lies(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = shutil.copytree(folder / "seeds", tmp_path / "seeds")
    source = {"path": "/elsewhere/treebank", "sha256": corpus.PENN_TREEBANK}
    set_values(seeds / "seed-1" / "config.json", data="/elsewhere/treebank", source=source)
    set_values(seeds / "seed-2" / "config.json", data="ptb")
    runs.change(seeds / "seed-2" / "config.json", lambda config: config.pop("source"))
    (row,) = markdown_rows(compared(capsys, seeds))
    assert row["seeds"] == "1, 2"


def test_a_seed_that_has_not_ended_stays_with_the_others(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files do not say which device "auto" was."""
    seeds = shutil.copytree(folder / "seeds", tmp_path / "seeds")
    shutil.copytree(seeds / "seed-2", seeds / "seed-3")
    for seed in (1, 2, 3):
        set_values(seeds / f"seed-{seed}" / "config.json", device="auto", seed=seed)
    (seeds / "seed-2" / "result.json").unlink()
    (row,) = markdown_rows(compared(capsys, seeds))
    assert row["seeds"] == "1, 2, 3"
    # Which device a run of another configuration has that has not ended is not known: it is no difference.
    going_on = shutil.copytree(folder / "going-on", tmp_path / "going-on")
    set_values(going_on / "config.json", device="auto")
    assert "device" not in markdown_rows(compared(capsys, going_on, folder / "other"))[0]
    # With others of two devices it could be either's.
    runs.change(
        seeds / "seed-3" / "result.json", lambda result: result["environment"].update({"cuda": "13.0"})
    )
    rows = markdown_rows(compared(capsys, seeds))
    assert {row["seeds"]: row["device"] for row in rows} == {"1": "cpu", "2": "auto", "3": "cuda"}


def test_a_run_that_goes_on_after_its_end_has_not_ended(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result is of other epochs than its metrics, as soon as one more is done."""
    run = shutil.copytree(folder / "other", tmp_path / "run")
    earlier = (run / "result.json").read_bytes()
    (before,) = markdown_rows(compared(capsys, run))
    more = {"hyperparameters": {**runs.unsealed((run / "config.json").read_text())["hyperparameters"]}}
    more["hyperparameters"]["epochs"] = 9
    set_values(run / "config.json", **more)
    (begun,) = markdown_rows(compared(capsys, run))
    assert begun == {**before, "epochs (best)": before["epochs (best)"].replace("3 ", "3 of 9 ")}
    # Stopped in its sixth epoch.
    assert train.main(["--resume", str(run), "--epochs", "5"]) == 0
    (run / "result.json").write_bytes(earlier)
    set_values(run / "config.json", **more)
    (row,) = markdown_rows(compared(capsys, run))
    assert row["epochs (best)"].startswith("5 of 9 (")
    assert row["last valid"] == f"{runs.metrics(run)[-1]['valid_perplexity']:.2f}" != before["last valid"]
    assert (row["best test"], row["last test"]) == ("–", "–")
    assert float(row["words/s"].replace(",", "")) > 0


def test_the_csv_has_whole_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = compared(capsys, folder / "seeds", folder / "other", "--format", "csv")
    seeds, other = csv.DictReader(io.StringIO(text))
    results = [runs.result(folder / "seeds" / f"seed-{seed}") for seed in (1, 2)]
    for column, key in (("best_test", "test_perplexity"), ("last_valid", "final_valid_perplexity")):
        values = [result[key] for result in results]
        assert float(seeds[column]) == pytest.approx(sum(values) / 2, rel=1e-15)
        assert float(seeds[f"{column}_sd"]) == pytest.approx(statistics.stdev(values), rel=1e-12)
        assert float(other[column]) == runs.result(folder / "other")[key]
        assert other[f"{column}_sd"] == ""
    assert int(other["parameters"]) == runs.result(folder / "other")["parameters"]
    assert (seeds["hidden_size"], other["learning_rate"], seeds["seeds"]) == ("6", "0.25", "1 2")


def test_no_two_columns_of_the_csv_have_one_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = shutil.copytree(folder / "other", tmp_path / "longer")
    values = runs.unsealed((longer / "config.json").read_text())["hyperparameters"]
    set_values(longer / "config.json", hyperparameters={**values, "epochs": 9})
    reader = csv.DictReader(io.StringIO(compared(capsys, folder / "other", longer, "--format", "csv")))
    rows = [*reader]
    assert reader.fieldnames is not None
    assert len(set(reader.fieldnames)) == len(reader.fieldnames)
    assert [(row["planned_epochs"], row["epochs"]) for row in rows] == [
        (str(values["epochs"]), "3"),
        ("9", "3"),
    ]


SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_line_for_each_and_a_band_for_seeds(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "curves.svg"
    compared(capsys, folder / "seeds", folder / "other", "--picture", file)
    drawn = ET.fromstring(file.read_text())
    points = {
        group.get("id"): len(group.findall(f".//{SVG}use"))
        for group in drawn.iter(f"{SVG}g")
        if group.get("id")
    }
    assert points["seeds (2 seeds)"] == 2  # a marker an epoch
    assert points["other"] == 3
    assert sum((name or "").startswith("FillBetween") for name in points) == 1
    legend = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"seeds (2 seeds)", "other", "perplexity", "epoch"} <= legend


def test_a_png_is_a_picture(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imread

    file = tmp_path / "curves.png"
    compared(capsys, folder / "seeds", folder / "other", "--picture", file)
    pixels = imread(file)
    assert pixels.shape[1] > 1000
    assert len({tuple(pixel) for row in pixels[::4] for pixel in row[::4]}) > 10  # it is not empty


def test_the_page_holds_table_and_curves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = compared(capsys, folder / "seeds", folder / "other", "--format", "page")
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    assert "Validation perplexity by epoch" in page
    assert 'alt="Validation perplexity by epoch"' in page
    assert f"{runs.result(folder / 'other')['test_perplexity']:.2f}" in page
    assert "What all of them share" in page


def test_runs_whose_folders_have_one_name_are_told_apart(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    same = shutil.copytree(folder / "going-on", tmp_path / "other")
    rows = markdown_rows(compared(capsys, folder / "other", same))
    assert [row["run"] for row in rows] == [f"`{folder / 'other'}`", f"`{same}`"]


def test_one_run_is_a_table_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = markdown_rows(compared(capsys, folder / "other"))
    assert list(row)[:3] == ["run", "seeds", "epochs (best)"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["missing"], "the run directory missing does not exist"),
        (["{folder}/other", "{folder}/other"], "the run {folder}/other is named twice"),
        (["{folder}/seeds", "{folder}/seeds/seed-1"], "the run {folder}/seeds/seed-1 is named twice"),
        (["{folder}/data"], "{folder}/data is not a run directory: config.json is missing"),
        (["{folder}/other", "--picture", "curves.pdf"], "--picture curves.pdf must end in .svg or .png"),
        (
            ["{folder}/other", "--format", "json"],
            "argument --format: invalid choice: 'json' (choose from 'markdown', 'csv', 'page') (see --help)",
        ),
        ([], "the following arguments are required: RUN (see --help)"),
        (
            ["{folder}/other", "--picture", "/missing/curves.svg"],
            "/missing/curves.svg: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    given: list[str], problem: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = runs.refusal(capsys, compare, *(each.format(folder=folder) for each in given))
    assert said.replace("choose from markdown, csv, page", "choose from 'markdown', 'csv', 'page'") == (
        problem.format(folder=folder)
    )


def test_a_run_without_an_epoch_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.write_run(tmp_path / "run", ["a", "b"])
    assert runs.refusal(capsys, compare, run) == f"{run}/metrics.jsonl is missing"
    (run / "metrics.jsonl").write_text("")
    assert runs.refusal(capsys, compare, run, run) == f"the run {run} is named twice"
    other = shutil.copytree(run, tmp_path / "other")
    assert runs.refusal(capsys, compare, run, other) == f"{run}/metrics.jsonl holds no epochs yet"


def test_runs_without_an_epoch_are_named_and_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that diverged in its first epoch, and one that ended before it had saved anything."""
    seeds = shutil.copytree(folder / "seeds", tmp_path / "seeds")
    (seeds / "seed-2" / "metrics.jsonl").write_text("")
    (seeds / "seed-2" / "result.json").unlink()
    young = runs.write_run(tmp_path / "young", ["a", "b"])
    (young / "weights.safetensors").unlink()
    expected = compared(capsys, seeds / "seed-1", folder / "other")
    assert runs.run_command(compare, seeds, young, folder / "other") == 0
    out, err = capsys.readouterr()
    assert out.replace("`seeds`", "`seed-1`") == expected
    assert err == (
        f"{seeds}/seed-2/metrics.jsonl holds no epochs yet; the run is left out\n"
        f"{young}/metrics.jsonl is missing; the run is left out\n"
    )
