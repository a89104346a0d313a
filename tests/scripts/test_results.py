"""scripts/results: the plan is readable and its commands parse, and what is kept is what was measured."""

import dataclasses
import gzip
import json
import shlex
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bench_rows
import pandas as pd
import pytest
import runs
from support import ROOT

from benchmarks.studies import __main__ as studies
from ptb_lm import __main__ as commands
from ptb_lm import train
from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import rows
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.summary import summarise
from ptb_lm.common import files, json_files
from ptb_lm.common.errors import UserError
from ptb_lm.model.presets import RECIPES
from ptb_lm.training.run_flags import new_config
from results import benchmarks, flags, keep, markdown, pages, pictures, plan, run_tables, store

BENCHMARKS = sorted((ROOT / "results" / "bench").iterdir())
COMMANDS = {
    step.command(device)
    for device in ("cpu", "cuda")
    for name in plan.read()
    for step in plan.steps_of(name, device)
    if step.run.partition(" -m ")[2].startswith(("ptb_lm.", "benchmarks."))
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_of_the_plan_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"OUT", "ID", "RUN", "{"} & {*shlex.split(command)}
    module, *arguments = shlex.split(command.partition(" > ")[0].partition("-m ")[2])
    if module == "benchmarks.studies":
        runs.check_parses(studies, arguments, monkeypatch)
    else:
        runs.check_parses(commands, [module.removeprefix("ptb_lm."), *arguments], monkeypatch)


def test_the_names_of_the_plan_exist() -> None:
    results = plan.read()
    steps = [step for result in results.values() for step in result.steps]
    assert {name for device in ("cpu", "cuda") for name in plan.results_of(["all"], device)} <= {*results}
    assert {step.unless for step in steps} - {""} <= {*results}
    assert all(plan.training(step.after).keep == plan.RUN for step in steps if step.after)
    ids = [step.id for step in steps if step.keep and step.id not in ("quick-DEVICE", "medium-cudnn-DEVICE")]
    assert len(ids) == len({*ids}), "two results would take each other's place"
    on_any = [step for step in steps if step.keep and not step.on]
    assert all("DEVICE" in step.id for step in on_any if "DEVICE" in step.command("DEVICE"))


def test_no_step_on_a_gpu_is_of_tensorflow_alone_which_is_installed_for_a_cpu() -> None:
    steps = [step for name in plan.read() for step in plan.steps_of(name, "cuda")]
    assert not [
        step.run for step in steps if step.needs == "tensorflow" or "--framework tensorflow" in step.run
    ]


def test_what_is_kept_of_a_training_is_what_its_command_gives_today() -> None:
    """Every hyper-parameter of each run in results/ that a step of the plan would make again."""
    kept = run_tables.read(ROOT / "results").set_index("id")["config"]
    commands = {
        plan.fill_placeholders(step.id, device, "COMMIT"): step.run
        for device in ("cpu", "cuda")
        for name in plan.read()
        for step in plan.steps_of(name, device)
        if step.keep == plan.RUN
    }
    found = sorted(commands.keys() & set(kept.index))
    assert {"modern-persistent-fp16-cuda", "small-cudnn-cpu"} <= {*found}
    for name in found:
        assert new_config(flags.parse_config_flags(commands[name])).hyperparameters == kept[name], name


@pytest.mark.parametrize(
    ("preset", "recipe", "changes", "title"),
    [
        ("medium", "default", {}, "medium, default recipe"),
        ("medium", "tutorial", {"tie_weights": True}, "medium, tutorial recipe, `--tie-weights`"),
        ("modern", "default", {}, "modern"),
        ("medium", "default", {"epochs": 30}, ""),
        ("modern", "default", {"epochs": 8}, ""),
        ("race", "default", {}, ""),
    ],
)
def test_the_table_of_perplexities_has_presets_and_tied_weights(
    preset: str, recipe: str, changes: dict[str, Any], title: str, tmp_path: Path
) -> None:
    """Beside a run of medium there is another, of these hyper-parameters."""
    (row,) = store.rows(ROOT / "results", store.RUNS, "medium-persistent-fp16-cuda")
    config = RECIPES[recipe][preset].replace(**changes)
    values = {"preset": preset, "recipe": recipe, "hyperparameters": json.dumps(dataclasses.asdict(config))}
    for run in (row, {**row, **values, "id": "other"}):
        store.put(tmp_path, store.RUNS, [run])
        curve = {"id": run["id"], "epoch": 1, "train_perplexity": 5.0, "valid_perplexity": 4.0}
        store.put(tmp_path, store.curves(str(run["preset"])), [curve], sort=["id", "epoch"])
    _, _, *lines = run_tables.perplexities(run_tables.read(tmp_path)).strip().splitlines()
    medium = "medium, default recipe"
    published = {
        title: figure for title, _, _, figure, *_ in (line.strip("| ").split(" | ") for line in lines)
    }
    expected = {medium: "82.07"} if not title or title == medium else {medium: "82.07", title: "–"}
    assert published == expected


