"""The scripts that measure: what they measure is the model that the package trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import runs
from support import ROOT, installed

WITHOUT = [
    *(
        f"ptb_lm.bench.rivals.without:{what}"
        for what in ("own_softmax", "sparse_embedding", "kept_memory", "fast_masks", "packed_recurrence")
    ),
    *(
        pytest.param(f"ptb_lm.bench.rivals.without_tensorflow:{what}", marks=installed("tensorflow"))
        for what in ("own_softmax", "own_gradient", "kept_memory")
    ),
]


PROFILE = str(ROOT / "scripts" / "profile_step.py")


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def run(*arguments: str) -> str:
    done = ended(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("what", WITHOUT)
def test_the_model_without_an_optimisation_equals_the_reference(what: str) -> None:
    """In a process of its own, which it changes for good."""
    run(
        "-c",
        f"""
from ptb_lm.model import parameters
from ptb_lm.bench import parity, variants
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config

task = LanguageTask(config=Config(hidden_size=7, keep_prob=0.5), vocabulary_size=50)
variant = variants.add("mine={what}")
build = variant.builder(variants.LANGUAGE_MODELS, device="cpu", precision="fp32", seed=1)
parity.check(task, build, precision="fp32", seed=3)
model = build(task.config, parameters.initial(task.config, 50, seed=1))
x, y = task.window(seed=1)
model.train_step(x, y, model.zero_state(20), learning_rate=0.5)
""",
    )


def test_a_profile_names_the_operations_and_its_command(tmp_path: Path) -> None:
    printed = run(PROFILE, "torch/cudnn", "--config", "test", "--steps", "1", "--out", str(tmp_path))
    kept = (tmp_path / "profile.txt").read_text()
    assert kept in printed
    assert f"--config test --steps 1 --out {tmp_path}" in kept
    assert "aten::mm" in kept
    assert [path.name for path in tmp_path.iterdir()] == ["profile.txt"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["torch/cudnn", "--steps", "0"], "argument --steps: must be a whole number of at least 1, not '0'"),
        (["torch/cudnn", "--trace"], "--trace writes OUT/trace.json, and --out is not given"),
        (["torch/cudn"], "unknown model 'cudn' for torch; choose from basic, block, block_fused, cudnn, "),
        (["torch/cudnn/quick"], "unknown execution 'quick' for torch; choose from auto, eager, graph"),
        (["torch/cudnn/eager/static/more"], "torch/cudnn/eager/static/more: a variant is FRAMEWORK/MODEL[/"),
        (["cudnn"], "cudnn: only torch's variants can be profiled, torch/MODEL[/EXECUTION] and plain-torch"),
        (["tensorflow/cudnn"], "tensorflow/cudnn: only torch's variants can be profiled, torch/MODEL"),
    ],
)
def test_a_profile_that_cannot_be_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = ended(PROFILE, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"python scripts/profile_step.py: {sentence}")
    assert done.stderr.count("\n") == 1


DIVERGENCE = str(ROOT / "scripts" / "divergence.py")


def test_a_model_does_not_diverge_from_itself_and_a_nudge_is_seen(tmp_path: Path) -> None:
    data = runs.write_corpus(tmp_path / "data")
    variants = ["basic/fp64", "basic/fp64/nudged", "cudnn/fp64"]
    flags = ["--data", str(data), "--config", "test", "--steps", "15", "--out", str(tmp_path / "out")]
    run(DIVERGENCE, *flags, *variants)
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["rows"]
    assert [row["step"] for row in rows] == [*range(15)]
    for row in rows:
        assert row["relative_difference"]["basic/fp64/nudged"] < 1e-8
        assert row["relative_difference"]["cudnn/fp64"] < 1e-13
    assert rows[-1]["relative_difference"]["basic/fp64/nudged"] > 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["foo/fp32"], "unknown model 'foo' for torch; choose from "),
        (["foo"], "foo: a variant is MODEL/PRECISION or MODEL/PRECISION/nudged"),
        (["basic/fp64/pushed"], "basic/fp64/pushed: a variant is MODEL/PRECISION or "),
        (["basic/fp64", "--steps", "-5"], "argument --steps: must be a whole number of at least 1"),
        (["basic/fp64", "--data", "nowhere"], "the data folder nowhere does not exist"),
    ],
)
def test_divergence_refuses_in_a_sentence(given: list[str], problem: str, tmp_path: Path) -> None:
    data = runs.write_corpus(tmp_path / "data")
    done = ended(DIVERGENCE, "--config", "test", "--data", str(data), *given)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"python scripts/divergence.py: {problem}")
