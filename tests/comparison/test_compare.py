"""The command that compares runs: its table, its CSV, its page and its picture, against the runs' files."""

import csv
import dataclasses
import html
import io
import json
import shutil
import statistics
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import browser
import numpy as np
import pytest
import runs

from ptb_lm import compare, train
from ptb_lm.common.markdown_tables import Name, Table
from ptb_lm.comparison import tables
from ptb_lm.comparison.runs import read_groups
from ptb_lm.data import corpus
from ptb_lm.data.preparation import Preparation
from ptb_lm.training.run_folders import DEMO

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


@pytest.fixture
def seeds(folder: Path, tmp_path: Path) -> Path:
    """The runs of two seeds, to be changed."""
    return shutil.copytree(folder / "seeds", tmp_path / "seeds")


def set_hyperparameters(run: Path, **values: object) -> None:
    """Change how a finished run was trained."""
    for name in ("config.json", "result.json"):
        runs.change(run / name, lambda content: content["hyperparameters"].update(values))


def compared(capsys: pytest.CaptureFixture[str], *given: object) -> str:
    capsys.readouterr()
    assert runs.run_command(compare, *given) == 0
    out, err = capsys.readouterr()
    assert err.startswith("python -m ptb_lm.compare: wrote ") if "--picture" in given else not err
    return out


def cells(table: Table) -> list[dict[str, str]]:
    """Return the cells of each row by their columns' titles."""
    titles = [column.title for column in table.columns]
    shown = [[cell.label if isinstance(cell, Name) else cell for cell in row] for row in table.rows]
    return [dict(zip(titles, row, strict=True)) for row in shown]


def results(*folders: Path) -> list[dict[str, str]]:
    return cells(tables.results(read_groups(folders, command="compare")))


def differences(*folders: Path) -> dict[str, dict[str, str]]:
    """Return the values of the settings that differ by setting and by run."""
    rows = cells(tables.differences(read_groups(folders, command="compare")))
    if rows and "setting" in rows[0]:
        return {row.pop("setting"): row for row in rows}
    by_run = {row.pop("run"): row for row in rows}
    return {setting: {run: by_run[run][setting] for run in by_run} for setting in (rows or [{}])[0]}


def shared(*folders: Path) -> dict[str, str]:
    """Return the settings that are the same in all runs."""
    return dict(tables.common_settings(read_groups(folders, command="compare")).rows)


def test_the_tables_tell_what_was_reached_and_what_differs(folder: Path) -> None:
    runs_of_it = folder / "seeds", folder / "other", folder / "going-on"
    seeds, other, going_on = results(*runs_of_it)
    assert [row["run"] for row in (seeds, other, going_on)] == ["seeds", "other", "going-on"]
    assert [row["seeds"] for row in (seeds, other, going_on)] == ["1, 2", "1", "1"]
    result, rows = runs.result(folder / "other"), runs.metrics(folder / "other")
    best = min(rows, key=lambda row: row["valid_perplexity"])
    assert other["epochs (best)"] == f"3 ({best['epoch']})"
    assert other["best test"] == f"{result['test_perplexity']:.2f}"
    assert other["best valid"] == f"{best['valid_perplexity']:.2f}"
    assert float(other["words/s"].replace(",", "")) == pytest.approx(result["words_per_second"], abs=0.5)
    assert going_on["best test"] == "–"
    assert going_on["epochs (best)"].startswith("2 of 9 (")
    found = differences(*runs_of_it)
    assert {name: [*found[name].values()] for name in ("hidden size", "epochs", "learning rate")} == {
        "hidden size": ["6", "5", "6"],
        "epochs": ["2", "3", "9"],
        "learning rate": ["1", "0.25", "1"],
    }
    assert found["tie weights"] == {"seeds": "no", "other": "no", "going-on": "yes"}
    assert found["parameters"]["other"] == f"{result['parameters']:,}"
    assert found["parameters"]["going-on"] == "–"
    assert found.keys() == {"hidden size", "epochs", "learning rate", "tie weights", "parameters"}
    same = shared(*runs_of_it)
    assert same["batch size"] == "4"
    assert not found.keys() & same.keys()