def test_the_table_by_hours_has_each_run_of_two_threads_that_no_faster_one_beats(tmp_path: Path) -> None:
    (row,) = store.rows(ROOT / "results", store.RUNS, "medium-cudnn-cpu")
    two, one = "CPU, threads: 2", "CPU, threads: 1"
    for name, machine, seconds, valid, test in [
        ("best", two, 7200, 75.0, 74.0),
        ("dominated", two, 5400, 81.0, 73.0),
        ("first", two, 3600, 80.0, 79.0),
        ("one-thread", one, 60, 70.0, 69.0),
        ("gpu", "NVIDIA H200", 60, 70.0, 69.0),
        ("not-ended", two, 60, 70.0, None),
    ]:
        run = {**row, "id": name, "machine": machine, "seconds": seconds, "valid": valid, "test": test}
        store.put(tmp_path, store.RUNS, [run])
        curve = {"id": name, "epoch": 1, "train_perplexity": 5.0, "valid_perplexity": valid}
        store.put(tmp_path, store.curves("medium"), [curve], sort=["id", "epoch"])
    _, _, *lines = run_tables.by_hours(run_tables.read(tmp_path)).strip().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert [(row[0], row[3], row[-1]) for row in cells] == [
        ("1.0", "80.00", "`first`"),
        ("2.0", "75.00", "`best`"),
    ]


def test_the_ablation_of_modern_has_what_each_change_gains_on_its_own_runs_of_as_many_epochs(
    tmp_path: Path,
) -> None:
    (row,) = store.rows(ROOT / "results", store.RUNS, "modern-8-epochs-block_fused-cpu")
    values = json.loads(row["hyperparameters"])
    for name, changes, valid, test in [
        ("worse", {"optimizer": "sgd", "learning_rate": 1.0}, 92.0, 89.0),
        ("own", {}, 90.0, 87.0),
        ("other-seed", {}, 88.0, 86.0),
        ("better", {"embedding_keep_prob": 1.0}, 84.5, 99.0),
        ("longer", {"epochs": 38}, 70.0, 68.0),
        ("not-ended", {"schedule": "cosine"}, 60.0, None),
    ]:
        text = json.dumps({**values, **changes})
        run = {**row, "id": name, "hyperparameters": text, "valid": valid, "test": test}
        store.put(tmp_path, store.RUNS, [{**run, "epochs": json.loads(text)["epochs"]}])
        curve = {"id": name, "epoch": 1, "train_perplexity": 5.0, "valid_perplexity": valid}
        store.put(tmp_path, store.curves("modern"), [curve], sort=["id", "epoch"])
    _, _, *lines = run_tables.without_a_piece(run_tables.read(tmp_path)).strip().splitlines()
    cells = [[cell.strip() for cell in line[1:-2].split(" | ")] for line in lines]
    assert [(row[0], row[3], row[-1]) for row in cells] == [
        ("`--embedding-keep-prob 1`", "+4.50", "`better`"),
        ("nothing", "", "`other-seed`, `own`"),
        ("`--learning-rate 1 --optimizer sgd`", "-3.00", "`worse`"),
    ]


