"""Functions that the tests share; fixtures are in conftest.py."""

import contextlib
import functools
import importlib
import importlib.util
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from ptb_lm.bench import check
from ptb_lm.bench.run import timed_steps
from ptb_lm.bench.workloads import Task
from ptb_lm.data import corpus
from ptb_lm.model import parameters, reference
from ptb_lm.model.config import Config

Build: TypeAlias = Callable[[Any, Mapping[str, np.ndarray]], Any]  # of a configuration and weights

ROOT = Path(__file__).resolve().parent.parent
# What cuDNN's float32 may be off by in a stack of small layers. Its tanh and sigmoid are approximate there,
# by less than 1e-5 on an H100 (a test in tests/torch_backend/test_stack.py). In float64 cuDNN is exact.
CUDNN_FP32 = 4e-5


def installed(framework: str) -> pytest.MarkDecorator:
    """Skip, with the reason, where a framework is not installed."""
    missing = importlib.util.find_spec(framework) is None
    return pytest.mark.skipif(missing, reason=f"{framework} is not installed")


def random_weights(config: Config, vocabulary_size: int, seed: int) -> dict[str, np.ndarray]:
    """Random canonical weights in float64, biases too: zero biases would hide swapped gates."""
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
    return list(corpus.windows(ids, config.num_steps))


def assert_arrays(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], *, atol: float = 0
) -> None:
    """Assert that arrays are those of the same names, to the bit unless there is a bound."""
    for name in found.keys() & expected.keys():
        if atol:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert found.keys() == expected.keys()


def name_state(state: Any, prefix: str = "") -> dict[str, Any]:
    """The arrays that the layers of an LSTM carry, or their gradients, by name: h.0, c.0, h.1 ..."""
    return {
        f"{prefix}{name}.{index}": array
        for index, pair in enumerate(state)
        for name, array in zip("hc", pair, strict=True)
    }


def reference_perplexity(weights: Mapping[str, np.ndarray], ids: np.ndarray, *, batch_size: int = 1) -> float:
    """The perplexity of a split, in so many rows, by NumPy in float64."""
    rows_BL = corpus.rows(ids, batch_size)
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    zero = reference.zero_state(weights, batch_size)
    loss, _, _ = reference.loss_and_gradients(weights, rows_BL[:, :-1], rows_BL[:, 1:], zero)
    return math.exp(loss / (rows_BL.shape[1] - 1))


def trace_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.compile run what it has traced, without making machine code of it, which takes long.

    What is traced, and how it is decomposed, is ours to get right. What Inductor makes of it is torch's.
    Tests of the simplest model and of those with operations of our own run it.
    """
    torch = importlib.import_module("torch")
    traced = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", traced)


class AfterOtherStepsError(Exception):
    """Not the first comparison has refused a model, but the second."""


def checked(
    task: Task, build: Build, *, precision: str = "fp32", seed: int = 3, passes: Collection[str] = ("train",)
) -> check.CheckResult:
    """Build a model and compare it."""
    model = timed_steps.prepare(task, build, seed=seed).model
    return check.check(task, build, model, precision=precision, seed=seed, passes=passes)


def checked_twice(
    task: Task, build: Build, *, precision: str = "fp32", passes: Collection[str] = ("train",)
) -> check.CheckResult:
    """Compare a model, let it do other steps, and compare it again, as the benchmark does before it times."""
    steps = timed_steps.prepare(task, build, seed=3)
    compare = functools.partial(
        check.check, task, build, steps.model, precision=precision, seed=3, passes=passes
    )
    found = compare()
    steps.restart()
    for pass_name in passes:
        steps.block(pass_name, 3, untimed=0)
    steps.restart()
    try:
        compare(earlier=found)
    except check.WrongError as error:
        raise AfterOtherStepsError(str(error)) from None
    return found


def numeric_gradient(loss: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """The gradient of a loss by an array that it reads, by central differences in float64."""
    gradient, step = np.zeros_like(array), 1e-5
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = loss()
        array[index] = kept - step
        gradient[index] = (above - loss()) / (2 * step)
        array[index] = kept
    return gradient


def assert_gradients(
    loss: Callable[[], float],
    weights: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    *,
    atol: float,
) -> None:
    """Assert that gradients are those of a loss by the arrays that it reads.

    By central differences of fourth order in float64, of each array along two random directions, in which
    every element moves by as much as the step or more: one that is wrong by more than the bound fails, and
    several that are wrong do not make up for each other in both.
    """
    assert gradients.keys() == weights.keys()
    rng = np.random.default_rng(3)
    for name, array in weights.items():
        for _ in range(2):
            direction = rng.uniform(1, 2, array.shape) * rng.choice([-1, 1], array.shape)
            numeric, kept = 0.0, array.copy()
            for step, weight in ((1e-4, 8 / 12e-4), (2e-4, -1 / 12e-4)):
                array[...] = kept + step * direction
                above = loss()
                array[...] = kept - step * direction
                numeric += weight * (above - loss())
            array[...] = kept
            assert (gradients[name] * direction).sum() == pytest.approx(numeric, rel=0, abs=atol), name


@contextlib.contextmanager
def pytensor_interpreted() -> Iterator[None]:
    """PyTensor's graphs without a compiler, which takes minutes for them."""
    import pytensor

    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        yield
