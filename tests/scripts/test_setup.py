"""scripts/setup.sh: what scripts of a fresh checkout do, also together, or after one that was interrupted."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.slow

# A Python that makes an environment and installs nothing, and takes its time.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    "-m venv .venv") echo venv >> calls; sleep 0.5; mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch pip ;;
    "-c "*pip*) [[ -e pip ]] ;;
    "-m pip "*) echo pip >> calls; echo "${@: -1}" > wanted; sleep 0.5 ;;
    "-c "*"(3, 1"[45]")"*) [[ ! -e is-new ]] ;;
esac
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """That Python, in a checkout."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "a python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return python


def test_an_environment_that_has_no_pip_yet_is_completed(python: Path, tmp_path: Path) -> None:
    """As after Ctrl-C while pip was unpacked, by a Python that is named from the folder of the call."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(python, tmp_path / ".venv" / "bin" / "python")
    environment = {**os.environ, "PYTHON": f"../{python.name}"}
    command = ["bash", "-c", ". ./setup.sh; setup"]
    subprocess.run(command, cwd=tmp_path / "scripts", env=environment, check=True)
    assert (tmp_path / "calls").read_text() == "venv\npip\n"


def test_extras_without_a_package_for_this_python_are_left_out(python: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": str(python)}
    for extras, wanted in (("dev,tensorflow,pytensor,text", ".[dev,text]"), ("tensorflow", ".")):
        (tmp_path / "is-new").touch()
        command = ["bash", "-c", f". scripts/setup.sh; setup {extras}"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        assert (tmp_path / "wanted").read_text() == f"{wanted}\n"
        shutil.rmtree(tmp_path / ".venv")


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_scripts_that_are_started_together_install_once(python: Path, tmp_path: Path) -> None:
    command = ["bash", "-c", ". scripts/setup.sh; setup dev; cat .venv/installed-dev"]
    environment = {**os.environ, "PYTHON": str(python)}
    together = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) for _ in range(2)
    ]
    stamps = {process.communicate()[0] for process in together}
    assert [process.returncode for process in together] == [0, 0]
    assert len(stamps) == 1
    assert (tmp_path / "calls").read_text() == "venv\npip\n"
    for extras, calls in (
        ("dev,text", 3),
        ("text", 3),
        ("tex", 4),
        ("dev,jax", 5),
    ):  # what is there is enough
        subprocess.run(
            [*command[:2], f". scripts/setup.sh; setup {extras}"], cwd=tmp_path, env=environment, check=True
        )
        assert (tmp_path / "calls").read_text().count("\n") == calls
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    subprocess.run([*command[:2], ". scripts/setup.sh; setup dev"], cwd=moved, check=True)
    assert (moved / "calls").read_text().count("\n") == calls + 1


def test_a_python_that_all_extras_have_packages_for_comes_first(python: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("python3", "[[ $* == *99* ]]"),
        ("python3.14", "[[ $* == *99* ]]"),
        ("python3.13", "true"),
        ("python3.12", "false"),
        ("python3.11", "false"),
    ):
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHON", None)
    for chosen, given in (("python3.13", {}), ("python3", {"PYTHON": "python3"})):
        command = ["bash", "-c", ". scripts/setup.sh; find_python"]
        found = subprocess.check_output(command, cwd=tmp_path, env={**environment, **given}, text=True)
        assert found.strip() == chosen
    for name in ("python3", "python3.13"):
        (programs / name).write_text("#!/usr/bin/env bash\nfalse\n")
    assert subprocess.check_output(command, cwd=tmp_path, env=environment, text=True).strip() == "python3.14"
