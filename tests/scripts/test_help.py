"""--help of the scripts that start work without flags."""

import subprocess

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
