"""scripts/reproduce: what it makes, in a copy of the checkout, of a text that is small."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import runs
from results.reproduce import _Work
from support import ROOT

from ptb_lm import train
from ptb_lm.common import cli, json_files
from ptb_lm.data import corpus
from ptb_lm.training.run_directory import RunDirectory
from results import keep, plan, store

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "reproduce"
NAME = "small-cudnn-cpu"
UNITS = 8


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what it needs, in which small has few units and was not trained yet."""
    copy = tmp_path / "checkout"
    for folder in ("scripts", "ptb_lm", "benchmarks", "results", "docs"):
        shutil.copytree(ROOT / folder, copy / folder)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    for table in (copy / "results" / store.RUNS, copy / "results" / store.curves("small")):
        lines = table.read_text().splitlines(keepends=True)
        table.write_text("".join(line for line in lines if not line.startswith(f"{NAME},")))
    # Penn Treebank is this text, or there would be neither rows of README.md nor records.
    text = corpus.load(runs.write_corpus(tmp_path / "ptb")).sha256
    edit(copy / "ptb_lm" / "data" / "corpus.py", corpus.PENN_TREEBANK_SHA256, text)
    presets = copy / "ptb_lm" / "model" / "presets.py"
    edit(presets, "SMALL = Config()", f"SMALL = Config(hidden_size={UNITS})")
    edit(
        presets,
        '"race": _REGULARISED_MEDIUM.replace(epochs=20)',
        '"race": _REGULARISED_MEDIUM.replace(epochs=2)',
    )
    return copy


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def environment(checkout: Path) -> dict[str, str]:
    """The environment in which it finds Penn Treebank, this Python, a test's modules/ and no GPU."""
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


def kept(checkout: Path, name: str = NAME) -> dict[str, str] | None:
    """The row of a run; None if there is none."""
    table = store.read(checkout / "results", store.RUNS).set_index("id")
    return dict(table.loc[name]) if name in table.index else None


def epochs(checkout: Path) -> int:
    return (checkout / "results" / store.curves("small")).read_text().count(f"{NAME},")