@pytest.mark.slow
def test_a_run_is_kept_with_its_curve_and_replaced_only_by_one_that_has_ended(tmp_path: Path) -> None:
    data, results = runs.write_corpus(tmp_path / "data"), tmp_path / "results"
    run = runs.train_run(data, tmp_path / "run", "--lr-decay", "0.7", "--seed", "4")
    other = runs.train_run(data, tmp_path / "other", "--epochs", "1")
    assert keep.run(results, other, "other")
    assert keep.run(results, run, "mine", result="small")
    kept = store.read(results, store.RUNS).set_index("id").loc["mine"]
    found = runs.result(run)
    assert (kept["test"], kept["command"]) == (found["test_perplexity"], found["command"])
    assert "--lr-decay 0.7" in kept["overrides"]
    assert (kept["seed"], kept["result"], kept["epochs_done"]) == (4, "small", 2)
    assert json.loads(kept["hyperparameters"])["lr_decay"] == 0.7
    curves = store.read(results, store.curves("small"))
    curve = curves[curves["id"] == "mine"]
    rows = runs.metrics(run)
    assert [*curve["valid_perplexity"]] == [row["valid_perplexity"] for row in rows]

    (run / "result.json").unlink()
    assert not keep.run(results, run, "mine"), "it had ended"
    assert len(store.read(results, store.RUNS)) == 2
    shutil.rmtree(run)
    run = runs.train_run(data, tmp_path / "run", "--epochs", "1", "--seed", "5")
    with pytest.raises(UserError, match="mine"):
        keep.run(results, run, "mine")
    assert keep.run(results, run, "mine", replace=True)
    assert [*store.read(results, store.curves("small"))["id"]] == ["mine", "other"]


def test_an_adapted_test_that_has_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    json_files.write(file, {"adapted_perplexity": 71.5})
    file.write_text(file.read_text().replace("71.5", "71.4"))
    with pytest.raises(UserError, match="has changed"):
        keep.adaptation(tmp_path, file, "mine", "run")


@pytest.mark.parametrize(
    "given",
    [
        "small --layer-sizes 300 200",
        "small --layer-sizes 200 100",
        "small --num-layers 3 --hidden-size 100",
        "awd --hidden-size 400",
        "awd --hidden-size 1150",
        "awd --num-layers 2",
        "awd --layer-sizes 300 400 300",
        "awd --layer-sizes 300 400",
        "awd --layer-sizes 400 400",
        "awd --average-epochs 1",
        "small --optimizer adam --learning-rate 1",
    ],
)
def test_overrides_make_the_same_configuration(given: str) -> None:
    run = new_config(train.parse_flags(["--config", *shlex.split(given)]))
    again = flags.overrides(run.hyperparameters, run.preset, run.recipe)
    made = new_config(train.parse_flags(["--config", run.preset, *shlex.split(again)]))
    assert made.hyperparameters == run.hyperparameters


@pytest.mark.parametrize(
    ("framework", "execution", "environment", "expected"),
    [
        ("torch", "auto", {}, ""),
        ("torch", "eager", {}, ""),
        ("torch", "eager", {"cuda": "13.0"}, "--execution eager"),
        ("tensorflow", "graph", {}, ""),
        ("tensorflow", "eager", {}, "--execution eager"),
    ],
)
def test_the_execution_is_kept_where_it_is_not_the_usual_one(
    framework: str, execution: str, environment: dict[str, str], expected: str
) -> None:
    run = new_config({"framework": framework, "execution": execution})
    assert flags.others(run, environment) == expected


def test_an_id_may_be_a_number(tmp_path: Path) -> None:
    for name in ("7", "07", "7"):
        store.put(tmp_path, "t.csv", [{"id": name, "epoch": 1}], sort=["id", "epoch"])
    assert [*store.read(tmp_path, "t.csv")["id"]] == ["07", "7"]
    assert store.rows(tmp_path, "t.csv", "7") == [{"id": "7", "epoch": 1}]


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{store.RUNS} is missing"):
        run_tables.read(tmp_path)
    assert store.rows(tmp_path, store.RUNS, "mine") == []


def test_rows_of_two_processes_at_once_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has read the table and not written it yet."""
    read, put = store.read, partial(store.put, tmp_path, "t.csv")
    second = threading.Thread(target=put, args=([{"id": "second"}],))

    def read_and_wait(results: Path, name: str) -> pd.DataFrame:
        table = read(results, name)
        if second.ident is None:
            second.start()
            second.join(0.2)
        return table

    put([{"id": "before"}])
    monkeypatch.setattr(store, "read", read_and_wait)
    put([{"id": "first"}])
    second.join()
    assert {*read(tmp_path, "t.csv")["id"]} == {"before", "first", "second"}


ROWS = """{"command": "python x", "processor": "AMD EPYC", "device": "NVIDIA H200", "commit": "71133183"}
{"operation": "aten::mm", "self_ms": 665.181, "steps": 5}
{"operation": "total", "self_ms": 1486.0, "steps": 5}
"""
TEMPLATE = """computed by torch basic on cpu (eager)
epoch 1: train/loss 0.6936, valid/loss 0.6891, valid/accuracy 0.5525, valid/auc 0.5659
test accuracy 0.9650, AUC 0.9880 (weights of epoch 7)
"""
GATE = """`python -m ptb_lm.bench check quick`; seed 1. Nothing was timed.
- commit: be3c552
- processor: AMD EPYC
- device: cpu (x86_64, AVX2)