def test_the_sizes_of_layers_are_written_as_their_flag_has_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(folder / "other", tmp_path / "uneven")
    set_hyperparameters(run, layer_sizes=[7, 5])
    assert differences(run, folder / "other") == {"layer sizes": {"uneven": "7 5", "other": "–"}}
    uneven, other = csv.DictReader(io.StringIO(compared(capsys, run, folder / "other", "--format", "csv")))
    assert (uneven["layer_sizes"], other["layer_sizes"]) == ("7 5", "")


@pytest.fixture
def unlike(folder: Path, tmp_path: Path) -> Path:
    """A run that differs from the others in nearly all settings."""
    run = shutil.copytree(folder / "other", tmp_path / "unlike")
    others = {"num_layers": 3, "num_steps": 7, "batch_size": 5, "decay_after": 1, "lr_decay": 0.75}
    others |= {"max_grad_norm": 2.0, "keep_prob": 0.5, "variational": True, "recurrent_keep_prob": 0.9}
    set_hyperparameters(run, **others)
    set_values(run / "config.json", recipe="default", precision="fp64", model="block_fused")
    return run


@pytest.mark.parametrize(
    ("speed", "perplexity"), [(8_765.4, 23.456), (10_887.0, 23.456), (999_999.0, 9_999.99)]
)
def test_results_fit_80_columns_and_come_first(
    speed: float,
    perplexity: float,
    folder: Path,
    seeds: Path,
    unlike: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So do the differences, however many: the rows are runs or settings, of which there are more."""
    for run, part in ((seeds / "seed-1", 1.0), (seeds / "seed-2", 0.1), (unlike, 1.0)):  # a wide spread
        reached = part * perplexity
        set_values(run / "result.json", test_perplexity=reached, valid_perplexity=reached)
        rows = [
            {**row, "words_per_second": part * speed, "valid_perplexity": reached}
            for row in runs.metrics(run)
        ]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = compared(capsys, seeds, folder / "other", unlike)
    assert max(map(len, text.splitlines())) <= 80
    head, *_ = text.splitlines()
    assert [cell.strip() for cell in head[2:-2].split("|")][:3] == ["run", "best test", "best valid"]
    for *_, wide in (results(seeds, folder / "other", unlike), differences(seeds, unlike).values()):
        assert all(value in text for value in wide.values())
    assert results(unlike)[0]["words/s"] == f"{speed:,.0f}"
    assert results(unlike)[0]["best valid"] == f"{perplexity:,.2f}"
    rows = cells(tables.differences(read_groups([seeds, folder / "other", unlike], command="compare")))
    assert len(rows) >= 15
    assert rows[0].keys() == {"setting", "seeds", "other", "unlike"}
    slower = shutil.copytree(folder / "other", tmp_path / "slower")
    set_hyperparameters(slower, learning_rate=0.5)
    assert cells(tables.differences(read_groups([folder / "other", slower], command="compare"))) == [
        {"run": "other", "learning rate": "0.25"},
        {"run": "slower", "learning rate": "0.5"},
    ]


def test_results_are_in_sight_on_the_page(
    folder: Path, unlike: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a window of 1280 by 800 pixels, without scrolling; nor is anything else cut at the right."""
    page, driver = tmp_path / "page.html", browser.start(tmp_path / "profile")
    page.write_text(compared(capsys, folder / "seeds", folder / "other", unlike, "--format", "page"))
    try:
        driver.set_window_size(1280, 800)
        driver.get(page.as_uri())
        heads = "[...document.querySelector('table').rows[0].cells].map(each => each.textContent)"
        assert driver.execute_script(f"return {heads}")[:3] == ["run", "best test", "best valid"]
        bottom = "document.querySelector('table').getBoundingClientRect().bottom"
        assert driver.execute_script(f"return {bottom} < innerHeight")
        boxes = "[...document.querySelectorAll('.scroll')]"
        assert driver.execute_script(f"return {boxes}.every(each => each.scrollWidth <= each.clientWidth)")
        assert driver.execute_script(f"return {boxes}.length") == 3
    finally:
        driver.quit()


def test_the_last_epoch_is_told_where_it_is_not_the_best(folder: Path, tmp_path: Path) -> None:
    worse = shutil.copytree(folder / "other", tmp_path / "worse")
    *rows, last = runs.metrics(worse)
    rows.append({**last, "valid_perplexity": 1e6})
    (worse / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = runs.result(worse)["final_test_perplexity"]
    assert cells(tables.last_epochs(read_groups([folder / "other", worse], command="compare"))) == [
        {"run": "worse", "last test": f"{test:.2f}", "last valid": "1,000,000.00"}
    ]


def test_the_best_epoch_is_that_of_the_weights_that_were_tested(folder: Path, tmp_path: Path) -> None:
    """The last one was trained again after a crash, and ended worse."""
    run = shutil.copytree(folder / "other", tmp_path / "run")
    set_values(run / "result.json", best_epoch=3, valid_perplexity=1.25)
    (row,) = results(run)
    assert (row["best valid"], row["epochs (best)"]) == ("1.25", "3 (3)")
    (last,) = cells(tables.last_epochs(read_groups([run], command="compare")))
    assert last["last valid"] == f"{runs.metrics(run)[-1]['valid_perplexity']:.2f}"


def test_seeds_are_one_row_with_mean_and_deviation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However they were named."""
    given = [folder / "seeds"], [folder / "seeds" / f"seed-{seed}" for seed in (2, 1)]
    texts = [compared(capsys, *folders, folder / "other") for folders in given]
    assert texts[0] == texts[1]
    values = [runs.result(folder / "seeds" / f"seed-{seed}")["test_perplexity"] for seed in (1, 2)]
    (seeds,) = results(folder / "seeds")
    assert seeds["best test"] == f"{sum(values) / 2:.2f} ± {statistics.stdev(values):.2f}"


def test_another_run_of_a_seed_is_another_row(folder: Path, tmp_path: Path) -> None:
    again = shutil.copytree(folder / "seeds" / "seed-1", tmp_path / "again")
    rows = results(folder / "seeds", again)
    assert [(row["run"], row["seeds"]) for row in rows] == [("seeds", "1, 2"), ("again", "1")]
    assert "±" not in rows[1]["best test"]


def test_a_path_among_the_settings_is_not_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, path = shutil.copytree(DEMO, tmp_path / "run"), f"/elsewhere/{'a-long-name-' * 9}"
    set_values(run / "config.json", init_from={"run": path, "weights_sha256": "0" * 64, "new_words": 0})
    assert path in compared(capsys, run)


def test_runs_on_other_text_are_another_row(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two texts in folders of one name; a copy of the first text is the first text."""
    copy, other = (runs.write_corpus(tmp_path / name / "data") for name in ("copy", "other"))
    with (other / "train.txt").open("a") as file:
        file.write("w1 w2 w1 w2\n")
    third = runs.train_run(copy, tmp_path / "third", "--seed", "3", *WIDE)
    fourth = runs.train_run(other, tmp_path / "fourth", "--seed", "4", *WIDE)
    found = folder / "seeds", third, fourth
    assert [(row["run"], row["seeds"]) for row in results(*found)] == [("seed-1", "1, 2, 3"), ("fourth", "4")]
    assert [*differences(*found)["data"].values()] == [
        f"data (SHA-256 {corpus.load(each).sha256[:12]}…)" for each in (folder / "data", other)
    ]
    told = "perplexities cannot be compared"
    for form in ("markdown", "page"):
        assert told in " ".join(compared(capsys, *found, "--format", form).split())
        assert told not in " ".join(compared(capsys, folder / "seeds", third, "--format", form).split())


def test_a_text_is_the_same_by_another_name(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "renamed")
    other = runs.train_run(
        tmp_path / "renamed", tmp_path / "run", "--seed", "3", *WIDE, "--init-scale", "0.3"
    )
    assert "data" not in differences(folder / "seeds", other)
    assert "init scale" in differences(folder / "seeds", other)


def test_a_text_has_the_name_of_its_place(folder: Path, seeds: Path) -> None:
    """Also where the user was in its folder."""
    for seed, given in ((1, "."), (2, "..")):
        set_values(seeds / f"seed-{seed}" / "config.json", data=given)
    assert shared(seeds)["data"] == f"data (SHA-256 {corpus.load(folder / 'data').sha256[:12]}…)"


def test_runs_that_began_with_other_weights_are_another_row(folder: Path, seeds: Path) -> None:
    """Also where these came from one folder, or where words were added to one run's alone."""
    one = {"run": "/elsewhere/run", "weights_sha256": "0" * 64, "new_words": 0}
    found = []
    for other in ({}, {"run": "/moved/run"}, {"weights_sha256": "1" * 64}, {"new_words": 3}):
        set_values(seeds / "seed-1" / "config.json", init_from=one)
        set_values(seeds / "seed-2" / "config.json", init_from={**one, **other})
        found.append([row["seeds"] for row in results(seeds)])
    assert found == [["1, 2"], ["1, 2"], ["1", "2"], ["1", "2"]]


def test_the_runs_of_one_command_stay_together_where_a_seed_is_there_twice(
    folder: Path, tmp_path: Path
) -> None:
    """The older command lacks its second seed, as if it had diverged in its first epoch."""
    older, newer = (shutil.copytree(folder / "seeds", tmp_path / name) for name in ("older", "newer"))
    shutil.copytree(newer / "seed-1", newer / "seed-3")
    set_values(newer / "seed-3" / "config.json", seed=3)
    shutil.copytree(newer / "seed-3", older / "seed-3")
    shutil.rmtree(older / "seed-2")
    found = {row["run"]: row["seeds"] for row in results(older, newer)}
    assert found == {"older": "1, 3", "newer": "1, 2, 3"}


def set_values(path: Path, **values: object) -> None:
    runs.change(path, lambda content: content.update(values))


def test_penn_treebank_is_one_text_wherever_it_lies(seeds: Path) -> None:
    source = {"path": "/elsewhere/treebank", "sha256": corpus.PENN_TREEBANK_SHA256}
    set_values(seeds / "seed-1" / "config.json", data="/elsewhere/treebank", source=source)
    set_values(seeds / "seed-2" / "config.json", data="ptb")
    runs.change(seeds / "seed-2" / "config.json", lambda config: config.pop("source"))
    (row,) = results(seeds)
    assert row["seeds"] == "1, 2"


def test_seeds_are_one_row_by_what_their_flags_do(folder: Path, seeds: Path) -> None:
    """Also where one of them names a default, and where its text has moved into a folder of another name."""
    for seed, given in ((1, {}), (2, {"min_count": 2})):
        preparation = dataclasses.asdict(Preparation(**given))
        set_values(seeds / f"seed-{seed}" / "config.json", preparation=preparation)
    set_values(seeds / "seed-2" / "config.json", data="/elsewhere/moved")
    (row,) = results(seeds)
    assert row["seeds"] == "1, 2"


def test_seeds_of_two_devices_are_rows_of_two_names(seeds: Path) -> None:
    for seed in (3, 4):
        run = shutil.copytree(seeds / "seed-1", seeds / f"seed-{seed}")
        set_values(run / "config.json", seed=seed)
        runs.change(run / "result.json", lambda result: result["environment"].update({"cuda": "13.0"}))
    assert [(row["run"], row["seeds"]) for row in results(seeds)] == [("seed-1", "1, 2"), ("seed-3", "3, 4")]


def test_a_run_cannot_steer_the_terminal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(folder / "other", tmp_path / "other")
    runs.change(run / "config.json", lambda config: config["source"].update(path="a\x1b[2Jb"))
    assert "a\x1b[2Jb" in compared(capsys, run)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = compared(capsys, run)
    assert ("a\\x1b[2Jb" in text, "\x1b" in text) == (True, False)


def test_a_seed_that_has_not_ended_stays_with_the_others(folder: Path, seeds: Path, tmp_path: Path) -> None:
    """Its files do not say which device "auto" was."""
    shutil.copytree(seeds / "seed-2", seeds / "seed-3")
    for seed in (1, 2, 3):
        set_values(seeds / f"seed-{seed}" / "config.json", device="auto", seed=seed)
    (seeds / "seed-2" / "result.json").unlink()
    (row,) = results(seeds)
    assert row["seeds"] == "1, 2, 3"
    # Which device a run of another configuration has that has not ended is not known: it is no difference.
    going_on = shutil.copytree(folder / "going-on", tmp_path / "going-on")
    set_values(going_on / "config.json", device="auto")
    assert {"device", "machine"}.isdisjoint(differences(going_on, folder / "other"))
    same = shared(going_on, folder / "other")
    assert same["device"].startswith("cpu")
    assert same["machine"] != "–"
    # With others of two devices it could be either's.
    runs.change(
        seeds / "seed-3" / "result.json", lambda result: result["environment"].update({"cuda": "13.0"})
    )
    assert [row["seeds"] for row in results(seeds)] == ["1", "2", "3"]
    assert [*differences(seeds)["device"].values()] == ["cpu", "auto", "cuda"]


def test_a_run_that_goes_on_after_its_end_has_not_ended(folder: Path, tmp_path: Path) -> None:
    """Its result is of other epochs than its metrics, as soon as one more is done."""
    run = shutil.copytree(folder / "other", tmp_path / "run")
    earlier = (run / "result.json").read_bytes()
    (before,) = results(run)
    runs.change(run / "config.json", lambda config: config["hyperparameters"].update(epochs=9))
    planned = (run / "config.json").read_bytes()
    (begun,) = results(run)
    assert begun == {**before, "epochs (best)": before["epochs (best)"].replace("3 ", "3 of 9 ")}
    # Stopped in its sixth epoch.
    assert train.main(["--resume", str(run), "--epochs", "5"]) == 0
    (run / "result.json").write_bytes(earlier)
    (run / "config.json").write_bytes(planned)
    (row,) = results(run)
    assert row["epochs (best)"].startswith("5 of 9 (")
    assert row["best test"] == "–"
    assert float(row["words/s"].replace(",", "")) > 0


def test_seeds_have_a_mean_once_all_have_done_as_many_epochs(seeds: Path) -> None:
    (row,) = results(seeds)
    assert "±" in row["best valid"]
    metrics = seeds / "seed-2" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    (seeds / "seed-2" / "result.json").unlink()
    (row,) = results(seeds)
    assert (row["seeds"], row["best valid"]) == ("1, 2", "–")
    assert "±" in row["words/s"]


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
    (alone,) = csv.DictReader(io.StringIO(compared(capsys, folder / "other", "--format", "csv")))
    assert (alone["planned_epochs"], alone["epochs"]) == ("3", "3")
    assert [*seeds].index("best_test") < [*seeds].index("hidden_size"), "results come first"


def test_no_two_columns_of_the_csv_have_one_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = shutil.copytree(folder / "other", tmp_path / "longer")
    runs.change(longer / "config.json", lambda config: config["hyperparameters"].update(epochs=9))
    reader = csv.DictReader(io.StringIO(compared(capsys, folder / "other", longer, "--format", "csv")))
    rows = [*reader]
    assert len(set(reader.fieldnames)) == len(reader.fieldnames)
    assert [(row["planned_epochs"], row["epochs"]) for row in rows] == [("3", "3"), ("9", "3")]


SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_line_for_each_and_a_band_for_seeds(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "curves.svg"
    other = shutil.copytree(folder / "other", tmp_path / "日本")  # which the font of the picture lacks
    compared(capsys, folder / "seeds", other, "--picture", file)
    drawn = ET.fromstring(file.read_text(encoding="utf-8"))
    points = {
        group.get("id"): len(group.findall(f".//{SVG}use"))
        for group in drawn.iter(f"{SVG}g")
        if group.get("id")
    }
    assert points["seeds (2 seeds)"] == 2  # a marker an epoch
    assert points["日本"] == 3
    assert sum((name or "").startswith("FillBetween") for name in points) == 1
    legend = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"seeds (2 seeds)", "日本", "perplexity", "epoch"} <= legend
    valid = [
        [row["valid_perplexity"] for row in runs.metrics(run)]
        for run in (folder / "seeds" / "seed-1", folder / "seeds" / "seed-2", other)
    ]
    means = [statistics.fmean(both) for both in zip(*valid[:2], strict=True)]
    places = np.concatenate([line(drawn, "seeds (2 seeds)"), line(drawn, "日本")])
    assert_on_axis(places[:, 1], np.log([*means, *valid[2]]))
    assert_on_axis(places[:, 0], np.array([1, 2, 1, 2, 3]))


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
    assert f"{runs.result(folder / 'other')['test_perplexity']:.2f}" in page
    titles = ["best test", "<img", tables.DIFFERENCES, "hidden size", "<details>"]
    assert sorted(titles, key=page.index) == titles, "results come first, and what is the same is folded"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_page_is_the_same_in_any_encoding_of_stdout(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is UTF-8."""
    run, written = shutil.copytree(DEMO, tmp_path / "日é"), io.BytesIO()
    with io.TextIOWrapper(written, encoding=encoding) as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert runs.run_command(compare, run, "--format", "page") == 0
        stdout.flush()
        page = html.unescape(written.getvalue().decode())
    assert "<title>日é</title>" in page
    assert "±" in page
    assert tables.NOTHING in page


def test_runs_whose_folders_have_one_name_are_told_apart(folder: Path, tmp_path: Path) -> None:
    """By as many folders above them as that needs; another run keeps its short name."""
    same = [shutil.copytree(folder / "going-on", tmp_path / above / "other") for above in ("a/x", "b/x")]
    rows = results(folder / "other", *same, folder / "seeds")
    names = [f"{folder.name}/other", "a/x/other", "b/x/other", "seeds"]
    assert [row["run"] for row in rows] == names
    below = shutil.copytree(folder / "other", Path(f"{tmp_path}{folder}") / "other")
    whole, longer = results(folder / "other", below)
    assert (whole["run"], longer["run"]) == (f"{folder}/other", f"{tmp_path.name}{folder}/other")


def line(picture: ET.Element, name: str) -> np.ndarray:
    """The points [N, 2] of a line of a picture."""
    (group,) = (each for each in picture.iter(f"{SVG}g") if each.get("id") == name)
    path = next(group.iter(f"{SVG}path")).get("d")
    numbers = [float(word) for word in path.split() if word not in "ML"]
    return np.array(numbers).reshape(-1, 2)


def assert_on_axis(places: np.ndarray, values: np.ndarray) -> None:
    """Places in points (of an inch) are the values but for an origin and a scale."""
    slope, origin = np.polyfit(values, places, 1)
    np.testing.assert_allclose(places, origin + slope * values, atol=1e-3)


@pytest.mark.parametrize("averaged", [False, True])
def test_the_picture_of_one_run_goes_through_what_was_measured(
    averaged: bool, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Perplexities are on one logarithmic axis, words per second on one of their own, from 0."""
    run = folder / "other"
    if averaged:
        more = ("--epochs", "4", "--average-epochs", "1", *WIDE)
        run = runs.train_run(folder / "data", tmp_path / "averaged", *more)
        runs.change(run / "config.json", lambda config: config["hyperparameters"].update(epochs=9))
        (run / "result.json").unlink()
    text = compared(capsys, run, "--picture", tmp_path / "curve.svg")
    assert f"`{run.name}`" in text
    assert tables.DIFFERENCES not in text
    assert "config small, recipe tutorial" in text
    picture, rows = ET.parse(tmp_path / "curve.svg").getroot(), runs.metrics(run)
    columns = ["train_perplexity", "valid_perplexity", *(["unaveraged_valid_perplexity"] * averaged)]
    places = np.concatenate([line(picture, column) for column in columns])
    assert_on_axis(places[:, 1], np.log([row[column] for column in columns for row in rows]))
    assert np.ptp(places[:, 1]) > 50  # the axis is of their size
    assert_on_axis(places[:, 0], np.tile([row["epoch"] for row in rows], len(columns)))
    assert_on_axis(
        line(picture, "words_per_second")[:, 1], np.array([row["words_per_second"] for row in rows])
    )
    texts = {element.text or "" for element in picture.iter(f"{SVG}text")}
    assert {"perplexity", "words/s", "epoch", "train", "valid"} <= texts
    assert ("valid, unaveraged" in texts) == averaged
    assert ("averaged, 4 of 9 epochs" if averaged else "other") in texts


def test_a_picture_is_the_same_each_time_and_overwrites_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "curve.svg"
    file.write_text("mine")
    given = (folder / "other", "--picture", file)
    assert str(file) in runs.refusal(capsys, compare, *given)
    assert file.read_text() == "mine"
    pictures = []
    for _ in range(2):
        compared(capsys, *given, "--overwrite")
        pictures.append(file.read_bytes())
    assert pictures[0] == pictures[1]


def test_without_matplotlib_there_is_a_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    assert "`other`" in compared(capsys, folder / "other")
    problem = runs.refusal(capsys, compare, folder / "other", "--picture", tmp_path / "curve.svg")
    assert "matplotlib" in problem
    assert not (tmp_path / "curve.svg").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["missing"], ["missing", "exist"]),
        (["{folder}/other", "{folder}/other"], ["{folder}/other", "twice"]),
        (["{folder}/seeds", "{folder}/seeds/seed-1"], ["{folder}/seeds/seed-1", "twice"]),
        (["{folder}/data"], ["{folder}/data", "config.json"]),
        (["{folder}/other", "--picture", "curves.pdf"], ["curves.pdf", ".svg", ".png"]),
        (["{folder}/other", "--format", "json"], ["--format", "json", "markdown", "csv", "page"]),
        ([], ["RUN", "--help"]),
        (["{folder}/other", "--picture", "/missing/curves.svg"], ["/missing/curves.svg"]),
    ],
)
def test_impossible_requests_are_refused(
    given: list[str], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = runs.refusal(capsys, compare, *(each.format(folder=folder) for each in given))
    assert all(word.format(folder=folder) in sentence for word in words), sentence


def test_a_file_beside_runs_is_no_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shell's checkpoints/* names a page, too."""
    page = folder / "data" / "train.txt"
    assert runs.run_command(compare, page, folder / "other") == 0
    out, err = capsys.readouterr()
    assert str(page) in err
    assert out == compared(capsys, folder / "other")
    assert str(page) in runs.refusal(capsys, compare, page)


def test_a_run_without_an_epoch_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.write_run(tmp_path / "run", ["a", "b"])
    assert runs.refusal(capsys, compare, run).startswith(f"{run}/metrics.jsonl ")
    (run / "metrics.jsonl").write_text("")
    assert "twice" in runs.refusal(capsys, compare, run, run)
    other = shutil.copytree(run, tmp_path / "other")
    assert runs.refusal(capsys, compare, run, other).startswith(f"{run}/metrics.jsonl ")


def test_runs_without_an_epoch_are_named_and_left_out(
    folder: Path, seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that diverged in its first epoch, and one that ended before it had saved anything."""
    (seeds / "seed-2" / "metrics.jsonl").write_text("")
    (seeds / "seed-2" / "result.json").unlink()
    young = runs.write_run(tmp_path / "young", ["a", "b"])
    (young / "weights.safetensors").unlink()
    expected = compared(capsys, seeds / "seed-1", folder / "other")
    assert runs.run_command(compare, seeds, young, folder / "other") == 0
    out, err = capsys.readouterr()
    assert out.replace("`seeds`", "`seed-1`") == expected
    begins = [f"{compare.PROG}: {run}/metrics.jsonl" for run in (seeds / "seed-2", young)]
    for line, begin in zip(err.splitlines(), begins, strict=True):
        assert line.startswith(f"{begin} ")