def test_a_run_that_is_stopped_is_kept_as_far_as_it_came_and_goes_on(checkout: Path) -> None:
    """By SIGTERM here, as timeout sends it; SIGINT and SIGHUP take the same way (tests/test_signals.py)."""
    text = checkout.parent / "ptb" / "train.txt"
    text.write_text(text.read_text() * 40)  # a run takes some seconds
    process = subprocess.Popen(
        [str(checkout / "scripts" / "reproduce"), "small", "gpu-tests"],
        env=environment(checkout),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    metrics = checkout / "checkpoints" / f"reproduce-{NAME}" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert 0 < epochs(checkout) < 13
    reproduce(checkout, "small")
    row, result = kept(checkout), runs.result(checkout / "checkpoints" / f"reproduce-{NAME}")
    assert (epochs(checkout), row["result"], row["test"]) == (13, "small", result["test_perplexity"])
    assert f"`{NAME}`" in (checkout / "results" / "tables.md").read_text()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that small is."""
    folder = tmp_path_factory.mktemp("ended")
    where = ["--data", str(runs.write_corpus(folder / "text")), "--device", "cpu"]
    flags = [
        "--model",
        "cudnn",
        "--config",
        "small",
        "--precision",
        "fp32",
        "--hidden-size",
        str(UNITS),
        *where,
    ]
    assert train.main([*flags, "--run-dir", str(folder / NAME)]) == 0
    return folder / NAME


@pytest.fixture
def finished(ended: Path, checkout: Path) -> Path:
    """The same in the checkout, where it was not kept yet."""
    return shutil.copytree(ended, checkout / "checkpoints" / f"reproduce-{NAME}")


@pytest.mark.usefixtures("finished")
def test_neither_a_full_disk_nor_another_s_failure_costs_a_result(checkout: Path) -> None:
    tables = [checkout / "results" / name for name in (store.RUNS, store.curves("small"))]
    before = [table.read_text() for table in tables]
    with runs.disk_with_room_for(tables[1].stat().st_size):
        done = run(checkout, "small")
    assert (done.returncode, "File too large" in done.stderr) == (1, True)
    assert [table.read_text() for table in tables] == before

    done = run(checkout, "gpu-tests", "small")  # this copy has no tests
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "scripts/reproduce: failed: gpu-tests")
    assert "epoch " not in done.stdout, "a finished run is not made again"
    assert kept(checkout) is not None


def test_a_run_that_another_process_is_at_is_not_kept(checkout: Path, finished: Path) -> None:
    (finished / "result.json").unlink()
    with RunDirectory(finished).lock():
        done = run(checkout, "small")
    assert (done.returncode, "another process" in done.stderr) == (2, True)
    assert kept(checkout) is None


def test_a_run_of_other_settings_than_today_s_is_refused(checkout: Path, finished: Path) -> None:
    runs.change(finished / "config.json", lambda config: config["hyperparameters"].update(lr_decay=0.6))
    done = run(checkout, "small")
    assert (done.returncode, "epoch " in done.stdout) == (2, False)
    assert "lr_decay 0.6 there, 0.5 here" in done.stderr
    assert kept(checkout) is None


def test_an_adapted_test_is_made_again_when_its_run_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its old result is removed before: python -m ptb_lm.evaluate --out replaces none."""
    step = next(step for step in plan.steps_of("adaptation", "cpu") if step.after)
    run = RunDirectory(tmp_path / "checkpoints" / f"reproduce-{step.after.replace('DEVICE', 'cpu')}")
    found, tested = list[Path](), list[bool]()

    def evaluate(self: _Work, command: str, out: Path) -> int:
        tested.append((out / "result.json").exists())
        out.mkdir(parents=True, exist_ok=True)
        json_files.write(out / "result.json", {"command": command})
        return 0

    monkeypatch.setattr(_Work, "_listen", lambda self: None)
    monkeypatch.setattr(_Work, "_train", lambda self, step: 0)
    monkeypatch.setattr(_Work, "_run", evaluate)
    monkeypatch.setattr(keep, "adaptation", lambda results, file, *names: found.append(file))
    work = _Work(tmp_path, "cpu")
    run.path.mkdir(parents=True)
    run.weights_path.touch()
    assert work._do(step) == work._do(step) == 0
    later = found[0].stat().st_mtime + 1
    os.utime(run.weights_path, (later, later))
    assert work._do(step) == 0
    assert (len(found), tested) == (3, [False, False])
    os.utime(run.weights_path, (later - 9, later - 9))
    json_files.write(found[0], {"command": f"{step.run} --cache-theta 1"})
    assert work._do(step) == 0
    assert (len(found), tested) == (4, [False] * 3), "it was made by other flags"


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_benchmark_is_kept_beside_what_failed_in_it(
    has_ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is made, too. What a full disk ended is not kept."""
    asked, found = list[Path](), list[str]()

    def measure(self: _Work, command: str, out: Path) -> int:
        asked.append(out)
        out.mkdir(parents=True, exist_ok=True)
        if has_ended:
            (out / "report.md").touch()
        return cli.EXIT_FAILED

    def keep_rows(results: Path, folder: Path, name: str) -> None:
        found.append(name)

    monkeypatch.setattr(_Work, "_listen", lambda self: None)
    monkeypatch.setattr(_Work, "_run", measure)
    monkeypatch.setattr(keep, "benchmark", keep_rows)
    names = [step.id.replace("DEVICE", "cpu") for step in plan.steps_of("bench", "cpu")]
    before = tmp_path / "bench" / f"reproduce-{names[0]}"
    before.mkdir(parents=True)
    (before / "report.md").touch()  # of an earlier run
    assert _Work(tmp_path, "cpu")._make("bench") == cli.EXIT_FAILED
    assert found == (names if has_ended else [])
    assert len(asked) == (len(names) if has_ended else 1)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_result(flag: str) -> None:
    done = subprocess.run([str(SCRIPT), "small", flag], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name in (*plan.read(), "all"):
        assert re.search(rf"^  {name} ", done.stdout, flags=re.MULTILINE)


def test_a_dry_run_says_what_would_be_run(checkout: Path) -> None:
    lines = reproduce(checkout, "--dry-run", "race", "using", "ablation").splitlines()
    for words in (
        ("ptb_lm.train", "--config race", "--device cpu", "reproduce-race-COMMIT-cpu --overwrite"),
        ("scripts/reproduce medium", "unless"),
        ("ptb_lm.score", "fp32-seed-1-cpu --device cpu", "> bench/reproduce-using-small-cpu-score"),
    ):
        assert any(all(word in line for word in words) for line in lines), words
    assert not (checkout / "checkpoints").exists()


@pytest.mark.parametrize(
    ("results", "noun"),
    [(["small", "smal"], "unknown result 'smal'"), ([], "all"), (["small", "race"], "a clean commit")],
)
def test_an_impossible_result_is_refused_before_anything_is_made(
    checkout: Path, results: list[str], noun: str
) -> None:
    done = run(checkout, *results)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert noun in done.stderr
    assert not (checkout / "checkpoints").exists()


def declared_packages() -> set[str]:
    """The names of what pyproject.toml declares: what the package and its extra pages need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["pages"]]
    return {re.split(r"[>;]", line)[0].replace("-", "_") for line in lines}


def test_a_python_with_torch_must_have_all_that_is_declared() -> None:
    """But OpenBLAS, which makes some processors faster."""
    (wanted,) = re.findall(r'"\$missing" (\w+ [^)]+)\)', SCRIPT.read_text())
    assert {*wanted.replace("\\", "").split(), "torch", "scipy_openblas32"} == declared_packages()


def test_the_pages_are_made_by_what_is_declared() -> None:
    absent = {
        "datasets",
        "jax",
        "keras",
        "nltk",
        "onnx",
        "scipy",
        "sklearn",
        "tensorflow",
    } - declared_packages()
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import results.pages"
    path = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    subprocess.run([sys.executable, "-c", code], env=path, check=True)


def test_a_python_with_torch_that_lacks_something_is_refused(checkout: Path) -> None:
    modules = checkout.parent / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text("import sys\nsys.modules['tqdm'] = None\n")
    done = run(checkout, "small")
    assert (done.returncode, "lacks: tqdm" in done.stderr) == (2, True)


def committed(checkout: Path) -> str:
    """Make it a repository's checkout with nothing uncommitted; return the commit."""
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_race_on_two_cores_is_a_record(checkout: Path) -> None:
    commit = committed(checkout)[:7]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        reproduce(checkout, "race")
    finally:
        os.sched_setaffinity(0, cores)
    name = f"race-{commit}-cpu"
    page = (checkout / "results" / "records.md").read_text()
    result = runs.result(checkout / "checkpoints" / f"reproduce-{name}")
    assert f"| {commit} | the preset race | " in page
    assert f"| {result['test_perplexity']:.2f} | {result['command_seconds']:.1f} | `{name}` |" in page

    # The same commit's is not run again.
    again = run(checkout, "race")
    assert (again.returncode, "epoch " in again.stdout) == (0, False)
    assert (checkout / "results" / "records.md").read_text() == page
