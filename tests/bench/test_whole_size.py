"""The loss of a window of a workload's own size: what shows with size alone is refused."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import wrong_variant

from ptb_lm.bench import parity, variants, whole_size
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model import backend, reference
from ptb_lm.model.backend import FRAMEWORKS
from ptb_lm.model.config import Config

TASK = LanguageTask(
    config=Config(hidden_size=40, embedding_size=30, num_steps=20, keep_prob=0.5), vocabulary_size=500
)
PRECISIONS = [name for name in FRAMEWORKS["torch"].precisions if name not in FRAMEWORKS["torch"].needs_cuda]
Weights = dict[str, np.ndarray]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_right_model_passes(precision: str, seed: int) -> None:
    build = Variant("torch/cudnn", "").builder(
        variants.LANGUAGE_MODELS, device="cpu", precision=precision, seed=1
    )
    found = whole_size.check(TASK, build, precision=precision, seed=seed)
    assert 0 <= found["whole_loss_error"] < (1e-3 if precision in ("bf16", "fp16") else 1e-6)
    assert found["whole_rows"] == 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_swapped_gates_are_refused(precision: str, seed: int) -> None:
    build = functools.partial(wrong_variant.build, precision=precision)
    with pytest.raises(parity.WrongError, match=r"its loss at the workload's size is off by"):
        whole_size.check(TASK, build, precision=precision, seed=seed)


def test_what_is_wrong_with_large_sizes_alone_is_refused() -> None:
    """A vocabulary whose ids are kept in a byte: right for the cut, wrong for the workload."""

    def build(config: Config, weights: Weights) -> backend.Backend:
        model = wrong_variant.build_right(config, weights)
        evaluate = model.evaluate_step
        model.evaluate_step = lambda x, y, state: evaluate(x % 256, y, state)
        return model

    parity.check(TASK, build, precision="fp32", seed=3)
    with pytest.raises(parity.WrongError, match=r"more than 1e-04"):
        whole_size.check(TASK, build, precision="fp32", seed=3)


def test_a_loss_that_is_no_number_is_refused() -> None:
    def build(config: Config, weights: Weights) -> backend.Backend:
        return wrong_variant.build_right(config, {n: np.full_like(w, np.nan) for n, w in weights.items()})

    with pytest.raises(parity.WrongError, match="off by nan"):
        whole_size.check(TASK, build, precision="fp32", seed=3)


def test_of_a_window_that_takes_too_long_some_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def build(config: Config, weights: Weights) -> backend.Backend:
        model = wrong_variant.build_right(config, weights)
        evaluate = model.evaluate_step

        def spied(x: Any, y: Any, state: Any) -> Any:
            seen.append(x.shape)
            return evaluate(x, y, state)

        model.evaluate_step = spied
        return model

    monkeypatch.setattr(whole_size, "MULTIPLY_ADDS", TASK.multiply_adds * 7.5 / 20)
    assert whole_size.check(TASK, build, precision="fp32", seed=3)["whole_rows"] == 7
    monkeypatch.setattr(whole_size, "MULTIPLY_ADDS", 1.0)
    assert whole_size.check(TASK, build, precision="fp32", seed=3)["whole_rows"] == 1
    assert seen == [(7, 19), (1, 19)]


def test_every_workload_as_declared_is_compared_whole() -> None:
    for suite in SUITES.values():
        for workload in suite.workloads:
            if isinstance(workload.task, LanguageTask):
                assert workload.task.multiply_adds <= whole_size.MULTIPLY_ADDS, workload.name


def test_the_forward_pass_alone_is_the_reference_s() -> None:
    task = dataclasses.replace(TASK, config=TASK.config.replace(batch_size=3, num_steps=5))
    weights = parity.random_weights(task.shapes, 1, np.float64)
    x_BT, y_BT = task.window(seed=1)
    expected, _, _ = reference.loss_and_gradients(weights, x_BT, y_BT, reference.zero_state(weights, 3))
    assert whole_size._loss(weights, x_BT, y_BT) == pytest.approx(3 * expected, rel=1e-12)
