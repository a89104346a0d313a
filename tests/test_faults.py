"""Each fault of scripts/reliability once, and its page."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")  # what reads damaged files draws their curves

import runs
from faults import page
from faults.outcomes import OUTCOMES
from faults.subject import fingerprint
from faults.table import FAULTS
from support import ROOT

from ptb_lm.training import tensors

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
}


def test_what_befalls_a_run_ends_as_promised() -> None:
    """Each fault once, in a process of its own, because it forks: that of the tests may have threads."""
    command = [sys.executable, "-m", "faults", "--tries", "1", "--seed", "2", "--framework", "torch"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("{'as promised': 1}") == len(FAULTS)


def test_every_fault_can_be_done() -> None:
    assert OUTCOMES.keys() == FAULTS.keys()


def test_help_needs_nothing_installed(tmp_path: Path) -> None:
    """Of a Python without site-packages; it is asked, and no environment is set up."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    command = [str(ROOT / "scripts" / "reliability"), "--quick", "--help"]
    environment = {**os.environ, "PYTHON": str(bare)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "-m faults --quick --help"
    said = " ".join(done.stdout.split())
    assert said.startswith("usage: scripts/reliability ")
    assert "; ".join(FAULTS) in said


def test_the_page_s_table_is_that_of_its_counts() -> None:
    text, kept = page.PAGE.read_text(), json.loads(page.COUNTS.read_text())
    assert text == page.with_table(text, kept)
    counted = [(each["framework"], each["fault"]) for each in kept["counts"]]
    assert sorted(counted) == sorted((of, name) for name, fault in FAULTS.items() for of in fault.frameworks)


def test_a_lost_bit_is_seen(tmp_path: Path) -> None:
    """What is counted as promised is equal to the last bit."""
    run = runs.train_run(runs.write_corpus(tmp_path / "data"), tmp_path / "run")
    other = Path(shutil.copytree(run, tmp_path / "other"))
    assert fingerprint(other) == fingerprint(run)
    arrays, metadata = tensors.load(other / "weights.safetensors")
    arrays["softmax.bias"].view("i4")[0] ^= 1
    tensors.save(other / "weights.safetensors", arrays, metadata)
    assert fingerprint(other) != fingerprint(run)


BROKEN = {
    # A checksum that is always right is one that no file has.
    "bits of tensors": "from ptb_lm.training import tensors; tensors._digest = lambda *_: 'right'",
    # A run that ends without being saved, with the right status.
    "SIGTERM": "import os; from ptb_lm.training import interrupt as i; "
    "i.StopRequest._handle = lambda _, number, frame: os._exit(128 + number)",
}


def test_what_is_not_as_promised_is_counted_as_such() -> None:
    forgetful = "\n".join(BROKEN.values())
    arguments = ["faults", "--tries", "3", "--framework", "torch", "--fault", *BROKEN]
    run = f"import runpy, sys; sys.argv = {arguments}; runpy.run_module('faults', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", f"{forgetful}\n{run}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for fault in BROKEN:
        assert f"torch, {fault}: {{'" in done.stdout
        assert f"torch, {fault}: {{'as promised': 3}}" not in done.stdout


def test_a_fault_without_time_is_tried_once(tmp_path: Path) -> None:
    """And the table, which is written elsewhere here, has it."""
    (tmp_path / "page.md").write_text(f"before\n{page.BEGIN}{page.END}after\n")
    elsewhere = "import pathlib; from faults import page; "
    elsewhere += "page.PAGE, page.COUNTS = pathlib.Path('page.md'), pathlib.Path('counts.json')"
    arguments = ["faults", "--minutes", "0", "--write", "--framework", "torch", "--fault", "mirrors"]
    run = f"import runpy, sys; sys.argv = {arguments}; runpy.run_module('faults', run_name='__main__')"
    command = [sys.executable, "-c", f"{elsewhere}\n{run}"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| torch | 1 | 1 |" in (tmp_path / "page.md").read_text()
    assert json.loads((tmp_path / "counts.json").read_text())["counts"][0]["tries"] == 1
