"""Several processes as one variant: the check compares them, dropout and all, before and after other steps."""

import os
import subprocess
import sys

import pytest
from support import ROOT

# In a process of its own: the first rank joins the others there.
PROGRAM = """
import sys
from ptb_lm.bench.registries import LANGUAGE_MODELS
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config
from support import checked_twice

config = Config(num_layers=2, hidden_size=7, num_steps=4, batch_size=6, keep_prob=float(sys.argv[2]))
task = LanguageTask(config=config, vocabulary_size=60)
build = Variant(sys.argv[1], "").builder(LANGUAGE_MODELS, device="cpu", precision="fp32", seed=1)
print(checked_twice(task, build).what["dropout"])
"""


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(
    ("keep_prob", "dropout"),
    [("1", "there is none"), ("0.5", "the reference had the same masks")],
)
def test_two_processes_compute_what_the_reference_does(keep_prob: str, dropout: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "torch-2-processes/block_fused", keep_prob],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{dropout}\n", "")
