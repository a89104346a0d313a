"""scripts/reliability: kills and full disks, what it counts of a run that breaks a promise, and its table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")  # what reads damaged files draws their curves

from faults import table
from faults.outcomes import OUTCOMES
from faults.subject import fingerprint
from faults.table import FAULTS
from support import ROOT

from ptb_lm.training import tensors

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(f"{ROOT / of}" for of in ("scripts", "tests")),
}
BROKEN = {
    # A checksum that is always right is one that no file has.
    "bits of tensors": "from ptb_lm.training import tensors; tensors._digest = lambda *_: 'right'",
    # A run that ends without being saved, with the right status.
    "SIGTERM": "import os; from ptb_lm.common import signals as i; "
    "i.StopRequest._handle = lambda _, number, frame: os._exit(128 + number)",
}


def count(*flags: str, first: str = "") -> tuple[int, str]:
    """Run the faults in a process of their own, because they fork: that of the tests may have threads."""
    arguments = ["faults", "--framework", "torch", *flags]
    run = (
        f"{first}\nimport runpy, sys; sys.argv = {arguments}; runpy.run_module('faults', run_name='__main__')"
    )
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", run], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


# What no other test does to a run; and one fault of each other kind, so that the script stays able to.
# Signals are in test_signals.py, damaged files in training/.
ONCE = ["kill at files", "error at files", "full disk", "one folder"]
ONCE += ["other shapes", "flags", "texts", "mirrors", "benchmarks"]


def test_every_fault_ends_as_promised() -> None:
    """Without time there is one try of each."""
    assert OUTCOMES.keys() == FAULTS.keys()
    status, said = count("--minutes", "0", "--seed", "2", "--fault", *ONCE)
    assert (status, said.count("{'as promised': 1}")) == (0, len(ONCE)), said


def test_a_broken_promise_is_counted() -> None:
    status, said = count("--tries", "2", "--fault", *BROKEN, first="\n".join(BROKEN.values()))
    assert status == 1, said
    for fault in BROKEN:
        assert f"torch, {fault}: {{'" in said
        assert f"torch, {fault}: {{'as promised': 2}}" not in said


def test_a_flipped_bit_changes_the_fingerprint(plain_run: Path, tmp_path: Path) -> None:
    """A run counts as promised only if it is equal to the bit."""
    other = Path(shutil.copytree(plain_run, tmp_path / "other"))
    assert fingerprint(other) == fingerprint(plain_run)
    arrays, metadata = tensors.load(other / "weights.safetensors")
    arrays["softmax.bias"].view("i4")[0] ^= 1
    tensors.save(other / "weights.safetensors", arrays, metadata)
    assert fingerprint(other) != fingerprint(plain_run)


def test_the_page_s_table_is_that_of_its_counts() -> None:
    text, kept = table.PAGE.read_text(), json.loads(table.COUNTS.read_text())
    assert text == table.with_table(text, kept)
