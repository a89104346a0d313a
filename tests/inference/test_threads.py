"""A loaded model in threads, in copies and in other processes: every number is the serial one, to the bit."""

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import runs  # noqa: E402
from forked import python  # noqa: E402
from support import installed, random_weights  # noqa: E402

import ptb_lm  # noqa: E402
from ptb_lm.inference.language_model import LanguageModel  # noqa: E402
from ptb_lm.model import backend  # noqa: E402
from ptb_lm.model.presets import SMALL  # noqa: E402
from ptb_lm.torch_backend import cpu, native  # noqa: E402
from ptb_lm.torch_backend.settings import hold_settings  # noqa: E402

WORDS = ["<eos>", "<unk>", *(f"w{number}" for number in range(300))]
RANDOM = np.random.default_rng(0)
TEXT = [" ".join(RANDOM.choice(WORDS[1:], length)) for length in RANDOM.integers(0, 12, 12)]
CONFIG = SMALL.replace(hidden_size=48)

every_model = pytest.mark.parametrize(
    ("framework", "implementation", "precision"),
    [
        ("torch", "block_fused", "fp32"),
        ("torch", "block_fused", "bf16"),
        ("torch", "cudnn", "fp32"),
        ("torch", "basic", "fp32"),
        pytest.param("tensorflow", "block_fused", "fp32", marks=installed("tensorflow")),
    ],
)


def numbers(model: LanguageModel) -> list[Any]:
    """Return what each method says of the text."""
    each = [sentence.log_probabilities.tobytes() for sentence in model.score_each(TEXT, ahead=5)]
    whole = [sentence.log_probabilities.tobytes() for sentence in model.score(TEXT)]
    perplexities = [model.perplexity(TEXT, carry_state=carry_state) for carry_state in (True, False)]
    written = list(model.generate("w1 w2", 7, seed=3))
    return [each, whole, perplexities, written, model.predict(TEXT[0], 9), model.nearest("w5", 4)]


def count_flushed() -> int:
    """Return how many of a million denormal numbers this thread and its workers take for zero."""
    return int((torch.from_numpy(np.full(1_000_000, 1e-39, np.float32)) * 1e38 == 0).sum())


def settings() -> list[object]:
    """Return torch's own, of the process and of this thread and its workers."""
    backends: Any = torch.backends
    kept = backends.mkldnn.matmul, backends.cudnn.rnn, backends.cuda.matmul
    return [
        *(each.fp32_precision for each in kept),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        count_flushed(),
    ]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch compute in two threads, by whose number some libraries round."""
    count = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(count)


@pytest.fixture
def threads(two_threads: None) -> Iterator[futures.ThreadPoolExecutor]:
    """Eight threads, which computed before any model was loaded, and take turns all the time."""
    interval = sys.getswitchinterval()
    torch.set_flush_denormal(False)  # torch's default
    with futures.ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(lambda _: count_flushed(), range(64)))
        sys.setswitchinterval(1e-5)
        yield pool
        sys.setswitchinterval(interval)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., LanguageModel]:
    def load(*, factor: float = 1.0, seed: int = 1, precision: str = "fp32", **given: str) -> LanguageModel:
        weights = random_weights(CONFIG, len(WORDS), seed)
        weights["embedding"] /= factor
        weights["lstm.0.kernel"] *= factor
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run = runs.write_run(folder, WORDS, weights=weights, hidden_size=CONFIG.hidden_size, **given)
        return ptb_lm.load(run, precision=precision, model=given.get("model"))

    return load


@pytest.mark.slow
@every_model
def test_threads_get_the_serial_numbers_and_leave_no_setting(
    framework: str,
    implementation: str,
    precision: str,
    load: Callable[..., LanguageModel],
    threads: futures.ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two models at a time."""
    monkeypatch.setattr(backend, "MAX_LOGITS", 5_000)  # so that a text is read in many calls
    before, given = settings(), {"framework": framework, "model": implementation, "precision": precision}
    models = [load(seed=seed, **given) for seed in (1, 2)]
    expected = [numbers(model) for model in models]
    assert expected[0] != expected[1]
    assert list(threads.map(numbers, models * 4)) == expected * 4
    assert settings() == before
    assert list(threads.map(lambda _: settings(), range(16))) == [before] * 16


@pytest.mark.skipif(
    native.unavailable_reason() is not None, reason="torch's workers are told by kernels of our own"
)
def test_numbers_depend_on_no_thread_s_denormal_ones(
    load: Callable[..., LanguageModel], threads: futures.ThreadPoolExecutor
) -> None:
    """Which are the embeddings; the kernel is as large, so that it shows what a thread makes of them."""
    model = load(factor=1e38, model="block_fused")
    expected = numbers(model)
    for flush in (True, False):
        torch.set_flush_denormal(flush)
        assert numbers(model) == expected
        assert (count_flushed() > 0) == flush
    assert list(threads.map(numbers, [model] * 8)) == [expected] * 8


