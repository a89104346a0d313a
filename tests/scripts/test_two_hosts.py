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
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("needs Linux's network namespaces and the command ip")
    data = runs.write_corpus(tmp_path / "text")
    flags = [*runs.FLAGS, "--precision", "fp64"]
    done = subprocess.run(
        [ROOT / "scripts" / "two_hosts", "--data", data, "--run-dir", tmp_path / "two", *flags],
        env={**os.environ, "PYTHON": sys.executable},
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
