"""Fixtures that the tests share, and what pytest does before a test."""

import functools
import os
import signal
from pathlib import Path

import pytest
from support import ROOT

from ptb_lm.model.config import SMALL, Config

# The tests' models are tiny: threads would only wait for each other. Read when a framework is imported.
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")


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
