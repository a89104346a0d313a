"""Dropout of every kind, in every model of both frameworks: its masks, and what is computed with them."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import training_steps
from _pytest.mark import ParameterSet
from support import CUDNN_FP32, installed, random_windows, trace_alone
from training_steps import COMPUTED, VOCABULARY, assert_steps_equal_the_reference, skip_what_a_gpu_refuses

from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, MaskSpec, mask_specs
from ptb_lm.model.frameworks import FRAMEWORKS

HALF = {"fp16": 2.5e-4, "bf16": 2e-3}
BOUND = {"fp32": 1e-5, "fp64": 1e-11, **HALF}

# Bounds on the gradient that clip some steps and not others; a cell that is not here has the LSTM's.
CLIPPED_AT = {LSTM: 1.2, "gru": 2.0}

UNITS = {"embedding_size": 5, "keep_prob": 0.5}
WEIGHTS = {"embedding_keep_prob": 0.6, "recurrent_keep_prob": 0.7}
CASES: dict[str, dict[str, Any]] = {
    "units": UNITS,
    "units of a window": {**UNITS, "embedding_size": 9, "variational": True},  # wider than the layers
    "words": {"embedding_keep_prob": 0.6},
    "recurrent weights": {"recurrent_keep_prob": 0.7},
    "tied, nothing dropped": {"tie_weights": True},
    "tied words": {"tie_weights": True, "embedding_keep_prob": 0.6},
    "by place": {
        "num_layers": 3,
        "layer_sizes": (6, 8, 5),
        "embedding_size": 9,
        "input_keep_prob": 0.5,
        "between_keep_prob": 0.7,
        "output_keep_prob": 0.9,
    },
    "between alone, tied": {
        "num_layers": 3,
        "between_keep_prob": 0.6,
        "variational": True,
        "tie_weights": True,
    },
    "all": {**UNITS, **WEIGHTS},
    "all, tied": {**WEIGHTS, "keep_prob": 0.5, "tie_weights": True, "variational": True},
}

every_framework = pytest.mark.parametrize(
    "framework", [pytest.param(framework, marks=installed(framework)) for framework in FRAMEWORKS]
)


@pytest.fixture
def tiny_config(short_config: Config) -> Config:
    """The sizes of all of these tests."""
    return short_config


def variants() -> Iterator[ParameterSet]:
    """Everything at once in every execution, and each by itself as it is run by default.

    A cell beyond the LSTM: everything at once, as it is run by default.
    """
    for framework, model, cell in COMPUTED:
        row = FRAMEWORKS[framework]
        options = row.options(model)
        precisions = [name for name in options["precision"] if name in BOUND]
        for execution, unroll, precision in itertools.product(
            options["execution"], options["unroll"], precisions
        ):
            by_default = (execution, unroll) == (row.executions[0], row.unrolls[0])
            if not by_default and precision != precisions[-1]:
                continue
            if cell != LSTM and (not by_default or precision in HALF):
                continue
            for case in CASES:
                by_itself = by_default and precision not in HALF and cell == LSTM
                if not (by_itself or case.startswith("all")):
                    continue
                choice = (framework, model, cell, execution, unroll, precision)
                if is_for_a_cpu(*choice, case):
                    yield pytest.param(*choice, "cpu", case, marks=installed(framework))
                if framework == "torch" or by_default:
                    marks = [installed(framework), pytest.mark.gpu]
                    yield pytest.param(*choice, "cuda", case, marks=marks)


def is_for_a_cpu(
    framework: str, model: str, cell: str, execution: str, unroll: str, precision: str, case: str
) -> bool:
    """Return whether a CPU computes it, too: each case by itself in one model, all at once in the others.

    Masks are drawn, and units and words dropped, outside of the layers. A layer sees its input, and its
    recurrent kernel after it was multiplied. tests/test_backend_contract.py runs every model in every
    execution, and with every unroll, without dropout.
    """
    row = FRAMEWORKS[framework]
    if execution in row.needs_cuda or (framework, execution) == ("torch", "eager"):
        return False  # auto is eager there
    simplest = (model, cell) == ("basic", LSTM)
    if others := (execution != row.executions[0]) + (unroll != row.unrolls[0]):
        both = (len(row.executions) > 1) + (len(row.unrolls) > 1)  # of them at once, where there are both
        return simplest and others == both and case == "all, tied"
    if precision == row.options(model)["precision"][-1]:
        return simplest or case == "all"
    # Keras's layer computes in its own way, and in float32 by default.
    return case == "all, tied" and (framework == "torch" or simplest or model == "cudnn")


def build(config: Config, **choice: str) -> Any:
    with skip_what_a_gpu_refuses(choice["device"]):
        return training_steps.build(config, **choice)


def stream_of(built: Any) -> Any:
    """A backend's random stream of masks."""
    training = built.training
    return training.dropouts[0] if hasattr(training, "dropouts") else training.dropout


