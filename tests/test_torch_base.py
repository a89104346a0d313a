"""What language models and classifiers in torch share: memory that there is not, weights in one piece."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from conftest import random_weights, random_windows

from ptb_lm import backend, parameters, train
from ptb_lm.backend import FRAMEWORKS
from ptb_lm.config import SMALL, Config
from ptb_lm.errors import UserError
from ptb_lm.rundir import RunDirectory
from ptb_lm.torch_backend.base import enough_memory

TOO_SMALL = (
    "there is not enough memory for a model and windows of this size; fewer hidden units, layers, rows a "
    "batch or time steps need less"
)
every_model = pytest.mark.parametrize("model", sorted(FRAMEWORKS["torch"].models))


def build(config: Config, vocabulary_size: int, **choice: str) -> Any:
    """A model whose weights are all zero, and take no memory here."""
    shapes = parameters.shapes(config, vocabulary_size)
    weights = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    chosen: Any = {"model": "cudnn", "device": "cpu", "precision": "fp32", **choice}
    return backend.build(config, weights, framework="torch", seed=1, **chosen)


@every_model
def test_a_model_for_which_there_is_no_memory_is_refused(model: str) -> None:
    """Its first matrix is beyond what a process can address."""
    with pytest.raises(UserError) as caught:
        build(SMALL.replace(hidden_size=10_000_000), 11, model=model)
    assert str(caught.value) == TOO_SMALL


@pytest.mark.parametrize(
    ("execution", "device", "words"),
    [
        ("eager", "cpu", 100_000_000),
        pytest.param("eager", "cuda", 1_000_000, marks=pytest.mark.gpu),
        pytest.param("graph", "cuda", 1_000_000, marks=pytest.mark.gpu),
    ],
)
def test_a_window_for_which_there_is_no_memory_is_refused(execution: str, device: str, words: int) -> None:
    """Its vectors, of a million numbers a word, are some 400 or 4 TB. What fits is done as before."""
    config = SMALL.replace(num_layers=1, hidden_size=1, embedding_size=1_000_000, batch_size=1, num_steps=2)
    built = build(config, 2, execution=execution, device=device)
    state, place = built.zero_state(1), built.device
    long_1T = torch.zeros((), dtype=torch.int64, device=place).expand(1, words)
    with pytest.raises(UserError) as caught:
        built.train_step(long_1T, long_1T, state, learning_rate=0.5)
    assert str(caught.value) == TOO_SMALL
    with pytest.raises(UserError) as caught:
        built.evaluate_step(long_1T, long_1T, state)
    assert str(caught.value) == TOO_SMALL
    short_1T = np.zeros((1, 2), np.int32)
    state, loss = built.train_step(short_1T, short_1T, state, learning_rate=0.5)
    assert built.read([loss])[0].nll == pytest.approx(2 * np.log(2))
    assert built.export_weights()["softmax.bias"][0] > 0, "the step moves nothing"


def test_a_failed_allocation_is_known_by_what_it_led_to() -> None:
    @enough_memory()
    def capture() -> None:
        try:
            torch.empty(2**60)
        finally:
            torch.zeros(2).view(3)  # what ends the capture fails, too

    with pytest.raises(UserError, match="not enough memory"):
        capture()
    with pytest.raises(UserError, match="not enough memory"), enough_memory():
        np.empty(2**56)


def test_any_other_failure_is_left_alone() -> None:
    with pytest.raises(RuntimeError, match="size of tensor a"), enough_memory():
        torch.zeros(2) + torch.zeros(3)


LIMITED = """
import resource, sys
from pathlib import Path
import ptb_lm.scalars, ptb_lm.launch, ptb_lm.torch_backend.backend
from ptb_lm.train import main

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_the_command_says_so_in_a_sentence_and_its_state_is_kept(tmp_path: Path) -> None:
    """A first step that needs 960 MB where there are 600; the weights need 80."""
    data, run = runs.write_corpus(tmp_path / "data"), tmp_path / "run"
    wide = ("--embedding-size", "400000", "--num-layers", "1", "--num-steps", "150", "--framework", "torch")
    command = [sys.executable, "-c", LIMITED, str(600 * 2**20), *runs.arguments(data, run, *wide)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert runs.sentence(done.stderr, train) == TOO_SMALL
    saved = RunDirectory(run).read_state()
    assert saved.progress.step == 0
    assert saved.weights["embedding"].shape[1] == 400_000


@pytest.mark.gpu
@pytest.mark.parametrize("precision", FRAMEWORKS["torch"].precisions)
def test_cudnn_finds_a_layer_s_weights_in_one_piece(precision: str, tiny_config: Config) -> None:
    """Whatever is done to them: else torch would put them together at every call, and say so in a warning."""
    config = tiny_config.replace(keep_prob=0.5, recurrent_keep_prob=0.8)
    weights = random_weights(config, 11, seed=1)
    built: Any = backend.build(
        config, weights, framework="torch", model="cudnn", device="cuda", precision=precision, seed=1
    )
    state = built.zero_state(3)
    for x_BT, y_BT in random_windows(config, 11, 3, seed=2):
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        built.average(0.5)
        with built.averaged():
            built.evaluate_step(x_BT, y_BT, built.zero_state(3))
    built.load_weights(built.export_weights())
    for layer in built.stack.layers:
        pieces = {parameter.untyped_storage().data_ptr() for parameter in layer.lstm.parameters()}
        assert len(pieces) == 1
