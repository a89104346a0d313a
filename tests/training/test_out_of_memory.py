"""A run that gets too little memory ends with one sentence and loses nothing."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from support import installed

from ptb_lm import train
from ptb_lm.common import host
from ptb_lm.common.errors import OutOfMemoryError
from ptb_lm.model import backend, parameters
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import SMALL
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.torch_backend.settings import convert_allocation_errors
from ptb_lm.torch_backend.training_step import TrainingStep
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

TOO_SMALL = re.compile(
    r"there is not enough memory[^(;]*"
    r"( \(the last allocation was (?P<asked>.+), and there are (?P<has>.+)\))?"
    r"; .*hidden units.*"
)


def build(config: Config, vocabulary_size: int, framework: str, **choice: str) -> Any:
    """A model whose weights are all zero, and take no memory here."""
    shapes = parameters.shapes(config, vocabulary_size)
    weights = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    chosen: Any = {"model": "cudnn", "device": "cpu", "precision": "fp32", **choice}
    return backend.build(config, weights, Choice.create(framework=framework, seed=1, **chosen))


def without_onednn() -> None:
    """Let TensorFlow use its plain allocator: oneDNN's first waits ten seconds for memory to come free."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"


@pytest.fixture(scope="module")
def at_once() -> Iterator[Callable[..., None]]:
    """Calls a function where TensorFlow says at once that there is no memory: in a process of its own."""

    def call(framework: str, function: Callable[..., None], *given: Any) -> None:
        if framework == "tensorflow":
            process.submit(function, framework, *given).result()
        else:
            function(framework, *given)

    with ProcessPoolExecutor(1, get_context("spawn"), without_onednn) as process:
        yield call


@pytest.mark.parametrize(
    ("framework", "model"),
    [
        pytest.param(name, model, marks=installed(name))
        for name, row in FRAMEWORKS.items()
        for model in sorted(row.models)
    ],
)
def test_a_model_for_which_there_is_no_memory_is_refused(
    framework: str, model: str, at_once: Callable[..., None]
) -> None:
    """Its first matrix is beyond what a process can address."""
    at_once(framework, refuse_a_model, model)


def refuse_a_model(framework: str, model: str) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        build(SMALL.replace(hidden_size=10_000_000), 11, framework, model=model)
    said = TOO_SMALL.fullmatch(str(caught.value))
    assert said
    if framework == "torch":
        assert said["asked"].endswith(("TiB", "PiB")), said["asked"]


@pytest.mark.parametrize(
    ("framework", "execution", "device", "words"),
    [
        ("torch", "eager", "cpu", 10_000_000),
        pytest.param("tensorflow", "eager", "cpu", 10_000_000, marks=installed("tensorflow")),
        pytest.param("tensorflow", "graph", "cpu", 10_000_000, marks=installed("tensorflow")),
        pytest.param("torch", "eager", "cuda", 250_000, marks=pytest.mark.gpu),
        pytest.param("torch", "graph", "cuda", 250_000, marks=pytest.mark.gpu),
    ],
)
def test_a_window_for_which_there_is_no_memory_is_refused(
    framework: str, execution: str, device: str, words: int, at_once: Callable[..., None]
) -> None:
    """Its vectors, of four million numbers a word, are some 160 or 4 TB. What fits is done as before."""
    at_once(framework, refuse_a_window, execution, device, words)


def refuse_a_window(framework: str, execution: str, device: str, words: int) -> None:
    config = SMALL.replace(num_layers=1, hidden_size=1, embedding_size=4_000_000, batch_size=1, num_steps=2)
    model = "block_fused" if framework == "tensorflow" else "cudnn"  # a layer in one operation
    built = build(config, 2, framework, model=model, execution=execution, device=device)
    state, long_1T = built.zero_state(1), built.to_device(np.zeros((1, words), np.int32))
    with pytest.raises(OutOfMemoryError):
        built.train_step(long_1T, long_1T, state, learning_rate=0.5)
    with pytest.raises(OutOfMemoryError):
        built.evaluate_step(long_1T, long_1T, state)
    short_1T = np.zeros((1, 2), np.int32)
    state, loss = built.train_step(short_1T, short_1T, state, learning_rate=0.5)
    assert built.read([loss])[0].nll == pytest.approx(2 * np.log(2))
    assert built.export_weights()["softmax.bias"][0] > 0, "the step moves nothing"


LIMITED = """
import resource, sys
from pathlib import Path
import ptb_lm.training.tensorboard, ptb_lm.training.launch, ptb_lm.torch_backend.backend
from ptb_lm.train import main

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(limit, flush=True)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_the_command_says_so_in_a_sentence_and_its_state_is_kept(data: Path, tmp_path: Path) -> None:
    """A first step that needs 960 MB where there are 600; the weights need 80."""
    run = tmp_path / "run"
    wide = ("--embedding-size", "400000", "--num-layers", "1", "--num-steps", "150", "--framework", "torch")
    command = [sys.executable, "-c", LIMITED, str(600 * 2**20), *runs.arguments(data, run, *wide)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    said = TOO_SMALL.fullmatch(runs.sentence(done.stderr, train))
    assert said
    assert said["asked"]
    assert said["has"] == host.format_size(int(done.stdout.partition("\n")[0]))
    saved = RunDirectory(run).read_state()
    assert saved.progress.step == 0
    assert saved.weights["embedding"].shape[1] == 400_000


def test_nothing_is_written_without_memory_for_what_only_training_needs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"

    def too_large(self: TrainingStep, *given: Any, **named: Any) -> None:
        torch.empty(2**60)

    monkeypatch.setattr(TrainingStep, "__init__", too_large)
    assert TOO_SMALL.fullmatch(runs.refusal(capsys, train, *runs.arguments(data, run)))
    assert not run.exists()


def test_a_state_for_which_there_is_no_memory_is_not_called_wrong(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.train_run(data, tmp_path / "run", "--average-epochs", "1")
    kept = runs.files(run)

    @convert_allocation_errors()
    def too_large(self: TorchBackend, weight: float) -> None:
        torch.empty(2**60)

    monkeypatch.setattr(TorchBackend, "update_averages", too_large)
    problem = runs.refusal(capsys, train, "--resume", run, "--epochs", "3")
    assert problem.startswith("there is not enough memory")
    assert "was 4.0 EiB, and" in problem
    assert runs.files(run) == kept


def test_a_training_that_runs_out_of_memory_says_how_it_continues(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU that another process fills. A first step without memory would fail again (above)."""
    run = tmp_path / "run"

    @convert_allocation_errors()
    def too_large(self: TorchBackend, *given: Any, **named: Any) -> None:
        torch.empty(2**60)

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "evaluate_step", too_large)  # the validation after the first epoch
        assert train.main(runs.arguments(data, run)) == 2
    problem, _, command = runs.sentence(capsys.readouterr().err, train).partition("; continue with: ")
    assert TOO_SMALL.fullmatch(problem)
    assert RunDirectory(run).read_state().progress.step > 0, "only the validation is done again"
    assert train.main(shlex.split(command)[3:]) == 0
    assert runs.result(run)["epochs"] == 2
