"""scripts/two_hosts: one training on two hosts with addresses of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import runs
from support import ROOT

pytestmark = pytest.mark.slow

NOT_HERE = 77  # the script's exit status where the machine allows no such thing


def test_two_hosts_train_what_one_does(tmp_path: Path) -> None:
    """Paths, that of PYTHON too, are from the folder of the call."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("needs Linux's network namespaces and the command ip")
    data = runs.write_corpus(tmp_path / "text")
    python = tmp_path / "a python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    flags = [*runs.FLAGS, "--precision", "fp64"]
    done = subprocess.run(
        [ROOT / "scripts" / "two_hosts", "--data", data.name, "--run-dir", "two", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": f"./{python.name}"},
        capture_output=True,
        text=True,
    )
    if done.returncode == NOT_HERE:
        pytest.skip(f"needs network namespaces: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    sent = [int(number) for number in re.findall(r"sent (\d+) kB", done.stdout)]
    assert len(sent) == 2
    assert min(sent) > 100  # 70 steps of 1,000 parameters
    runs.train_run(data, tmp_path / "one", "--precision", "fp64")
    for key in ("test_perplexity", "valid_perplexity", "final_test_perplexity"):
        assert runs.result(tmp_path / "two")[key] == pytest.approx(
            runs.result(tmp_path / "one")[key], rel=1e-10
        )
