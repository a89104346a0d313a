"""What the benchmark refuses to time: a variant that computes something else."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import wrong_variant
from support import installed

from ptb_lm import classifier
from ptb_lm.bench import parity, variants, whole_size
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import ClassifierTask, LanguageTask
from ptb_lm.classifier import ClassifierConfig
from ptb_lm.errors import UserError
from ptb_lm.model import backend
from ptb_lm.model.backend import FRAMEWORKS
from ptb_lm.model.config import Config

LANGUAGE = LanguageTask(
    config=Config(num_layers=2, hidden_size=7, embedding_size=5, keep_prob=0.5), vocabulary_size=50
)
CLASSIFIERS = {
    loss: ClassifierTask(
        config=ClassifierConfig(
            input_size=4, hidden_sizes=(5, 3), classes=6, bidirectional=True, loss=loss, clip_value=1e-9
        ),
        batch_size=8,
        steps=40,
        shortest=20,
        labels=9,
    )
    for loss in ("cross_entropy", "ctc")
}
CHOSEN = {"device": "cpu", "seed": 1}


# What a CPU has of them: TF32 is a rounding that only a GPU does.
PRECISIONS = [name for name in FRAMEWORKS["torch"].precisions if name not in FRAMEWORKS["torch"].needs_cuda]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", FRAMEWORKS["torch"].models)
def test_right_language_models_pass(model: str, precision: str) -> None:
    build = Variant(f"torch/{model}", "").builder(variants.LANGUAGE_MODELS, precision=precision, **CHOSEN)
    errors = parity.check(LANGUAGE, build, precision=precision, seed=3)
    assert 0 <= errors["loss_error"] < errors["bound"]
    assert 0 < errors["gradient_error"] < errors["bound"]


@installed("tensorflow")
@pytest.mark.parametrize("precision", variants.LANGUAGE_MODELS["plain-tensorflow"].precisions)
def test_the_plain_loop_of_keras_passes(precision: str) -> None:
    """Torch's has a file of its own, test_bench_plain.py."""
    build = Variant("plain-tensorflow/keras", "").builder(
        variants.LANGUAGE_MODELS, precision=precision, **CHOSEN
    )
    parity.check(LANGUAGE, build, precision=precision, seed=3)
    whole_size.check(LANGUAGE, build, precision=precision, seed=3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", FRAMEWORKS["torch"].precisions)
@pytest.mark.parametrize("model", FRAMEWORKS["torch"].models)
def test_right_language_models_pass_on_a_gpu(model: str, precision: str) -> None:
    build = Variant(f"torch/{model}", "").builder(
        variants.LANGUAGE_MODELS, precision=precision, device="cuda", seed=1
    )
    parity.check(LANGUAGE, build, precision=precision, seed=3)
    whole_size.check(LANGUAGE, build, precision=precision, seed=3)


@pytest.mark.gpu
def test_the_plain_loop_passes_in_tf32_on_a_gpu() -> None:
    build = Variant("plain-torch/cudnn@tf32", "").builder(
        variants.LANGUAGE_MODELS, precision="fp32", device="cuda", seed=1
    )
    parity.check(LANGUAGE, build, precision="tf32", seed=3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_swapped_gates_are_refused_in_every_precision(precision: str, seed: int) -> None:
    build = functools.partial(wrong_variant.build, precision=precision)
    with pytest.raises(parity.WrongError, match=r"is off by .* from the NumPy reference's"):
        parity.check(LANGUAGE, build, precision=precision, seed=seed)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_refused_as_single(precision: str) -> None:
    """A bound tells the precisions apart: what rounds to 8 or 11 bits is no float32."""
    build = Variant(f"torch/cudnn@{precision}", "").builder(
        variants.LANGUAGE_MODELS, precision="fp32", **CHOSEN
    )
    with pytest.raises(parity.WrongError, match="more than 1e-04"):
        parity.check(LANGUAGE, build, precision="fp32", seed=3)


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_right_classifiers_pass(loss: str) -> None:
    build = Variant("torch/basic", "").builder(variants.CLASSIFIERS, precision="fp32", **CHOSEN)
    parity.check(CLASSIFIERS[loss], build, precision="fp32", seed=3)


@pytest.mark.parametrize("task", [LANGUAGE, *CLASSIFIERS.values()])
def test_swapped_gates_are_refused(task: Any) -> None:
    with pytest.raises(parity.WrongError, match=r"is off by .* from the NumPy reference's"):
        parity.check(task, wrong_variant.build, precision="fp32", seed=3)


def test_a_gradient_alone_that_is_wrong_is_refused_by_name() -> None:
    def build(config: Config, weights: dict[str, np.ndarray]) -> backend.Backend:
        model = wrong_variant.build_right(config, weights)
        export = model.export_weights

        def off() -> dict[str, np.ndarray]:
            found = export()
            found["lstm.1.bias"] = found["lstm.1.bias"] * np.float32(1.01)
            return found

        model.export_weights = off
        return model

    with pytest.raises(parity.WrongError, match=r"gradient of lstm\.1\.bias is off"):
        parity.check(LANGUAGE, build, precision="fp32", seed=3)


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_a_classifier_whose_step_does_not_train_is_refused(loss: str) -> None:
    def build(config: ClassifierConfig, weights: dict[str, np.ndarray]) -> classifier.Classifier:
        model = classifier.build(config, weights, framework="torch", model="basic", device="cpu")
        model.train_step = model.forward_step  # type: ignore[method-assign]
        return model

    task = CLASSIFIERS[loss]
    task = dataclasses.replace(task, config=dataclasses.replace(task.config, clip_value=None))
    with pytest.raises(parity.WrongError, match=r"loss after [12] training steps is off"):
        parity.check(task, build, precision="fp32", seed=3)


@pytest.mark.parametrize("task", [LANGUAGE, CLASSIFIERS["ctc"]])
def test_a_gradient_that_is_not_clipped_is_refused(task: Any) -> None:
    def build(config: Any, weights: dict[str, np.ndarray]) -> Any:
        if isinstance(config, Config):
            return wrong_variant.build_right(config.replace(max_grad_norm=1e9), weights)
        loose = dataclasses.replace(config, clip_value=None)
        return classifier.build(loose, weights, framework="torch", model="basic", device="cpu")

    with pytest.raises(parity.WrongError, match="is off by"):
        parity.check(task, build, precision="fp32", seed=3)


def test_carried_state_that_is_dropped_is_refused() -> None:
    def build(config: Config, weights: dict[str, np.ndarray]) -> backend.Backend:
        model = wrong_variant.build_right(config, weights)
        evaluate = model.evaluate_step
        model.evaluate_step = lambda x, y, state: evaluate(x, y, model.zero_state(len(x)))
        return model

    with pytest.raises(parity.WrongError, match="loss in window 1 is off"):
        parity.check(LANGUAGE, build, precision="fp32", seed=3)


def test_a_loss_that_is_no_number_is_refused() -> None:
    def build(config: ClassifierConfig, weights: dict[str, np.ndarray]) -> classifier.Classifier:
        broken = {name: np.full_like(array, np.nan) for name, array in weights.items()}
        return classifier.build(config, broken, framework="torch", model="basic", device="cpu")

    task = dataclasses.replace(CLASSIFIERS["cross_entropy"], shortest=None)
    with pytest.raises(parity.WrongError, match="off by nan"):
        parity.check(task, build, precision="fp32", seed=3)


def test_all_layers_in_one_call_pass() -> None:
    config = ClassifierConfig(input_size=4, hidden_sizes=(5, 5, 5), classes=6)
    build = Variant("one-call-torch/cudnn", "").builder(variants.CLASSIFIERS, precision="fp32", **CHOSEN)
    task = ClassifierTask(config=config, batch_size=8, steps=40)
    parity.check(task, build, precision="fp32", seed=3)
    with pytest.raises(UserError, match="layers of one size"):
        build(dataclasses.replace(config, hidden_sizes=(5, 4)), {})
