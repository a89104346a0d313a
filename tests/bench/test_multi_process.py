"""Several processes as one variant: the check compares them, dropout and all, and again after other steps."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from support import ROOT

from ptb_lm.bench.run import multi_process
from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.torch_backend import gpu

# In a process of its own: the first rank joins the others there.
PROGRAM = """
import atexit
import sys
import numpy as np
import torch.distributed
atexit.register(lambda: print("joined" if torch.distributed.is_initialized() else "left"))  # after all others
from ptb_lm.bench.variants import REGISTRY
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config
from support import checked_twice

config = Config(num_layers=2, hidden_size=7, num_steps=4, batch_size=6, keep_prob=float(sys.argv[2]))
task = LanguageTask(config=config, vocabulary_size=60)
build = Variant(sys.argv[1]).builder(REGISTRY, device="cpu", precision="fp32", seed=1)
built = []  # once: the ranks join but once
def kept(*arguments):
    built.append(build(*arguments))
    return built[-1]
print(checked_twice(task, kept).what["dropout"])

# The second comparison begins where the first did: each rank goes back to its masks and its carried state.
(model,) = built
x, y = np.random.default_rng(3).integers(60, size=(2, config.batch_size, config.num_steps), dtype=np.int32)
model.train_step(x, y, model.zero_state(config.batch_size), learning_rate=0.1)
weights, begun = model.export_weights(), model.export_training_state(None)
again = []
for goes_back in (False, True):
    state = None
    if goes_back:
        model.load_weights(weights)
        state = model.load_training_state(begun)
    again.append((model.next_masks(config.batch_size, config.num_steps).units, *model.read([
        model.train_step(x, y, state, learning_rate=0.1)[1]])))
np.testing.assert_equal(again[1][0], again[0][0])
assert again[1][1] == again[0][1], again
"""


@pytest.mark.parametrize(("rows", "noun"), [(3, "not divisible by 2"), (1, "too small for 2")])
def test_a_batch_that_two_processes_cannot_share_is_refused(rows: int, noun: str) -> None:
    unused: Any = None
    with pytest.raises(UserError, match=f"--batch-size {rows} is {noun} processes"):
        multi_process.build_for_two(Config(batch_size=rows), {}, unused)


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(
    ("keep_prob", "dropout"),
    [("1", "none\n"), ("0.5", "same masks\n")],
)
def test_two_processes_compute_what_the_reference_does(keep_prob: str, dropout: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "torch-2-processes/block_fused", keep_prob],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{dropout}left\n")


def test_a_machine_with_too_few_gpus_is_refused_before_processes_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "is_seen", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    choice = Choice.create(device="auto", model="cudnn")
    with pytest.raises(UserError, match="has 3 GPUs, but at least 4 processes"):
        multi_process.build_for_four(Config(batch_size=4), {}, choice)
