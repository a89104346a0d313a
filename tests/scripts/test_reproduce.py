"""scripts/reproduce: what it makes, in a copy of the checkout, of a text that is small."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs
from support import ROOT, installed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ptb_lm import train
from ptb_lm.data import corpus
from ptb_lm.results import plan
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "reproduce"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what it needs, with results/ as they are before anything is made."""
    copy = tmp_path / "checkout"
    for folder in ("scripts", "ptb_lm"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "results").mkdir()
    for name in ("setup.py", "README.md", "results/README.md", "results/records.md"):
        shutil.copy(ROOT / name, copy / name)
    text = corpus.load(runs.write_corpus(tmp_path / "ptb")).sha256
    # Penn Treebank is this text, or there would be neither rows of README.md nor records.
    code = copy / "ptb_lm" / "data" / "corpus.py"
    code.write_text(code.read_text().replace(corpus.PENN_TREEBANK, text))
    return copy


def environment(checkout: Path) -> dict[str, str]:
    """What lets it find Penn Treebank, this Python, what a test puts into modules/, and no GPU."""
    changes = {
        "PTB_LM_DATA": str(checkout.parent / "ptb"),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(checkout.parent / "modules"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return {**os.environ, **changes}


def run(checkout: Path, *results: str) -> subprocess.CompletedProcess[str]:
    command = [str(checkout / "scripts" / "reproduce"), *results]
    return subprocess.run(command, env=environment(checkout), capture_output=True, text=True, check=False)


def reproduce(checkout: Path, *results: str) -> str:
    """Run it to its end; return what it printed."""
    done = run(checkout, *results)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(checkout: Path, name: str) -> set[str]:
    return {path.name for path in (checkout / "results" / name).iterdir()}


ENDED = {"config.json", "metrics.jsonl", "result.json", "curve.svg", "events.out.tfevents.001"}


@installed("matplotlib")
def test_an_ablation_leaves_runs_pictures_logs_and_tables(checkout: Path) -> None:
    reproduce(checkout, "ablation-small")
    page = (checkout / "results" / "README.md").read_text()
    inside = page[page.index("<!-- ablation of small: ") : page.index("<!-- end of ablation of small -->")]
    steps = re.findall(r"\| \[(.+?)\]\((.+?)\) \| (.*?) \| 13 \(best", inside)
    units = "--keep-prob 0.8 --variational"
    words = f"{units} --embedding-keep-prob 0.9 --recurrent-keep-prob 0.9"
    average = "--average-epochs 1"
    assert [(name, flags.strip("`")) for name, _, flags in steps] == [
        ("0 tutorial", ""),
        ("1 average: the default recipe", average),
        ("2 variational", f"{units} {average}"),
        ("3 words and recurrent", f"{words} {average}"),
        ("4 schedule", f"--lr-decay 0.57 --max-grad-norm 10 {words} {average}"),
        ("5 slower decay", f"--lr-decay 0.8 --max-grad-norm 10 {words} {average}"),
    ]
    for _, folder, _ in steps:
        assert kept(checkout, folder) == ENDED

    # What is there is not made again, and a step is the run of small.
    before = runs.files(checkout / "results")
    again = reproduce(checkout, "small")
    assert "epoch " not in again
    assert runs.files(checkout / "results") == before


@installed("matplotlib")
def test_a_run_that_is_stopped_leaves_what_it_has_done_and_goes_on(checkout: Path) -> None:
    results, name = checkout / "results", "small-cudnn-cpu"
    lengthen(checkout)
    said = stopped(checkout, signal.SIGTERM, again=results / name / "metrics.jsonl")
    assert f"continue with: python -m ptb_lm.train --resume checkpoints/reproduce-{name}" in said
    assert kept(checkout, name) == ENDED - {"result.json"}
    done = epochs(results / name)
    assert 0 < done < 13
    assert f"| {done} of 13, not ended (best " in (results / "README.md").read_text()

    reproduce(checkout, "small")
    assert kept(checkout, name) == ENDED | {"events.out.tfevents.002"}
    assert epochs(results / name) == 13
    assert "not ended (best" not in (results / "README.md").read_text()
    events = EventAccumulator(str(results / name))
    events.Reload()
    steps = [scalar.step for scalar in events.Scalars("perplexity/valid")]  # at the end of each epoch
    assert steps == [steps[0] * epoch for epoch in range(1, 14)]

    # A run that has ended stays, until another has.
    shutil.rmtree(checkout / "checkpoints" / f"reproduce-{name}")
    before = runs.files(results)
    stopped(checkout, signal.SIGINT, "gpu-tests")
    assert runs.files(results) == before


def test_a_terminal_that_is_closed_stops_it_as_other_signals_do(checkout: Path) -> None:
    lengthen(checkout)
    assert "SIGHUP: saved; continue with: " in stopped(checkout, signal.SIGHUP, "gpu-tests")
    assert "metrics.jsonl" in kept(checkout, "small-cudnn-cpu")


def lengthen(checkout: Path) -> None:
    """Let a run take some seconds."""
    text = checkout.parent / "ptb" / "train.txt"
    text.write_text(text.read_text() * 8)


def epochs(run: Path) -> int:
    return (run / "metrics.jsonl").read_text().count("\n")


def stopped(checkout: Path, number: signal.Signals, *after: str, again: Path | None = None) -> str:
    """Stop small after an epoch or more, as a terminal or timeout does it; return what it said on stderr.

    What was to be made after it is not; with `again`, the signal comes once more when this file is there.
    """
    process = subprocess.Popen(
        [str(checkout / "scripts" / "reproduce"), "small", *after],
        env=environment(checkout),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    metrics = checkout / "checkpoints" / "reproduce-small-cudnn-cpu" / "metrics.jsonl"
    for awaited in (metrics, again) if again else (metrics,):
        while not awaited.exists() or not awaited.read_text():
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, number)
    said = process.communicate()[1]
    assert process.returncode == 128 + number
    return said


def test_what_cannot_be_kept_changes_neither_the_status_nor_the_tables(checkout: Path) -> None:
    results = checkout / "results"
    runs.train_run(checkout.parent / "ptb", results / "another")
    lengthen(checkout)
    (results / "small-cudnn-cpu").write_text("a file, where the run's folder belongs")
    stopped(checkout, signal.SIGTERM)
    assert "](another)" in (results / "README.md").read_text()


def ended(checkout: Path, *flags: str, times: int = 1) -> Path:
    """The run that small is, of a text that is repeated, or by more flags; return its folder."""
    folder = checkout / "checkpoints" / "reproduce-small-cudnn-cpu"
    text = runs.write_corpus(checkout.parent / "text") / "train.txt"
    text.write_text(text.read_text() * times)
    where = ["--data", str(text.parent), "--device", "cpu", "--run-dir", str(folder), "--overwrite"]
    assert train.main(["--model", "cudnn", "--config", "small", *where, *flags]) == 0
    return folder


@installed("matplotlib")
def test_a_full_disk_leaves_what_was_kept(checkout: Path) -> None:
    ended(checkout)
    reproduce(checkout, "small")
    before = runs.files(checkout / "results")
    size = (ended(checkout, times=2) / "result.json").stat().st_size
    with runs.disk_with_room_for(size - 1):
        done = run(checkout, "small")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.fullmatch(r"scripts/reproduce: .*File too large\n", done.stderr)
    assert runs.files(checkout / "results") == before
    reproduce(checkout, "small")
    assert kept(checkout, "small-cudnn-cpu") == ENDED
    assert runs.files(checkout / "results") != before


def test_without_matplotlib_a_picture_stays_while_it_is_of_the_run(checkout: Path) -> None:
    modules = checkout.parent / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    ended(checkout)
    assert "matplotlib is not installed" in run(checkout, "small").stderr
    ours = {"curve.svg": "drawn elsewhere", "record.json": '{"what": "the first"}', "notes.md": "by hand"}
    folder = checkout / "results" / "small-cudnn-cpu"
    for name, content in ours.items():
        (folder / name).write_text(content)
    before = runs.files(folder)
    reproduce(checkout, "small")
    assert runs.files(folder) == before
    ended(checkout, times=2)
    reproduce(checkout, "small")
    assert kept(checkout, "small-cudnn-cpu") == ENDED - {"curve.svg"} | {"notes.md"}


def test_a_run_that_another_process_is_at_is_not_kept(checkout: Path) -> None:
    folder = ended(checkout)
    (folder / "result.json").unlink()
    with RunDirectory(folder).locked():
        done = run(checkout, "small")
    assert done.returncode == 2
    assert "another process is using" in done.stderr
    assert not (checkout / "results" / "small-cudnn-cpu").exists()


def test_a_run_of_other_settings_than_today_s_is_refused(checkout: Path) -> None:
    ended(checkout, "--epochs", "2", "--lr-decay", "0.6")
    done = run(checkout, "small")
    assert (done.returncode, "epoch " in done.stdout) == (2, False)
    assert done.stderr == (
        "scripts/reproduce: checkpoints/reproduce-small-cudnn-cpu is a run of other settings than today's "
        "(epochs 2 there, 13 here, lr_decay 0.6 there, 0.5 here); remove that folder to train it again\n"
    )
    assert not (checkout / "results" / "small-cudnn-cpu").exists()


def test_what_fails_does_not_stop_the_others(checkout: Path) -> None:
    done = run(checkout, "gpu-tests", "small")  # this copy has no tests
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "scripts/reproduce: failed: gpu-tests")
    assert "result.json" in kept(checkout, "small-cudnn-cpu")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_result(flag: str) -> None:
    done = subprocess.run([str(SCRIPT), "small", flag], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: scripts/reproduce ")
    for name in (*plan.RESULTS, "all"):
        assert re.search(rf"^  {name} ", done.stdout, flags=re.MULTILINE)


def test_a_dry_run_says_what_would_be_run(checkout: Path) -> None:
    before = names_in(checkout)
    lines = reproduce(checkout, "--dry-run", "medium-seeds", "race").splitlines()
    assert [line for line in lines if not line.startswith("# ")] == [
        f"python -m ptb_lm.train {flags} --device cpu --run-dir checkpoints/reproduce-{name} --overwrite   "
        f"# kept in results/{name}"
        for name, flags in {
            "medium-block_fused-cpu": "--model block_fused --precision auto --config medium",
            "medium-seed-2-block_fused-cpu": "--model block_fused --precision auto --config medium --seed 2",
            "medium-seed-3-block_fused-cpu": "--model block_fused --precision auto --config medium --seed 3",
            "race-COMMIT-cpu": "--config race --model block_fused --precision auto",
        }.items()
    ]
    lines = reproduce(checkout, "--dry-run", "using", "ablation").splitlines()
    assert "scripts/reproduce medium   # unless results/ has a finished run of it" in lines
    assert (
        "python -m ptb_lm.score checkpoints/reproduce-small-default-fp32-seed-1-cpu --device cpu "
        "examples/sentences.txt > results/using-small-cpu/score.tsv   # its run is trained first"
    ) in lines
    assert names_in(checkout) == before


def names_in(folder: Path) -> set[str]:
    return {name for name in runs.files(folder) if "__pycache__" not in name}


def test_an_unknown_name_is_refused_before_anything_is_made(checkout: Path) -> None:
    assert "unknown result 'smal'; choose from small" in refused(checkout, "small", "smal")


def test_hours_of_work_are_not_begun_unless_they_are_named(checkout: Path) -> None:
    assert "say what to make: a result, or all" in refused(checkout)


def test_a_python_with_torch_that_lacks_something_is_refused(checkout: Path) -> None:
    modules = checkout.parent / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text("import sys\nsys.modules['tqdm'] = None\n")
    problem = f"scripts/reproduce: PYTHON={sys.executable} has torch, but lacks: tqdm\n"
    assert refused(checkout, "small") == problem


def test_a_race_is_of_a_commit(checkout: Path) -> None:
    problem = "scripts/reproduce: race: a record needs a clean commit, but this is "
    assert refused(checkout, "small", "race") == f"{problem}not a checkout\n"
    commit = committed(checkout)
    with (checkout / "ptb_lm" / "model" / "config.py").open("a") as file:
        file.write("# a change\n")
    assert refused(checkout, "race") == f"{problem}{commit} with uncommitted changes\n"


def committed(checkout: Path) -> str:
    """Make it a repository's checkout with nothing uncommitted; return the commit."""
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_race_on_two_cores_is_a_record(checkout: Path) -> None:
    config = checkout / "ptb_lm" / "model" / "config.py"
    shorter = config.read_text().replace(
        '"race": _SHORT_MEDIUM.replace(epochs=20)', '"race": _SHORT_MEDIUM.replace(epochs=2)'
    )
    assert shorter != config.read_text()
    config.write_text(shorter)
    commit = committed(checkout)[:7]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        said = reproduce(checkout, "race")
    finally:
        os.sched_setaffinity(0, cores)
    name = f"race-{commit}-cpu"
    page = (checkout / "results" / "records.md").read_text()
    result = runs.result(checkout / "results" / name)
    assert f"| {commit} | the preset race | " in page
    assert f"| {result['test_perplexity']:.2f} | {result['command_seconds']:.1f} | [{name}]({name}) |" in page
    assert "wrote the tables" in said

    # The same commit's is not run again.
    again = run(checkout, "race")
    assert (again.returncode, "epoch " in again.stdout) == (0, False)
    assert (checkout / "results" / "records.md").read_text() == page


def refused(checkout: Path, *results: str) -> str:
    before = runs.files(checkout)
    done = run(checkout, *results)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    after = {name: content for name, content in runs.files(checkout).items() if "__pycache__" not in name}
    assert after == before
    return done.stderr