def drawn_by(built: Any) -> Callable[[], Masks[np.ndarray]]:
    """Return a function that draws a backend's next masks, without any training."""
    size = {"batch": built.config.batch_size, "steps": built.config.num_steps}
    stream = stream_of(built)
    return lambda: stream.draw(**size).map(array_of)


def array_of(mask: Any) -> np.ndarray:
    on_cpu = mask.double().cpu() if type(mask).__module__.startswith("torch") else mask
    return np.asarray(on_cpu.numpy(), np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "model", "cell", "execution", "unroll", "precision", "device", "case"), list(variants())
)
def test_twenty_training_steps_equal_the_reference_with_the_same_masks(
    framework: str,
    model: str,
    cell: str,
    execution: str,
    unroll: str,
    precision: str,
    device: str,
    case: str,
    tiny_config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loss, norm, every weight and so every gradient; the masks are those that the model tells before."""
    max_grad_norm = CLIPPED_AT.get(cell, CLIPPED_AT[LSTM])
    config = tiny_config.replace(max_grad_norm=max_grad_norm, cell=cell, **CASES[case])
    choice = {
        "framework": framework,
        "model": model,
        "execution": execution,
        "unroll": unroll,
        "precision": precision,
        "device": device,
    }
    if device == "cpu":
        trace_alone(monkeypatch)
    built, bound = build(config, **choice), BOUND[precision]
    if (device, precision) == ("cuda", "fp32") and model in {"cudnn", "persistent"}:
        bound = CUDNN_FP32
    assert ("softmax.kernel" in built.export_weights()) != config.tie_weights
    # XLA compiles how it draws the masks whenever it is asked for them.
    windows = random_windows(config, VOCABULARY, 6 if execution == "xla" else 20, seed=2)
    assert_steps_equal_the_reference(built, windows, bound=bound, rate=0.7)


@every_framework
def test_masks_are_the_same_for_all_models_and_others_for_another_seed(
    framework: str, tiny_config: Config
) -> None:
    config = tiny_config.replace(**CASES["all"])
    choice = {"framework": framework, "device": "cpu", "precision": "fp32"}
    streams = [drawn_by(build(config, model=model, **choice)) for model in FRAMEWORKS[framework].models]
    model = next(iter(FRAMEWORKS[framework].models))
    other = drawn_by(training_steps.build(config, model=model, seed=4, **choice))
    for _ in range(3):
        first, *rest = [draw() for draw in streams]
        another = other()
        assert list(first.weights) == ["embedding", "lstm.0.recurrent_kernel", "lstm.1.recurrent_kernel"]
        for masks in rest:
            for name, mask in first.weights.items():
                np.testing.assert_array_equal(masks.weights[name], mask)
            for mask, expected in zip(masks.units, first.units, strict=True):
                np.testing.assert_array_equal(mask, expected)
        assert any((another.weights[name] != mask).any() for name, mask in first.weights.items())
        assert any((mask != ours).any() for mask, ours in zip(another.units, first.units, strict=True))


PLACES = ("input_keep_prob", "between_keep_prob", "output_keep_prob")


@every_framework
def test_a_place_that_keeps_all_does_and_one_that_is_as_the_others_draws_what_they_draw(
    framework: str, tiny_config: Config
) -> None:
    """The random stream does not depend on how the same keep probabilities are said."""
    choice = {"framework": framework, "model": "basic", "device": "cpu", "precision": "fp32"}

    def draw(**changes: float) -> Masks[np.ndarray]:
        return drawn_by(build(tiny_config.replace(**changes), **choice))()

    usual, named = draw(keep_prob=0.5), draw(**dict.fromkeys(PLACES, 0.5))
    some = draw(keep_prob=0.5, input_keep_prob=1.0, output_keep_prob=0.9)
    for mask, expected in zip(named.units, usual.units, strict=True):
        np.testing.assert_array_equal(mask, expected)
    assert (some.units[0] == 1).all()
    np.testing.assert_array_equal(some.units[1], usual.units[1])
    # What 0.5 keeps 0.9 keeps, too: both compare the same random numbers.
    assert (some.units[2][usual.units[2] != 0] != 0).all()
    assert (some.units[2] != 0).sum() > (usual.units[2] != 0).sum()


# Sizes of the real model, so that rates are known well.
LARGE = {"hidden_size": 650, "num_layers": 2, "num_steps": 35, "batch_size": 20}


@every_framework
@pytest.mark.parametrize("variational", [False, True])
def test_masks_keep_at_their_rate_and_the_mean_and_are_fresh_each_window(
    framework: str, variational: bool, tiny_config: Config
) -> None:
    config = tiny_config.replace(
        **LARGE,
        keep_prob=0.65,
        embedding_keep_prob=0.8,
        recurrent_keep_prob=0.7,
        variational=variational,
    )
    built = build(config, framework=framework, model="basic", device="cpu", precision="fp32")
    stream_of(built).vocabulary_size = 10_000
    draw = drawn_by(built)
    windows = [draw(), draw()]
    expected = mask_specs(config, 10_000, batch=20, steps=35)
    pairs = []
    for masks in windows:
        assert masks.weights.keys() == expected.weights.keys()
        drawn = [*masks.weights.values(), *masks.units]
        pairs.append(drawn)
        for mask, spec in zip(drawn, [*expected.weights.values(), *expected.units], strict=True):
            assert mask.shape == spec.shape
            check_rate(mask, spec)
    for first, second in zip(*pairs, strict=True):
        kept = [(mask != 0).mean() for mask in (first, second)]
        both = ((first != 0) & (second != 0)).mean()
        # Independent of the window before.
        assert both == pytest.approx(kept[0] * kept[1], abs=5 / first.size**0.5)


@every_framework
@pytest.mark.parametrize("keep_prob", [0.35, 0.5, 0.9])
def test_each_mask_is_a_fresh_one(framework: str, keep_prob: float) -> None:
    spec: Any = MaskSpec((35, 20, 650), keep_prob)
    draw: Callable[[], Any]
    if framework == "torch":
        torch, dropout = (importlib.import_module(name) for name in ("torch", "ptb_lm.torch_backend.dropout"))
        draw = partial(dropout.draw_mask, spec, torch.Generator().manual_seed(0), torch.float32)
    else:
        tf, dropout = (importlib.import_module(name) for name in ("tensorflow", "ptb_lm.tf_backend.dropout"))
        draw = partial(dropout.draw_mask, dropout.new_stream(0), *spec, tf.float32)
    masks = [array_of(draw()) for _ in range(2)]
    for mask in masks:
        check_rate(mask, spec)
    assert (masks[0] != masks[1]).any()


def check_rate(mask: np.ndarray, spec: MaskSpec) -> None:
    """0 or 1 / keep_prob, kept at this rate, and along no axis the same."""
    kept, keep_prob = mask != 0, spec.keep_prob
    np.testing.assert_allclose(mask[kept], 1 / keep_prob, rtol=1e-6)
    variance = keep_prob * (1 - keep_prob)
    assert kept.mean() == pytest.approx(keep_prob, abs=5 * (variance / mask.size) ** 0.5)
    for axis, size in enumerate(mask.shape):
        if size > 1:
            means = kept.mean(axis)
            deviation = (2 / means.size) ** 0.5
            assert means.var() == pytest.approx(variance / size, rel=5 * deviation)


def test_nothing_is_drawn_by_default(tiny_config: Config) -> None:
    assert mask_specs(tiny_config, VOCABULARY, batch=3, steps=5) == Masks({}, [])


def test_places_are_of_the_widths_that_they_drop(tiny_config: Config) -> None:
    config = tiny_config.replace(embedding_size=4, keep_prob=0.5, recurrent_keep_prob=0.9)
    assert mask_specs(config, VOCABULARY, batch=3, steps=5) == Masks(
        {f"lstm.{layer}.recurrent_kernel": MaskSpec((7, 28), 0.9) for layer in (0, 1)},
        [MaskSpec((5, 3, width), 0.5) for width in (4, 7, 7)],
    )
    by_place = config.replace(
        num_layers=3, layer_sizes=(6, 8, 5), input_keep_prob=0.6, between_keep_prob=0.7, output_keep_prob=0.8
    )
    assert mask_specs(by_place, VOCABULARY, batch=3, steps=5) == Masks(
        {f"lstm.{layer}.recurrent_kernel": MaskSpec((h, 4 * h), 0.9) for layer, h in enumerate((6, 8, 5))},
        [MaskSpec((5, 3, width), keep_prob) for width, keep_prob in ((4, 0.6), (6, 0.7), (8, 0.7), (5, 0.8))],
    )
    # Where a place has a mask, all have: one that keeps everything is drawn, too.
    some = mask_specs(tiny_config.replace(between_keep_prob=0.5), VOCABULARY, batch=3, steps=5)
    assert [spec.keep_prob for spec in some.units] == [1, 0.5, 1]
    nowhere = tiny_config.replace(keep_prob=0.5, **dict.fromkeys(PLACES, 1.0))
    assert mask_specs(nowhere, VOCABULARY, batch=3, steps=5) == Masks({}, [])
    window = mask_specs(config.replace(variational=True), VOCABULARY, batch=3, steps=5)
    assert [spec.shape for spec in window.units] == [(1, 3, 4), (1, 3, 7), (1, 3, 7)]
    words = mask_specs(tiny_config.replace(embedding_keep_prob=0.8), VOCABULARY, batch=3, steps=5)
    assert words == Masks({"embedding": MaskSpec((VOCABULARY, 1), 0.8)}, [])
