"""The package as others get it: built, installed beside nothing of this checkout, and used from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import bench_rows
import pytest
import runs
from support import ROOT

import ptb_lm

pytestmark = pytest.mark.slow

BUILD = "import sys; from setuptools import build_meta as backend; _, kind, out = sys.argv; " + (
    "print(getattr(backend, f'build_{kind}')(out))"
)

NOTHING_BUT_README = [ROOT / name for name in ("data", "checkpoints")]


def environment() -> dict[str, str]:
    """Return the environment's variables with nothing of this checkout on a path."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PTB_LM"))}


def run(*command: object, cwd: Path) -> str:
    """Run a command in some folder, apart from this checkout; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def not_copied(folder: str, names: list[str]) -> set[str]:
    """What git does not keep in a checkout."""
    hidden = {name for name in names if name.startswith(".") and name != ".ci"}
    made = {name for name in names if name in ("__pycache__", "build") or name.endswith(".egg-info")}
    top = {"bench"} & {*names} if Path(folder) == ROOT else set()
    own = {name for name in names if name != "README.md"}
    return hidden | made | top | (own if Path(folder) in NOTHING_BUT_README else set())


def build(kind: str, source: Path, out: Path) -> Path:
    """Build an sdist or a wheel, as pip does it."""
    out.mkdir(exist_ok=True)
    return out / run(sys.executable, "-c", BUILD, kind, out, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = shutil.copytree(ROOT, folder / "checkout", ignore=not_copied)
    with tarfile.open(build("sdist", checkout, folder / "out")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # before 3.10.12 there is none
        archive.extractall(folder)
    return folder / f"ptb_lm-{ptb_lm.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel, built from the sdist: which so has all that is needed for it."""
    return build("wheel", sdist, sdist.parent / "out")


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The programs of an environment that has the wheel; what it needs is found where the tests have it."""
    folder = wheel.parent.parent / "environment"
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    # Without a network; and without this checkout, though it may be installed here.
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_the_sdist_has_docs_examples_tests_and_scripts(sdist: Path) -> None:
    named = subprocess.run(
        ["git", "ls-files", "ptb_lm", "benchmarks", "docs", "examples", "results", "scripts", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    files = named.stdout.split() or ["docs/README.md", "scripts/test", "tests/conftest.py"]
    files += ["README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt", "setup.py"]
    assert [name for name in files if (ROOT / name).exists() and not (sdist / name).is_file()] == []
    assert not (sdist / "data" / "ptb").exists()


def test_the_wheel_has_the_package_alone_and_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"ptb_lm", f"ptb_lm-{ptb_lm.__version__}.dist-info"}
    wanted = ("py.typed", "torch_backend/native/kernels.cpp", "demo/weights.safetensors")
    assert {f"ptb_lm/{name}" for name in wanted} <= names
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ptb_lm").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if name.startswith("ptb_lm/")} == sources
    assert (metadata["Name"], metadata["Version"]) == ("ptb-lm", ptb_lm.__version__)
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert "torch>=2.11" in needed, "no upper bound, which would replace the torch that somebody has"
    assert not [each for each in metadata.get_all("Requires-Dist", []) if "<" in each]


def test_an_editable_installation_is_found_beside_its_checkout(sdist: Path, tmp_path: Path) -> None:
    """A checkout may be called as the package is."""
    with zipfile.ZipFile(build("editable", sdist, sdist.parent / "out")) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "ptb_lm").mkdir()
    program = "import site; site.addsitedir('site'); import ptb_lm; print(ptb_lm.__version__)"
    assert run(sys.executable, "-S", "-c", program, cwd=tmp_path) == f"{ptb_lm.__version__}\n"


def test_it_trains_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    program = installed / "ptb-lm"
    assert run(program, "--version", cwd=tmp_path) == f"ptb-lm {ptb_lm.__version__}\n"
    # The compiled kernel's source is in the wheel.
    where = "import ptb_lm; from ptb_lm.torch_backend.native.library import SOURCE; " + (
        "print(ptb_lm.__file__, ptb_lm.__version__, SOURCE.stat().st_size)"
    )
    file, version, size = run(installed / "python", "-c", where, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed.parent)
    assert version == ptb_lm.__version__
    assert int(size) > 0
    listing = run(installed / "python", "-m", "ptb_lm", cwd=tmp_path)
    assert listing.replace("python -m ptb_lm ", "ptb-lm ") == run(program, "--help", cwd=tmp_path)

    runs.write_corpus(tmp_path / "data")
    flags = ["--data", "data", "--config", "test", "--device", "cpu"]
    said = run(program, "train", "--model", "block_fused", *flags, cwd=tmp_path)
    (trained,) = (tmp_path / "checkpoints").iterdir()
    assert [row["epoch"] for row in runs.metrics(trained)] == [1]
    result = runs.result(trained)
    assert result["environment"]["ptb_lm"] == ptb_lm.__version__
    assert f"test perplexity {result['test_perplexity']:.2f}" in said
    again = run(program, "evaluate", trained, cwd=tmp_path)
    (perplexity,) = re.findall(r"^test perplexity (\S+) ", again, re.M)
    assert float(perplexity) == pytest.approx(result["test_perplexity"], rel=1e-4)


def test_it_measures_and_says_where_the_suites_of_a_checkout_are(installed: Path, tmp_path: Path) -> None:
    """A folder of the user's own, benchmarks/, is none of ours."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    bench = [installed / "python", "-m", "ptb_lm.bench"]
    listed = re.findall(r"^(\S+): ", run(*bench, "list", cwd=tmp_path), re.M)
    assert listed == ["quick", "ptb", "executions", "cells", "scaling", "peak"]
    refused = subprocess.run(
        [*bench, "run", "acoustic"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "checkout" in refused.stderr
    rows = bench_rows.rounds({"torch/basic": 1.0, "tensorflow/cudnn": 2.0, "keras-jax/lstm": 3.0})
    bench_rows.write(tmp_path / "measured", rows)
    run(*bench, "report", "measured", cwd=tmp_path)
    report = (tmp_path / "measured" / "report.md").read_text()
    assert "keras-jax/lstm" in report
    assert "# Published figures" not in report, "which a checkout shows beside tensorflow/cudnn"


def test_its_run_is_used_at_once_and_not_written_to(installed: Path, tmp_path: Path) -> None:
    (demo,) = installed.parent.glob("lib/python*/site-packages/ptb_lm/demo")
    before = runs.files(demo)
    for path in (*demo.iterdir(), demo):
        path.chmod(path.stat().st_mode & ~0o222)
    (tmp_path / "text").write_text("the judge sues the court\n")
    said = run(installed / "ptb-lm", "score", "demo", "text", cwd=tmp_path)
    again = 'import ptb_lm; print(ptb_lm.load("demo").score("the judge sues the court").total)'
    total = float(run(installed / "python", "-c", again, cwd=tmp_path))
    assert total == pytest.approx(float(said.split()[4]), abs=1e-4)
    play = [installed / "ptb-lm", "play", "demo", "--port", "0"]
    with subprocess.Popen(play, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address, *_ = server.stdout.readline().split()
            with urllib.request.urlopen(address, timeout=60) as answer:
                page = answer.read().decode()
        finally:
            server.terminate()
    assert f"test perplexity {runs.result(demo)['test_perplexity']:.2f}" in page
    assert 'class="word s' in page, "a sentence is read and coloured"
    assert runs.files(demo) == before
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
