"""--help of the scripts that start work without flags, and what they do before anything is installed."""

import os
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", ["test", "two_hosts", "make_demo"])
def test_help_says_what_a_script_does_and_does_nothing(name: str, flag: str) -> None:
    script = ROOT / "scripts" / name
    done = subprocess.run([script, flag], capture_output=True, text=True, timeout=30, check=True)
    comments = [
        line.removeprefix("#").removeprefix(" ") for line in script.read_text().split("\n\n")[0].split("\n")
    ]
    assert done.stdout.rstrip("\n").split("\n") == comments[1:]
    assert done.stderr == ""


@pytest.mark.parametrize(
    "given", ["reproduce --check small", "reproduce --help", "keep --help", "tables --help"]
)
def test_flags_are_parsed_by_a_python_in_which_nothing_is_installed(given: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    command = [sys.executable, "-S", "-m", "results", *given.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
