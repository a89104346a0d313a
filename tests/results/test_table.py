"""The tables, pictures and records that scripts make of runs: of runs that the trainer made."""

import contextlib
import dataclasses
import io
import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
import runs
from support import ROOT, installed

from ptb_lm import train
from ptb_lm.data.corpus import PENN_TREEBANK
from ptb_lm.model.config import RECIPES
from ptb_lm.results import __main__ as results_command
from ptb_lm.training import run_flags
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

PAGE = """# Results

<!-- runs: written by a script -->
| what was there | is replaced |
<!-- end of runs -->

Between.
<!-- ablation of small: written by a script -->
<!-- end of ablation of small -->
<!-- ablation of medium: written by a script -->
<!-- end of ablation of medium -->
<!-- second checks: written by a script -->
<!-- end of second checks -->
<!-- published figures: written by a script -->
<!-- end of published figures -->
<!-- benchmarks: written by a script -->
<!-- end of benchmarks -->
The end, with a \\backslash.
"""
README = "# ptb_lm\n\n<!-- perplexities: written by a command -->\n<!-- end of perplexities -->\n"
LISTS = ("records", "records of two CPU cores", "records of two CPU cores, tied")
RECORDS = "# Records\n\n{}\nRules.\n".format(
    "\n\n".join(f"<!-- {name}: written by a command -->\nNone.\n<!-- end of {name} -->" for name in LISTS)
)


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def script(name: str, *arguments: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = runs.run_command(results_command, name, *arguments)
    return Done(status, out.getvalue(), err.getvalue())


def refusal(name: str, *arguments: object) -> str:
    """Run a command that must refuse: one sentence on stderr, which is returned."""
    done = script(name, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    prefix = f"{results_command.PROG} {name}: "
    assert done.stderr.startswith(prefix)
    return done.stderr.removeprefix(prefix).rstrip("\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results, with runs of which some differ in their seed only; its corpus is called ptb."""
    folder = tmp_path_factory.mktemp("made")
    data, results = runs.write_corpus(folder / "ptb"), folder / "results"
    results.mkdir()
    for seed in ("1", "2", "3"):
        flags = ["--config", "medium", "--recipe", "default", "--seed", seed]
        runs.train_run(data, results / f"seed-{seed}", *flags)
    runs.train_run(data, results / "tutorial", "--config", "medium", "--recipe", "tutorial")
    runs.train_run(
        data, results / "long", "--model", "basic", "--epochs", "5", "--keep-prob", "0.7", "--tie-weights"
    )
    full = ["--data", str(data), "--config", "small", "--recipe", "tutorial", "--device", "cpu"]
    assert train.main([*full, "--run-dir", str(results / "small-tutorial-cudnn-cpu")]) == 0
    averages = ["--average-epochs", "1", "--run-dir", str(results / "ablation-small-4-schedule-cudnn-cpu")]
    assert train.main([*full, *averages]) == 0
    stop_early(data, results / "going-on")
    for config in results.glob("*/config.json"):
        as_penn_treebank(config.parent)
    return results


def as_penn_treebank(run: Path) -> Path:
    """Let a run name its text without a digest, as older runs do: then the folder's name counts."""
    runs.change(run / "config.json", lambda config: config.pop("source"))
    return run


def stop_early(data: Path, run: Path) -> None:
    """Start a run of a thousand epochs, and stop it after some."""
    flags = runs.arguments(data, run, "--config", "demo", "--epochs", "1000")
    command = [sys.executable, "-m", "ptb_lm.train", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        metrics = run / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    """The same, to be changed, with the pages that are written into."""
    copy = tmp_path / "results"
    shutil.copytree(made, copy)
    (copy / "README.md").write_text(PAGE)
    (tmp_path / "README.md").write_text(README)
    (copy / "records.md").write_text(RECORDS)
    return copy


def part(page: Path, name: str) -> list[dict[str, str]]:
    """The rows of the table between a page's markers, by title."""
    text = page.read_text()
    inside = text[text.index(f"<!-- {name}: ") : text.index(f"<!-- end of {name} -->")]
    lines = [line for line in inside.splitlines() if line.startswith("|")]
    if not lines:
        return []
    titles, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in rows]


FLAGS = "`python -m ptb_lm.train` …"  # the title of a run's flags


def rows_of_runs(results: Path) -> list[dict[str, str]]:
    """The rows of the tables of runs, each with the preset that stands above its table."""
    text = (results / "README.md").read_text()
    inside = text[text.index("<!-- runs: ") : text.index("<!-- end of runs -->")]
    found = []
    for section in inside.split("### ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        titles, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        preset = {"preset": section.splitlines()[0]}
        found += [preset | dict(zip(titles, row, strict=True)) for row in rows]
    return found


def tables(results: Path) -> dict[str, dict[str, str]]:
    """Write the tables; return the row of each run by its folder's name."""
    done = script("table", "--results", results)
    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of_runs(results)
    names = [path.parent.name for path in results.glob("*/metrics.jsonl")]
    return {name: row for name in names for row in rows if f"({name})" in row["seeds"]}


def test_a_row_says_what_the_run_s_files_say(results: Path) -> None:
    row, result, rows = tables(results)["long"], runs.result(results / "long"), runs.metrics(results / "long")
    best = rows[result["best_epoch"] - 1]
    assert row["preset"] == "small"
    assert row[FLAGS].startswith("`--model basic --config small --recipe tutorial ")
    assert row["seeds"] == "[1](long)"
    assert row["epochs (best)"] == f"5 (best {result['best_epoch']})"
    assert row["train"] == f"{best['train_perplexity']:.2f}"
    assert row["valid"] == f"{result['valid_perplexity']:.2f}"
    assert row["test"] == f"**{result['test_perplexity']:.2f}**"
    assert row["last: train"] == f"{rows[-1]['train_perplexity']:.2f}"
    assert row["last: valid"] == f"{result['final_valid_perplexity']:.2f}"
    assert row["last: test"] == f"{result['final_test_perplexity']:.2f}"
    assert row["words/s"] == f"{result['words_per_second']:,.0f}"
    assert row["minutes"] == f"{result['seconds'] / 60:.0f}"
    environment = result["environment"]
    assert row["device"] == f"{environment['processor']}, threads: {environment['threads']}"


def test_runs_that_differ_in_their_seed_are_one_row(results: Path) -> None:
    by_run = tables(results)
    assert by_run["seed-1"] == by_run["seed-2"] == by_run["seed-3"] != by_run["tutorial"]
    row, of_each = by_run["seed-2"], [runs.result(results / f"seed-{seed}") for seed in (1, 2, 3)]
    assert row["seeds"] == "[1](seed-1), [2](seed-2), [3](seed-3)"
    for title, key in (("test", "test_perplexity"), ("last: test", "final_test_perplexity")):
        values = [result[key] for result in of_each]
        spread = f"({min(values):.2f} to {max(values):.2f})"
        assert row[title].replace("*", "") == f"{sum(values) / 3:.2f} {spread}"
    assert "--recipe" not in row[FLAGS]
    assert " --recipe tutorial " in by_run["tutorial"][FLAGS]


def test_each_preset_has_a_table_under_what_was_published_of_it(results: Path) -> None:
    presets = dict.fromkeys(row["preset"] for row in tables(results).values())
    page = (results / "README.md").read_text()
    sections = page[page.index("<!-- runs: ") : page.index("<!-- end of runs -->")].split("### ")[1:]
    assert [section.splitlines()[0] for section in sections] == ["small", "medium", "demo"]
    assert {*presets} == {"small", "medium", "demo"}
    published = [re.findall(r"^The tutorial's .* test ([0-9.]+)\.$", section, re.M) for section in sections]
    assert published == [["115.91"], ["82.07"], []]


def test_penn_treebank_is_told_by_the_digest_where_there_is_one(results: Path) -> None:
    name = "small-tutorial-cudnn-cpu"
    for folder, sha256, data in (
        ("text", PENN_TREEBANK, ""),
        ("text", "0" * 64, "--data text"),
        ("ptb", "0" * 64, "--data ./ptb"),
    ):
        place = f"/elsewhere/{folder}"
        named = {"data": place, "source": {"path": place, "sha256": sha256}}
        runs.change(results / name / "config.json", lambda config, named=named: config.update(named))
        row = tables(results)[name]
        assert row[FLAGS] == f"`--model cudnn --config small --recipe tutorial {data}".rstrip() + "`"
        short = part(results.parent / "README.md", "perplexities")
        assert any(name in each["runs"] for each in short) == (not data)
    # By the name ptb, from a folder with another text.
    runs.change(results / name / "config.json", lambda config: config.update(data="ptb"))
    assert tables(results)[name][FLAGS].endswith(" --data ./ptb`")
    assert not any(name in each["runs"] for each in part(results.parent / "README.md", "perplexities"))


def test_runs_by_several_processes_are_rows_of_their_own(results: Path) -> None:
    in_environment(results / "seed-2", processes=2, reduce_precision="bfloat16")
    in_environment(results / "seed-3", processes=2, reduce_precision="float32")
    rows = tables(results)
    one, bf16, two = (rows[f"seed-{seed}"] for seed in (1, 2, 3))
    assert one["seeds"] == "[1](seed-1)"
    assert one["device"] + ", processes: 2" == bf16["device"] == two["device"]
    assert one[FLAGS].replace(" medium ", " medium --devices 2 ") == two[FLAGS]
    assert two[FLAGS].replace(" 2 ", " 2 --reduce-precision bf16 ", 1) == bf16[FLAGS]
    in_environment(results / "long", devices=3, device="a GPU", cuda="13.0")
    long = tables(results)["long"]
    assert long["device"] == "a GPU, devices: 3"
    assert " --devices 3 " in long[FLAGS]


def test_sessions_with_other_threads_are_named(results: Path) -> None:
    before = [{"threads": threads} for threads in (2, 1, 1)]
    runs.change(results / "long" / "result.json", lambda result: result.update(earlier_environments=before))
    environment = runs.result(in_environment(results / "long", threads=2))["environment"]
    threads = "threads: 2, then 1, then 2"
    assert tables(results)["long"]["device"] == f"{environment['processor']}, {threads}"


def test_the_command_of_a_run_on_raw_text_prepares_it(results: Path, tmp_path: Path) -> None:
    text = runs.write_corpus(tmp_path / "text") / "train.txt"
    flags = ["--lowercase", "--min-count", "3", "--test-fraction", "0.2"]
    runs.train_run(text, results / "raw", *flags)
    command = tables(results)["raw"][FLAGS]
    assert f" --data train.txt --tokenize whitespace {' '.join(flags)} " in command


def test_the_command_of_a_tuned_run_says_what_it_began_with(results: Path, tmp_path: Path) -> None:
    data = runs.write_corpus(tmp_path / "text")
    with (data / "train.txt").open("a") as file:
        file.write("new words\n")
    begun = ["--init-from", str(results / "seed-1"), "--extend-vocabulary"]
    where = ["--data", str(data), "--run-dir", str(results / "tuned"), "--device", "cpu"]
    assert train.main([*where, *begun]) == 0
    command = tables(results)["tuned"][FLAGS]
    assert " --data text --init-from seed-1 --extend-vocabulary " in command
    # Named too, because without it the text is that of seed-1.
    runs.change(
        results / "tuned" / "config.json", lambda config: (config.pop("source"), config.update(data="ptb"))
    )
    assert " --data ptb --init-from seed-1 --extend-vocabulary " in tables(results)["tuned"][FLAGS]


@pytest.mark.parametrize("name", ["seed-2", "tutorial", "long", "small-tutorial-cudnn-cpu", "going-on"])
def test_the_command_is_that_of_the_run(results: Path, name: str) -> None:
    flags = shlex.split(tables(results)[name][FLAGS].strip("`"))
    given = vars(train._parser().parse_args(flags))
    repeated = run_flags.new_config({flag: value for flag, value in given.items() if value is not None})
    run = RunDirectory(results / name).read_config()
    assert repeated.hyperparameters == run.hyperparameters
    for what in ("config", "model", "framework", "execution", "unroll", "precision"):
        assert repeated.to_json()[what] == run.to_json()[what]


def test_a_run_that_is_going_on_has_what_it_has_done(results: Path) -> None:
    row, done = tables(results)["going-on"], runs.metrics(results / "going-on")
    best = min(done, key=lambda each: float(each["valid_perplexity"]))
    assert row["preset"] == "demo"
    assert row["epochs (best)"] == f"{len(done)} of 1000, not ended (best {best['epoch']})"
    assert (row["train"], row["valid"]) == tuple(
        f"{best[f'{split}_perplexity']:.2f}" for split in ("train", "valid")
    )
    assert not any(row[title] for title in ("test", "last: valid", "last: test", "minutes"))
    assert int(row["words/s"].replace(",", "")) > 0


def test_what_older_runs_did_not_write_is_left_blank(results: Path) -> None:
    """As the runs of before recipes, of which results/ has some."""
    run = results / "small-tutorial-cudnn-cpu"
    before = tables(results)["small-tutorial-cudnn-cpu"]
    runs.change(
        run / "config.json", lambda config: [config.pop(key) for key in ("recipe", "execution", "unroll")]
    )
    added = ("tie_weights", "variational", "average_epochs", "embedding_size")
    runs.change(run / "config.json", lambda config: [config["hyperparameters"].pop(key) for key in added])
    gone = ("final_test_perplexity", "final_valid_perplexity", "earlier_environments", "seconds")
    runs.change(run / "result.json", lambda result: [result.pop(key) for key in gone])
    assert tables(results)["small-tutorial-cudnn-cpu"] == {**before, "last: test": "", "minutes": ""}


def in_environment(run: Path, **facts: Any) -> Path:
    runs.change(run / "result.json", lambda result: result["environment"].update(facts))
    return run


def test_an_ablation_shows_validation_only(results: Path) -> None:
    names = ["small-tutorial-cudnn-cpu", "ablation-small-4-schedule-cudnn-cpu"]
    in_environment(results / names[0], commit="0123456789abcdef")
    in_environment(results / names[1], commit="fedcba9876543210 with uncommitted changes")
    tables(results)
    rows = part(results / "README.md", "ablation of small")
    assert [row["commit"] for row in rows] == ["0123456", "fedcba9 with uncommitted changes"]
    assert [row["step"] for row in rows] == [f"[0 tutorial]({names[0]})", f"[4 schedule]({names[1]})"]
    assert [row["beside the tutorial's"] for row in rows] == ["", "`--average-epochs 1`"]
    for row, name, kept in zip(rows, names, ("weights", "average"), strict=True):
        result = runs.result(results / name)
        assert row[f"best valid: {kept}"] == f"**{result['valid_perplexity']:.2f}**"
        assert row[f"last valid: {kept}"] == f"{result['final_valid_perplexity']:.2f}"
        assert row["epochs (best)"] == f"13 (best {result['best_epoch']})"
    assert (rows[0]["best valid: average"], rows[0]["last valid: average"]) == ("", "")
    kept = [runs.result(results / name)["valid_perplexity"] for name in names]
    assert [row["gained on the row above"] for row in rows] == ["", f"{kept[0] - kept[1]:+.2f}"]
    weights = [each["unaveraged_valid_perplexity"] for each in runs.metrics(results / names[1])]
    assert rows[1]["best valid: weights"] == f"**{min(weights):.2f}**"
    assert rows[1]["last valid: weights"] == f"{weights[-1]:.2f}"
    assert "test" not in rows[0]
    assert part(results / "README.md", "ablation of medium") == []
    assert "No step of it has been run yet." in (results / "README.md").read_text()


def test_the_steps_of_an_ablation_are_in_order_whatever_computed_them(results: Path) -> None:
    folders = {
        "seed-1": "medium-persistent-fp16-cuda",
        "seed-2": "ablation-medium-2-variational-block_fused-bf16-cpu",
        "tutorial": "medium-tutorial-block_fused-cpu",
        "seed-3": "medium-more-dropout-seed-3-persistent-fp16-cuda",  # is none
    }
    for run, folder in folders.items():
        (results / run).rename(results / folder)
    for run in ("seed-1", "tutorial"):
        as_its_recipe_says(results / folders[run])
    runs.change(results / folders["seed-1"] / "config.json", lambda config: config.update(precision="bf16"))
    tables(results)
    steps = part(results / "README.md", "ablation of medium")
    assert [step["step"] for step in steps] == [
        f"[0 tutorial]({folders['tutorial']})",
        f"[2 variational]({folders['seed-2']})",
        f"[4 schedule: the default recipe]({folders['seed-1']})",
    ]
    assert [step["model"] for step in steps] == ["torch cudnn", "torch cudnn", "torch cudnn @bf16"]
    # A run of an earlier default is no step of today's.
    as_its_recipe_says(results / folders["seed-1"], keep_prob=0.55)
    tables(results)
    assert [step["step"][0:2] for step in part(results / "README.md", "ablation of medium")] == ["[0", "[2"]


def test_a_column_that_not_all_epochs_have_is_not_in_the_table(results: Path) -> None:
    """As of a run that was begun before there was one: the least of the others would be no run's best."""
    run = results / "ablation-small-4-schedule-cudnn-cpu"
    rows = runs.metrics(run)
    del rows[0]["unaveraged_valid_perplexity"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables(results)
    step = part(results / "README.md", "ablation of small")[1]
    assert (step["best valid: weights"], step["last valid: weights"]) == ("", "")
    assert step["best valid: average"]


def test_a_step_that_is_going_on_has_no_commit_and_no_gain_yet(results: Path) -> None:
    (results / "going-on").rename(results / "ablation-small-2-variational-cudnn-cpu")
    tables(results)
    rows = part(results / "README.md", "ablation of small")
    assert [row["commit"] for row in rows if "2 variational" in row["step"]] == [""]
    assert [row["gained on the row above"] for row in rows] == ["", "", ""]


def test_a_preset_that_is_not_known_is_shown_as_it_is(results: Path) -> None:
    """As of a run by another version, whose configuration this one lacks."""
    name = "ablation-small-4-schedule-cudnn-cpu"
    before = tables(results)[name]
    runs.change(
        results / name / "config.json", lambda config: config.update(config="of-old", recipe="default")
    )
    row = tables(results)[name]
    assert (row["preset"], row[FLAGS]) == ("of-old", "`--model cudnn --config of-old`")
    assert {title for title in row if row[title] != before[title]} == {"preset", FLAGS}
    assert rows_of_runs(results)[-1] == row
    steps = part(results / "README.md", "ablation of small")
    assert [step["beside the tutorial's"] for step in steps] == ["", ""]


def as_its_recipe_says(run: Path, **changes: Any) -> None:
    """Let a run say that it had the hyper-parameters of its configuration."""

    def declare(config: dict[str, Any]) -> None:
        hyperparameters = RECIPES[config["recipe"]][config["config"]].replace(**changes)
        config.update(hyperparameters=dataclasses.asdict(hyperparameters))

    runs.change(run / "config.json", declare)


def test_the_short_table_is_of_full_runs_that_have_ended(results: Path) -> None:
    for name in ("seed-1", "seed-2", "seed-3", "tutorial"):
        as_its_recipe_says(results / name)
    for name, minutes in (("seed-1", 55), ("seed-2", 10), ("seed-3", 11)):
        runs.change(
            results / name / "result.json", lambda found, minutes=minutes: found.update(seconds=60 * minutes)
        )
    tables(results)
    rows = part(results.parent / "README.md", "perplexities")
    by_runs = {tuple(re.findall(r"\(results/([^)]+)\)", row["runs"])): row for row in rows}
    seeds = ("seed-1", "seed-2", "seed-3")
    assert by_runs.keys() == {seeds, ("tutorial",), ("long",), ("small-tutorial-cudnn-cpu",)}
    result = runs.result(results / "small-tutorial-cudnn-cpu")
    row = by_runs["small-tutorial-cudnn-cpu",]
    assert row["configuration"] == "small, tutorial recipe"
    assert row["test perplexity, best epoch"] == f"**{result['test_perplexity']:.2f}**"
    assert row["last epoch"] == f"{result['final_test_perplexity']:.2f}"
    assert row["published by the tutorial"] == "115.91"
    assert by_runs["long",]["published by the tutorial"] == "–"
    assert "--keep-prob 0.7 --tie-weights" in by_runs["long",]["configuration"]
    assert by_runs[seeds]["minutes"] == "10 to 55"
    assert row["minutes"] == f"{result['seconds'] / 60:.0f}"
    tests = [runs.result(results / seed)["test_perplexity"] for seed in seeds]
    expected = f"**{sum(tests) / 3:.2f}** ({min(tests):.2f} to {max(tests):.2f})"
    assert by_runs[seeds]["test perplexity, best epoch"] == expected


def test_of_changed_hyper_parameters_the_short_table_has_tied_weights_only(results: Path) -> None:
    as_its_recipe_says(results / "seed-1", keep_prob=0.7)
    as_its_recipe_says(results / "seed-2", keep_prob=0.7, tie_weights=True)
    tables(results)
    rows = part(results.parent / "README.md", "perplexities")
    (row,) = [row for row in rows if "(results/seed-" in row["runs"]]
    assert row["configuration"] == "medium, default recipe, `--keep-prob 0.7 --tie-weights`"
    assert row["runs"] == "[1](results/seed-2)"


def test_the_short_table_has_one_row_for_all_that_computed_the_same(results: Path) -> None:
    """Model, precision and device are how it was computed."""
    for seed in ("seed-1", "seed-2", "seed-3"):
        as_its_recipe_says(results / seed)
    other = {"model": "basic", "precision": "bf16"}
    runs.change(results / "seed-2" / "config.json", lambda config: config.update(other))
    in_environment(results / "seed-3", device="a GPU", cuda="13.0")
    tables(results)
    rows = part(results.parent / "README.md", "perplexities")
    (row,) = [row for row in rows if "seed-1" in row["runs"]]
    assert {*row["precision"].split(" or ")} == {"fp32", "bf16"}
    assert [name in row["runs"] for name in ("seed-2", "seed-3")] == [True, True]
    assert row["processor or GPU"].endswith(", a GPU")


def test_only_what_is_between_the_markers_is_replaced(results: Path) -> None:
    page = results / "README.md"
    tables(results)
    written = page.read_text()
    assert "is replaced" not in written
    for text in ("# Results\n\n<!-- runs: ", "-->\n\nBetween.\n<!--", "-->\nThe end, with a \\backslash.\n"):
        assert text in written
    stamp = page.stat().st_mtime_ns
    tables(results)
    assert (page.read_text(), page.stat().st_mtime_ns) == (written, stamp)  # nothing new, nothing written


@pytest.mark.parametrize(
    "page",
    [
        PAGE.replace("<!-- end of runs -->", ""),
        PAGE.replace("<!-- runs: written by a script -->\n", ""),
        PAGE + PAGE,
        PAGE.replace("<!-- end of runs -->", "<!-- runs: of another kind -->"),
        "<!-- end of runs -->\n<!-- runs: upside down -->\n",
    ],
)
def test_a_page_without_its_markers_is_left_alone(results: Path, page: str) -> None:
    (results / "README.md").write_text(page)
    sentence = refusal("table", "--results", results)
    readme = results / "README.md"
    assert (
        sentence == f"{readme} must have exactly one part between <!-- runs: … --> and <!-- end of runs -->"
    )
    assert readme.read_text() == page


def test_a_missing_page_is_one_sentence(results: Path) -> None:
    (results / "README.md").unlink()
    assert refusal("table", "--results", results) == f"{results / 'README.md'} is missing"


def test_the_pages_of_this_checkout_have_the_tables_of_its_runs(tmp_path: Path) -> None:
    kept = ROOT / "results"
    shutil.copytree(kept, tmp_path / "results", ignore=shutil.ignore_patterns("report.*", "profile-*"))
    shutil.copy(ROOT / "README.md", tmp_path)
    assert "small-tutorial-cudnn-cpu" in tables(tmp_path / "results")
    for page in ("README.md", "results/README.md"):
        assert (tmp_path / page).read_text() == (ROOT / page).read_text()


@pytest.mark.parametrize("name", ["table", "adaptation", "curve", "record", "speed", "keep"])
def test_help_says_what_a_command_does(name: str) -> None:
    done = script(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m ptb_lm.results {name}")


def test_help_imports_nothing_that_takes_long() -> None:
    """Run as from the shell, which the other tests do not."""
    program = """
import runpy, sys
sys.argv[1:] = ["--help"]
try:
    runpy.run_module("ptb_lm.results", run_name="__main__")
finally:
    print({"numpy", "torch", "matplotlib"} & {*sys.modules})
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python -m ptb_lm.results [-h] COMMAND")
    assert done.stdout.splitlines()[-1] == "set()"


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "results").glob("*/curve.svg")), ids=lambda p: p.parent.name
)
def test_the_curve_of_a_kept_run_names_its_folder(picture: Path) -> None:
    texts = {element.text for element in ElementTree.parse(picture).iter(f"{SVG}text")}
    assert any(text and text.startswith(picture.parent.name) for text in texts)


def line(picture: ElementTree.Element, name: str) -> np.ndarray:
    """The points [N, 2] of a line of a picture."""
    (group,) = (each for each in picture.iter(f"{SVG}g") if each.get("id") == name)
    path = next(group.iter(f"{SVG}path")).get("d")
    assert path is not None
    numbers = [float(word) for word in path.split() if word not in "ML"]
    return np.array(numbers).reshape(-1, 2)


@installed("matplotlib")
@pytest.mark.parametrize(
    "name", ["small-tutorial-cudnn-cpu", "ablation-small-4-schedule-cudnn-cpu", "going-on"]
)
def test_a_curve_goes_through_what_was_measured(results: Path, name: str) -> None:
    run = results / name
    done = script("curve", run)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{run / 'curve.svg'}\n")
    picture, rows = ElementTree.parse(run / "curve.svg").getroot(), runs.metrics(run)
    # Perplexities are on one logarithmic axis, words a second on one of their own, from 0.
    columns = ["train_perplexity", "valid_perplexity"]
    if name.startswith("ablation"):
        columns.append("unaveraged_valid_perplexity")
    places = np.concatenate([line(picture, column) for column in columns])
    values = [row[column] for column in columns for row in rows]
    assert_on_axis(places[:, 1], np.log(values))
    assert np.ptp(places[:, 1]) > 50  # the axis is of their size
    assert_on_axis(places[:, 0], np.tile([row["epoch"] for row in rows], len(columns)))
    speeds = line(picture, "words_per_second")
    assert_on_axis(speeds[:, 1], np.array([row["words_per_second"] for row in rows]))
    texts = [text.text or "" for text in picture.iter(f"{SVG}text")]
    assert {"perplexity", "words/s", "epoch", "train", "valid"} <= set(texts)
    assert ("valid, unaveraged" in texts) == name.startswith("ablation")
    going_on = f", {len(rows)} of 1000 epochs" if name == "going-on" else ""
    assert f"{name}{going_on}" in texts


def assert_on_axis(places: np.ndarray, values: np.ndarray) -> None:
    """Places in points (of an inch) are the values but for an origin and a scale."""
    slope, origin = np.polyfit(values, places, 1)
    np.testing.assert_allclose(places, origin + slope * values, atol=1e-3)


@installed("matplotlib")
def test_a_curve_is_the_same_each_time(results: Path) -> None:
    """So that a repository sees no change where there is none."""
    pictures = []
    for _ in range(2):
        assert script("curve", results / "long").returncode == 0
        pictures.append((results / "long" / "curve.svg").read_bytes())
    assert pictures[0] == pictures[1]


def test_a_curve_without_matplotlib_is_one_sentence(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    problem = refusal("curve", results / "long")
    assert "matplotlib is not installed; install it in the checkout with: " in problem
    assert not (results / "long" / "curve.svg").exists()


def on_a_gpu(run: Path, **more: str | None) -> Path:
    """Let a run's record say that it was made on a GPU, by a commit, which tests cannot ask for."""
    gpu = {"device": "NVIDIA H200", "cuda": "13.0", "commit": "0123456789abcdef"}
    return in_environment(run, **{**gpu, **more})


def test_a_record_is_a_row(results: Path) -> None:
    first = on_a_gpu(results / "seed-1", started="2026-12-01T10:00:00+0000")
    later = on_a_gpu(results / "long", started="2026-12-02T09:00:00+0000", commit="fedcba9876543210")
    for run, what in ((later, "a batch of 40 | and *fp16*"), (first, "the first")):
        done = script("record", run, "--what", what)
        assert (done.returncode, done.stderr) == (0, "")
    rows = part(results / "records.md", "records")
    assert [row["what changed"] for row in rows] == ["the first", r"a batch of 40 \| and \*fp16\*"]
    assert [row["commit"] for row in rows] == ["0123456", "fedcba9"]
    result = runs.result(first)
    assert rows[0]["date"] == "2026-12-01"
    assert rows[0]["processor"] == "NVIDIA H200"
    assert rows[0]["epochs"] == "2"
    assert rows[0]["test"] == f"{result['test_perplexity']:.2f}"
    assert rows[0]["seconds"] == f"{result['seconds']:.1f}"
    assert rows[0]["log"] == "[seed-1](seed-1)"


def test_the_same_run_is_one_row(results: Path) -> None:
    run, page = on_a_gpu(results / "seed-1"), results / "records.md"
    assert script("record", run, "--what", "first words").returncode == 0
    once = page.read_text()
    assert once.startswith("# Records\n\n<!-- records: ")
    assert once.endswith("<!-- end of records of two CPU cores, tied -->\nRules.\n")
    assert script("record", f"{run}/", "--what", "first words").returncode == 0
    assert page.read_text() == once
    kept = runs.files(results)
    sentence = refusal("record", run, "--what", "other words")
    assert sentence == f"{run} is already in the table as 'first words'; make a new run for other code"
    assert runs.files(results) == kept


def write_uniform(folder: Path) -> Path:
    """A text of 300 words, all as frequent: no model's perplexity is below 150, say."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split in ("train", "valid", "test"):
        words = [f"w{number}" for number in rng.permutation(np.repeat(np.arange(300), 2))]
        (folder / f"{split}.txt").write_text(" ".join(words) + "\n")
    return folder


def test_a_perplexity_above_the_bound_is_no_record(results: Path, tmp_path: Path) -> None:
    trained = runs.train_run(write_uniform(tmp_path / "ptb"), results / "uniform")
    run = on_a_gpu(as_penn_treebank(trained))
    perplexity = runs.result(run)["test_perplexity"]
    assert 150 < perplexity < math.inf
    assert_no_record(run, f"its test perplexity is {perplexity:.3f}, not at most 78.3")


def test_a_perplexity_that_is_no_number_is_no_record(results: Path) -> None:
    run = on_a_gpu(results / "seed-1")
    runs.change(run / "result.json", lambda result: result.update(test_perplexity=math.nan))
    problem = "test_perplexity cannot be nan: it must be a number above 0"
    assert refusal("record", run, "--what", "x") == f"{run}/result.json is not a run's result: {problem}"


@pytest.mark.parametrize(
    ("commit", "by"),
    [
        ("fedcba9876543210 with uncommitted changes", "fedcba9 with uncommitted changes"),
        (None, "unknown"),
    ],
)
def test_a_run_without_a_commit_is_no_record(results: Path, commit: str | None, by: str) -> None:
    run = on_a_gpu(results / "seed-1", commit=commit)
    assert_no_record(run, f"it needs a clean commit, but its commit is {by}")


def test_a_run_that_is_going_on_is_no_record(results: Path) -> None:
    run = results / "going-on"
    assert_no_record(run, f"{len(runs.metrics(run))} of 1000 epochs are done")


def on_two_cores(run: Path, *, units: int = 650, **changes: Any) -> Path:
    """Let a run's record say that it was of two cores, a commit and the list's sizes."""
    runs.change(run / "config.json", lambda config: config.update(seed=3))
    runs.change(
        run / "config.json", lambda config: config["hyperparameters"].update(hidden_size=units, **changes)
    )
    return in_environment(run, commit="0123456789abcdef", cores=2)


def test_a_record_of_two_cores_is_of_the_whole_command_untied_and_tied_apart(results: Path) -> None:
    on_a_gpu(results / "tutorial")
    on_two_cores(results / "seed-1")
    on_two_cores(results / "seed-2", tie_weights=True)
    for name, what in {
        "tutorial": "a GPU's",
        "seed-1": "the first untied",
        "seed-2": "the first tied",
    }.items():
        done = script("record", results / name, "--what", what)
        assert (done.returncode, done.stderr) == (0, "")
    tables_of = {name: part(results / "records.md", name) for name in LISTS}
    assert [[row["what changed"] for row in rows] for rows in tables_of.values()] == [
        ["a GPU's"],
        ["the first untied"],
        ["the first tied"],
    ]
    (row,), result = tables_of[LISTS[2]], runs.result(results / "seed-2")
    assert row["seconds"] == f"{result['command_seconds']:.1f}"
    assert result["seconds"] < result["command_seconds"]
    assert row["machine"] == f"{result['environment']['platform'].split('-')[0]}, 2 cores"
    assert row["processor"].startswith(result["environment"]["processor"])
    assert "--tie-weights" in row["command"]
    assert row["command"].endswith(" --seed 3`")
    assert row["log"] == "[seed-2](seed-2)"


def test_more_cores_are_no_record_of_two(results: Path) -> None:
    run = in_environment(on_two_cores(results / "seed-1"), cores=8)
    assert_no_record(run, "it had 8 cores, but the list is for 2: use taskset -c 0,1")


def test_a_smaller_model_is_no_record_of_a_cpu(results: Path) -> None:
    run = on_two_cores(results / "seed-1", units=200)
    assert_no_record(run, "its model has 2 × 200 units, but the list of a CPU is for 2 × 650")


def test_a_run_of_before_on_a_cpu_is_no_record(results: Path) -> None:
    run = on_two_cores(results / "seed-1")
    runs.change(run / "result.json", lambda result: result.pop("command_seconds"))
    assert_no_record(run, "it is an old run, which does not say how long the whole command took")


@pytest.mark.parametrize("name", ["other", "ptb"])
def test_a_run_on_another_text_is_no_record(name: str, results: Path, tmp_path: Path) -> None:
    data = runs.write_corpus(tmp_path / name)
    run = on_a_gpu(runs.train_run(data, results / "other"))
    assert_no_record(run, f"it read {data}, not Penn Treebank")


def test_a_run_on_another_text_in_the_folder_of_penn_treebank_is_no_record(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = runs.write_corpus(tmp_path / "treebank")
    monkeypatch.setenv("PTB_LM_DATA", str(data))
    run = on_a_gpu(runs.train_run(Path("ptb"), results / "other"))
    assert_no_record(run, f"it read {data}, not Penn Treebank")


def test_a_run_that_began_with_trained_weights_is_no_record(results: Path) -> None:
    run = on_a_gpu(results / "seed-1")
    start = {"run": "/trained", "weights_sha256": "0" * 64, "test_perplexity": 1.5, "new_words": 0}
    runs.change(run / "config.json", lambda config: config.update(init_from=start))
    assert_no_record(run, "it began with the weights of /trained")


@pytest.mark.parametrize("what", ["processes", "devices"])
def test_a_run_by_several_is_no_record(what: str, results: Path) -> None:
    run = in_environment(on_a_gpu(results / "seed-1"), **{what: 2})
    assert_no_record(run, f"it was trained by 2 {what}, but a record is by one")


def test_a_broken_record_is_one_sentence(results: Path) -> None:
    run = on_a_gpu(results / "seed-1")
    for content in ("[1]", "{}", "{"):
        (run / "record.json").write_text(content)
        sentence = refusal("record", run, "--what", "x")
        assert sentence == f"{run}/record.json is not what python -m ptb_lm.results record writes"
    assert (results / "records.md").read_text() == RECORDS


def test_a_run_that_was_resumed_is_no_record(results: Path) -> None:
    run = results / "seed-1"
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    assert_no_record(
        on_a_gpu(as_penn_treebank(run)), "it was resumed, so its seconds lack the cost of the stop"
    )


def assert_no_record(run: Path, problem: str) -> None:
    assert refusal("record", run, "--what", "x") == f"{run} does not count as a record: {problem}"
    assert (run.parent / "records.md").read_text() == RECORDS
    assert not (run / "record.json").exists()
