"""Runs that commit a40601d trained (tests/fixtures/run-a40601d) load, score and resume as they did then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import runs
from support import ROOT, assert_arrays, installed

import ptb_lm
from ptb_lm import train
from ptb_lm.training import tensors

FIXTURE = ROOT / "tests" / "fixtures" / "run-a40601d"
# Of float64 in a run, which differs between CPUs and grows with every step; of float32 in weights and scores.
RUN, SINGLE = 1e-7, 1e-5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(
        "kept",
        [
            pytest.param(FIXTURE / "torch", id="torch"),
            pytest.param(FIXTURE / "tensorflow", id="tensorflow", marks=installed("tensorflow")),
        ],
    ),
]


def test_a_finished_run_scores_as_it_did(kept: Path) -> None:
    expected = json.loads((kept / "finished" / "scores.json").read_text())
    scores = ptb_lm.load(kept / "finished").score([*expected])
    for found, then in zip(scores.sentences, expected.values(), strict=True):
        np.testing.assert_allclose(found.log_probabilities, then, rtol=SINGLE)


def test_a_stopped_run_goes_on_as_it_did(kept: Path, tmp_path: Path) -> None:
    run = shutil.copytree(kept / "stopped", tmp_path / "run")
    assert train.main(["--resume", str(run), "--data", str(FIXTURE / "text")]) == 0
    for found, then in zip(runs.untimed_rows(run), runs.untimed_rows(kept / "finished"), strict=True):
        assert found == pytest.approx(then, rel=RUN)
    result, expected = runs.result(run), runs.result(kept / "finished")
    for key in runs.UNTIMED_RESULT:
        assert result[key] == pytest.approx(expected[key], rel=RUN)
    weights, then = (tensors.load(each / "weights.safetensors")[0] for each in (run, kept / "finished"))
    assert_arrays(weights, then, atol=SINGLE)
