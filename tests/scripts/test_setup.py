"""scripts/setup.sh: what several scripts of a fresh checkout do when they are started together."""

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
    "-m venv .venv") echo venv >> calls; sleep 0.5; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    "-m pip "*) echo pip >> calls; sleep 0.5 ;;
esac
"""


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_scripts_that_are_started_together_install_once(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
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