| workload | variant | loss |
| --- | --- | --- |
| small | torch/basic | 9e-08 of 2e-06 |
"""


@pytest.mark.parametrize(
    ("kind", "file", "text", "machine", "found"),
    [
        (
            "profiles",
            "rows.jsonl",
            ROWS,
            "NVIDIA H200",
            {"self_ms": [665.181, 1486.0], "steps": [5, 5]},
        ),
        (
            "templates",
            "",
            TEMPLATE,
            None,
            {"epoch": [1, 7], "test/auc": [None, 0.988], "valid/auc": [0.5659, None]},
        ),
        ("gate", "", GATE, "AMD EPYC", {"variant": ["torch/basic"], "loss": ["9e-08 of 2e-06"]}),
    ],
)
def test_a_study_becomes_rows(
    kind: str, file: str, text: str, machine: str | None, found: dict[str, list[object]], tmp_path: Path
) -> None:
    written = tmp_path / "out"
    if file:
        written.mkdir()
    (written / file if file else written).write_text(text)
    keep.study(tmp_path, written, kind, "mine", command="typed")
    table = store.read(tmp_path, f"studies/{kind}.csv").astype(object)
    for column, values in found.items():
        assert [None if value != value else value for value in table[column]] == values
    (about,) = store.read(tmp_path, store.STUDIES).to_dict("records")
    assert (about["id"], about["study"], bool(about["command"])) == ("mine", kind, True)
    assert about.get("machine") == machine
    (written / file if file else written).write_text("nothing of it\n")
    with pytest.raises(UserError, match=kind):
        keep.study(tmp_path, written, kind, "mine")


@pytest.mark.parametrize("path", BENCHMARKS[::8], ids=lambda path: path.name)
def test_an_archive_is_the_rows_compressed(path: Path, tmp_path: Path) -> None:
    found, remarks = rows.read(path)
    assert (remarks, len(found) > 5) == ([], True)
    lines = gzip.decompress(path.read_bytes())
    assert rows.to_lines(found) == lines
    (tmp_path / rows.FILE).write_bytes(lines)
    keep.benchmark(tmp_path, tmp_path, "again")
    again = tmp_path / "bench" / "again.jsonl.gz"
    assert again.read_bytes() == gzip.compress(lines, mtime=0)
    assert rows.to_lines(rows.read(again)[0]) == lines


def test_an_archive_is_reported_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "working_folder", lambda: tmp_path)
    one, two = (ROOT / "results" / "bench" / f"{name}.jsonl.gz" for name in ("quick-cpu", "quick-xeon-cpu"))
    assert bench.main(["report", str(one)]) == 0
    path = tmp_path / "bench" / "quick-cpu" / "report.md"
    assert str(path) in capsys.readouterr().out
    report = path.read_text(encoding="utf-8")
    for row in rows.read(one)[0]:
        assert f"`{row.variant}`" in report
    assert bench.main(["compare", str(tmp_path / "bench" / "quick-cpu"), str(one)]) == 0
    assert "differ" not in capsys.readouterr().out.partition("\n## How")[0].replace("B over A", "")
    shutil.copy(two, tmp_path / one.name)
    runs.refusal(capsys, bench, "report", str(tmp_path / one.name))


def test_a_part_of_a_page_is_replaced_and_no_other(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- one: x -->\n1\n<!-- end of one -->\n<!-- two: x -->\n2\n<!-- end of two -->\n")
    markdown.write_part(page, "two", "| new |")
    assert page.read_text().splitlines()[4:] == ["<!-- two: x -->", "", "| new |", "<!-- end of two -->"]
    assert "\n1\n" in page.read_text()
    with pytest.raises(UserError, match="three"):
        markdown.write_part(page, "three", "")
    whole = page.read_text()
    for mark in ("<!-- end of two -->\n", "<!-- two: x -->\n"):
        page.write_text(whole.replace(mark, ""))
        with pytest.raises(UserError, match="two"):
            markdown.write_part(page, "two", "")


@pytest.mark.parametrize(("suite", "units"), [("coverage", [5, 5]), ("quick", [10]), ("peak", [10])])
def test_only_the_study_of_coverage_has_several_tests_of_a_program(
    suite: str, units: list[int], tmp_path: Path
) -> None:
    """However many processes another suite was planned with."""
    rows = bench_rows.rounds({"torch/basic": 1.0, "torch/basic#again": 1.0}, count=10, suite=suite)
    tests = benchmarks._tests(summarise(bench_rows.write(tmp_path, rows)))
    assert [each.units for each in tests] == units


def test_the_only_ratio_of_1_is_the_reference_s(tmp_path: Path) -> None:
    written = list(bench_rows.rounds({"torch/basic": 1.0, "torch/block": 4.0}, count=1))
    (group,) = summarise(bench_rows.write(tmp_path, written)).groups
    shown = {
        result.variant: benchmarks.FIGURES["ratio or 1"](result, benchmarks._ratio(group, result, {}))
        for result in group.results
    }
    seconds = {row["variant"]: row["seconds"] / row["steps"] for row in written}
    ratio = formats.times(seconds["torch/basic"] / seconds["torch/block"])
    assert shown == {"torch/basic": "1", "torch/block": ratio}


def test_the_newest_of_several_benchmarks_is_quoted() -> None:
    results = ROOT / "results"
    names = ["quick-xeon-cpu", "quick-cpu", "no such"]
    latest = benchmarks.newest(results, names)
    assert latest == benchmarks.newest(results, names[::-1])
    assert benchmarks.read(results, latest).times[-1] == max(
        benchmarks.read(results, name).times[-1] for name in names[:2]
    )
    with pytest.raises(UserError, match="no such"):
        benchmarks.read(results, benchmarks.newest(results, ["no such"]))


def test_the_newest_benchmark_is_the_one_that_ended_last(tmp_path: Path) -> None:
    for name, hours in (("ended last", "06 09"), ("began last", "07 08")):
        rounds = [
            bench_rows.row(round=number, time=f"2026-11-21T{hour}:00:00+00:00")
            for number, hour in enumerate(hours.split())
        ]
        written = bench_rows.write(tmp_path / name, rounds)
        keep.benchmark(tmp_path / "results", written, name)
    assert benchmarks.newest(tmp_path / "results", ["began last", "ended last"]) == "ended last"


def test_a_benchmark_that_is_measured_again_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / benchmarks.relative_path("mine")
    file.parent.mkdir(parents=True)
    read = []
    for path in BENCHMARKS[:2]:
        files.atomic_write(file, path.read_bytes())
        read.append(benchmarks.read(tmp_path / "results", "mine").times)
    assert read == [summarise(path).times for path in BENCHMARKS[:2]]


@pytest.mark.slow
def test_a_picture_is_drawn_again_if_what_it_shows_changes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copytree(ROOT / "results", tmp_path / "results")
    picture = tmp_path / pictures.FOLDER / "curves.svg"
    plot = pages.plan_pictures(tmp_path)[picture]
    pictures.draw(plot, picture)
    svg, root = "{http://www.w3.org/2000/svg}", ElementTree.parse(picture).getroot()
    groups = {group.get("class"): group for group in root.iterfind(f"{svg}g")}
    assert groups.keys() == {"light", "dark"}
    for group in groups.values():
        texts = {text.text for text in group.iter(f"{svg}text")}
        assert {"small, default recipe", "medium, published: 86.16"} <= texts
    assert "prefers-color-scheme: dark" in str(root.findtext(f"{svg}style"))
    assert pictures.is_drawn(plot, picture)
    curves = tmp_path / "results" / store.curves("small")
    frame = store.read(tmp_path / "results", store.curves("small"))
    frame.loc[frame["id"] == "small-cudnn-cpu", "valid_perplexity"] *= 1.001
    curves.write_text(store.to_csv(frame))
    assert not pictures.is_drawn(pages.plan_pictures(tmp_path)[picture], picture)