def test_settings_are_held_until_the_last_has_ended(threads: futures.ThreadPoolExecutor) -> None:
    """Who wants another value waits; the context that raises an error ends as any other."""
    products: Any = torch.backends.cuda.matmul
    before = settings()

    def precision_within(wanted: str) -> str:
        with hold_settings({(products, "fp32_precision"): wanted}), cpu.use_onednn():
            return str(products.fp32_precision)

    first, second = (hold_settings({(products, "fp32_precision"): "tf32"}) for _ in range(2))
    first.__enter__()
    second.__enter__()
    assert not first.__exit__(*(error := (ZeroDivisionError, ZeroDivisionError(), None)))
    assert threads.submit(precision_within, "tf32").result() == "tf32"
    waiting = threads.submit(precision_within, "ieee")
    assert not futures.wait([waiting], timeout=0.1).done
    assert not second.__exit__(*error)
    assert waiting.result() == "ieee"
    wanted = ["tf32", "ieee"] * 500
    assert list(threads.map(precision_within, wanted)) == wanted
    assert settings() == before


def test_a_call_with_other_settings_gets_a_turn(threads: futures.ThreadPoolExecutor) -> None:
    """However many others are always there."""
    begun, ended = threading.Barrier(8), threading.Event()

    def hold(precision: str) -> AbstractContextManager[None]:
        return hold_settings({(torch.backends.cuda.matmul, "fp32_precision"): precision})

    def compute() -> None:
        with hold("tf32"):
            begun.wait()
        while not ended.is_set():
            with hold("tf32"), hold("tf32"):  # who holds something may hold more
                ended.wait(0.02)

    def compute_once() -> None:
        with hold("ieee"):
            pass

    computing = [threads.submit(compute) for _ in range(7)]
    begun.wait()
    try:
        threads.submit(compute_once).result(timeout=60)
    finally:
        ended.set()
    futures.wait(computing)


@every_model
def test_a_copy_and_a_pickle_are_the_same_model(
    framework: str, implementation: str, precision: str, load: Callable[..., LanguageModel]
) -> None:
    model = load(framework=framework, model=implementation, precision=precision)
    model.score(TEXT[:3], carry_state=True)
    unused = pickle.loads(pickle.dumps(model))
    others = copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(unused))
    expected = numbers(model), model.predict("w7", carry_state=True)
    for other, shares in zip(others, (True, False, False), strict=True):
        assert (other.backend is model.backend) == shares
        assert (numbers(other), other.predict("w7", carry_state=True)) == expected


PROCESSES = """
import os, pickle, sys
import torch
torch.set_num_threads(2)
from ptb_lm.common.errors import UserError
import ptb_lm
with open({pickled!r}, "rb") as file:
    model = pickle.load(file)
print(model.score({text!r}).total.hex(), flush=True)
begun = model.score_each(["w1"] * 2, ahead=1)
next(begun)
pickled = pickle.dumps(model)
child = os.fork()
for again in (
    lambda: model.score("w1"),
    lambda: next(model.generate()),
    lambda: next(begun),
    lambda: ptb_lm.load({run!r}),
    pickle.loads(pickled).predict,  # a worker of multiprocessing that cannot unpickle its task never answers
):
    if not child:
        try:
            again()
        except UserError as error:
            print("spawn" in str(error), flush=True)
if not child:
    os._exit(0)
os.waitpid(child, 0)
print(model.score({text!r}).total.hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "implementation"),
    [
        ("torch", "block_fused"),  # our own kernels' threads
        ("torch", "cudnn"),
        pytest.param("tensorflow", "block_fused", marks=installed("tensorflow")),
    ],
)
def test_another_process_computes_the_same_or_refuses(
    framework: str,
    implementation: str,
    load: Callable[..., LanguageModel],
    tmp_path: Path,
    two_threads: None,
) -> None:
    """A new one has the pickled model. One that is forked has none of its parent's threads to wait for."""
    model = load(framework=framework, model=implementation)
    (tmp_path / "pickled").write_bytes(pickle.dumps(model))
    done = python(PROCESSES.format(pickled=f"{tmp_path}/pickled", run=f"{tmp_path}/0", text=TEXT))
    total = model.score(TEXT).total.hex()
    assert done.stdout.split() == [total, *["True"] * 5, total], done.stderr
