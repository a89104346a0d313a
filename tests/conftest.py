"""What the tests share."""

import functools
import importlib.util
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ptb_lm.model.config import SMALL, Config

# The tests' models are tiny: threads would only wait for each other. Read when a framework is imported.
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def penn_treebank() -> Path:
    """The folder of the real Penn Treebank files; skips, and says so, where they are not at hand."""
    named = os.environ.get("PTB_LM_DATA")
    for folder in [Path(named)] if named else [ROOT / "data" / "ptb", ROOT.parent / "shared" / "ptb"]:
        if (folder / "ptb.train.txt").is_file():
            return folder
    pytest.skip("needs Penn Treebank: set PTB_LM_DATA, or run python -m ptb_lm.download")


@pytest.fixture
def tiny_config() -> Config:
    """Sizes that differ from each other, so that a transposed or swapped axis cannot go unnoticed."""
    return SMALL.replace(num_layers=2, hidden_size=7, num_steps=5, batch_size=3, init_scale=0.5)


def installed(framework: str) -> pytest.MarkDecorator:
    """Skip, with the reason, where a framework is not installed."""
    missing = importlib.util.find_spec(framework) is None
    return pytest.mark.skipif(missing, reason=f"{framework} is not installed")


def random_weights(config: Config, vocabulary_size: int, seed: int) -> dict[str, np.ndarray]:
    """Random canonical weights in float64, biases too: zero biases would hide swapped gates."""
    from ptb_lm.model import parameters

    rng = np.random.default_rng(seed)
    return {
        name: rng.uniform(-0.5, 0.5, shape)
        for name, shape in parameters.shapes(config, vocabulary_size).items()
    }


def random_windows(
    config: Config, vocabulary_size: int, count: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Consecutive windows (x_BT, y_BT) of random words, some of them repeated within a window."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(
        vocabulary_size, size=(config.batch_size, count * config.num_steps + 1), dtype=np.int32
    )
    from ptb_lm.data import corpus

    return list(corpus.windows(ids, config.num_steps))


def numeric_gradient(loss: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """The gradient of a loss by an array that it reads, by central differences in float64."""
    step, gradient = 1e-5, np.empty_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = loss()
        array[index] = kept - step
        gradient[index] = (above - loss()) / (2 * step)
        array[index] = kept
    return gradient


def pytest_configure() -> None:
    """Let SIGINT be heard: a shell's background jobs ignore it, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        if "tensorflow" in _frameworks(item) and not _tensorflow_has_a_gpu():
            pytest.skip("needs a TensorFlow that finds the CUDA device")


def _frameworks(item: pytest.Item) -> set[str]:
    """What a test is of, by its file's name or its parameters."""
    of_file = (
        {"tensorflow"}
        if {"tf_backend", "tensorflow"} & {*item.path.parts, *item.path.stem.split("_")}
        else set[str]()
    )
    chosen = getattr(item, "callspec", None)
    return of_file | {str(value) for value in (chosen.params.values() if chosen else ())}


@functools.cache
def _tensorflow_has_a_gpu() -> bool:
    tensorflow = pytest.importorskip("tensorflow")
    return bool(tensorflow.config.list_physical_devices("GPU"))
