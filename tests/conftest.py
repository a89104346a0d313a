"""Fixtures that the tests share, and what pytest does before a test."""

import contextlib
import functools
import gc
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests' models are tiny: threads would only wait for each other, and NumPy's use up a core meanwhile.
# NumPy and the frameworks read this when they are imported.
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")
# Before any test imports TensorFlow: ptb_lm/tf_backend/__init__.py says why.
with contextlib.suppress(ImportError):
    importlib.import_module("triton")

import runs  # noqa: E402
from support import ROOT  # noqa: E402

from ptb_lm.common import signals  # noqa: E402
from ptb_lm.common.host import REPOSITORY_VARIABLES  # noqa: E402
from ptb_lm.model.config import Config  # noqa: E402
from ptb_lm.model.presets import SMALL  # noqa: E402

# In a hook of git's, the repositories of tests would be the user's.
for variable in REPOSITORY_VARIABLES:
    os.environ.pop(variable, None)

# They come first, so that no process is left alone with one of them at the end.
LONGEST = {"test_distribution.py", "test_demo.py"}
SLOW_TO_IMPORT = {"tensorflow", "keras", "jax", "pytensor"}


@pytest.fixture(scope="session")
def penn_treebank() -> Path:
    """The folder of the real Penn Treebank files; skips, and says so, where they are not at hand."""
    named = os.environ.get("PTB_LM_DATA")
    folder = Path(named) if named else ROOT / "data" / "ptb"
    if (folder / "ptb.train.txt").is_file():
        return folder
    pytest.skip("needs Penn Treebank: set PTB_LM_DATA, or run python -m ptb_lm.download")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small corpus, to be looked at only."""
    return runs.write_corpus(tmp_path_factory.mktemp("corpus") / "data")


@pytest.fixture(scope="session")
def data(small_corpus: Path) -> Path:
    """The same, for files that need no other.

    No fixture of a module puts a run beside it: a process that takes tests from others may come to a module
    twice, and makes such a fixture again.
    """
    return small_corpus


@pytest.fixture(scope="session")
def plain_run(small_corpus: Path) -> Iterator[Path]:
    """A finished run on it by the tests' own flags: trained once for all that only look at it."""
    run = runs.train_run(small_corpus, small_corpus.parent / "run")
    before = runs.files(run)
    yield run
    assert runs.files(run) == before, "a test has changed the run that others look at"


@pytest.fixture(autouse=True)
def unanswered() -> Iterator[None]:
    """Let no test stop for a signal that an earlier one has answered: pytest goes on where a command ends."""
    yield
    signals.answered_signal = None


@pytest.fixture
def tiny_config() -> Config:
    """Sizes that differ from each other, so that a transposed or swapped axis cannot go unnoticed."""
    return SMALL.replace(num_layers=2, hidden_size=7, num_steps=5, batch_size=3, init_scale=0.5)


@pytest.fixture
def short_config(tiny_config: Config) -> Config:
    """Other such sizes, for what takes seconds to trace or to compile, which is each step by itself.

    A window has a first step, one between and a last. What torch.compile has compiled it keeps on disk: other
    sizes take it half a minute.
    """
    return tiny_config.replace(num_steps=3, batch_size=4)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: compressed content has the time in it, and each worker collects anew."""
    return argname if isinstance(val, bytes) else None


def pytest_configure() -> None:
    """Let signals be heard: background jobs ignore SIGINT, nohup ignores SIGHUP, and so would children."""
    gc.disable()  # a quarter of the collection of tests, which makes objects that all stay
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files of such frameworks, which import them, where slow tests are left out."""
    quick = config.option.markexpr == "not slow"
    return True if quick and _frameworks_of_file(collection_path) & SLOW_TO_IMPORT else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what takes seconds to import or to compile; let the longest tests come first."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if _frameworks(item) & {*SLOW_TO_IMPORT, "compile"}:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Let no later collection of garbage look at what the imports and the tests' items have made."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let no later collection of garbage look at what the tests of a file leave, such as a framework."""
    if nextitem and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        if "tensorflow" in _frameworks(item) and not _tensorflow_has_a_gpu():
            pytest.skip("needs a TensorFlow that finds the CUDA device")


def _frameworks(item: pytest.Item) -> set[str]:
    """What a test is of, by its file's name or its parameters."""
    chosen = getattr(item, "callspec", None)
    return _frameworks_of_file(item.path) | {
        str(value) for value in (chosen.params.values() if chosen else ())
    }


def _frameworks_of_file(path: Path) -> set[str]:
    words = {*path.parts, *path.stem.split("_")}
    return words & SLOW_TO_IMPORT | ({"tensorflow"} if "tf_backend" in words else set())


@functools.cache
def _tensorflow_has_a_gpu() -> bool:
    tensorflow = pytest.importorskip("tensorflow")
    return bool(tensorflow.config.list_physical_devices("GPU"))
