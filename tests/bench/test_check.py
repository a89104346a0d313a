"""What the benchmark compares before it times: right variants pass in every precision, wrong ones do not.

What can be wrong, in every workload of every suite, is in test_mutants.py.
"""

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import pytest
import wrong_variant
from sequence_classifier import ClassifierConfig
from support import (
    AfterOtherStepsError,
    Build,
    checked,
    checked_twice,
    installed,
    pytensor_interpreted,
    trace_alone,
)
from torch import nn

from benchmarks import classifier_check
from benchmarks.classifier_task import ClassifierTask
from ptb_lm.bench import check, variants
from ptb_lm.bench.check import bounds, dropout, expected, language_question, problem
from ptb_lm.bench.check.bounds import BOUNDS
from ptb_lm.bench.check.expected import WIDTH, count_sketch
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common import files
from ptb_lm.common.errors import UserError
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, mask_specs
from ptb_lm.model.frameworks import FRAMEWORKS

LANGUAGE = LanguageTask(
    config=Config(hidden_size=9, embedding_size=5, num_steps=8, batch_size=6, keep_prob=0.6),
    vocabulary_size=300,
)
# All that training may do otherwise.
EVERYTHING = dataclasses.replace(
    LANGUAGE,
    config=LANGUAGE.config.replace(
        embedding_size=0,
        variational=True,
        embedding_keep_prob=0.7,
        recurrent_keep_prob=0.8,
        tie_weights=True,
    ),
)
# As AWD-LSTM's, with factors that show at these sizes.
AWD = dataclasses.replace(
    EVERYTHING,
    config=EVERYTHING.config.replace(
        layer_sizes=(9, 7),
        input_keep_prob=0.9,
        between_keep_prob=0.8,
        output_keep_prob=0.7,
        activation_penalty=2.0,
        slowness_penalty=20.0,
        weight_decay=1e-2,
    ),
)
UNDROPPED = dataclasses.replace(LANGUAGE, config=LANGUAGE.config.replace(keep_prob=1.0))
# What is compiled unrolls a window's steps: there are fewer of them, and as many targets.
COMPILED, COMPILED_EVERYTHING, COMPILED_UNDROPPED = (
    dataclasses.replace(task, config=task.config.replace(num_steps=4, batch_size=12))
    for task in (LANGUAGE, EVERYTHING, UNDROPPED)
)
CLASSIFIERS = {
    loss: ClassifierTask(
        config=ClassifierConfig(
            input_size=4, hidden_sizes=(5, 3), classes=6, bidirectional=True, loss=loss, clip_value=0.01
        ),
        batch_size=6,
        steps=12,
        shortest=7,
        labels=3,
    )
    for loss in ("cross_entropy", "ctc")
}
RIVALS_CLASSIFIER = ClassifierTask(
    config=ClassifierConfig(input_size=4, hidden_sizes=(5, 3), classes=6), batch_size=6, steps=12
)
# What a CPU has of them: TF32 is a rounding that only a GPU does.
PRECISIONS = [name for name in FRAMEWORKS["torch"].precisions if name not in FRAMEWORKS["torch"].needs_cuda]
Weights = dict[str, np.ndarray]


def builder(name: str, *, precision: str = "fp32", device: str = "cpu", task: Any = LANGUAGE) -> Build:
    return Variant(name).builder(task.registry, precision=precision, device=device, seed=1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", FRAMEWORKS["torch"].models)
def test_right_language_models_pass(model: str, precision: str) -> None:
    found = checked(LANGUAGE, builder(f"torch/{model}", precision=precision), precision=precision)
    assert 0 <= found.errors["loss_error"] < found.errors["loss_bound"] == BOUNDS[precision].loss
    assert 0 < found.errors["gradient_error"] < found.errors["gradient_bound"] == BOUNDS[precision].gradient
    assert "same masks" in found.what["dropout"]
    assert found.first_step_seconds > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_penalties_decay_and_dropout_by_place_are_followed(precision: str) -> None:
    checked_twice(AWD, builder("torch/block_fused", precision=precision), precision=precision)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("activation_penalty", 0.0),
        ("activation_penalty", 2.1),
        ("slowness_penalty", 0.0),
        ("slowness_penalty", 21.0),
        ("weight_decay", 0.0),
        ("weight_decay", 1.1e-2),
        ("between_keep_prob", 0.7),
        ("output_keep_prob", 0.8),
    ],
)
def test_a_regulariser_that_is_left_out_or_is_another_is_refused(name: str, other: float) -> None:
    def build_another(config: Config, weights: Weights) -> Any:
        return mutants.right(config.replace(**{name: other}), weights)

    with pytest.raises(check.WrongError):
        checked(AWD, build_another)


@pytest.mark.parametrize("wrong", [None, {"weight_decay": 0.0}])
def test_a_step_whose_masks_nobody_tells_decays_the_weights(wrong: dict[str, float] | None) -> None:
    def build_secretive(config: Config, weights: Weights) -> Any:
        changes = wrong if wrong and config.has_dropout else {}
        return Secretive(mutants.right(config.replace(**changes), weights), weights)

    if wrong is None:
        checked(AWD, build_secretive)
        return
    with pytest.raises(check.WrongError, match="with dropout is off"):
        checked(AWD, build_secretive)


@pytest.mark.parametrize(
    ("changes", "flag"), [({"vary_num_steps": True}, "--vary-num-steps"), ({"optimizer": "adam"}, "adam")]
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        dataclasses.replace(LANGUAGE, config=LANGUAGE.config.replace(**changes))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        # What drops, and whether a model tells its masks, is asked whatever runs it.
        *(("torch/basic/jit", task) for task in (COMPILED, COMPILED_EVERYTHING, COMPILED_UNDROPPED)),
        pytest.param("torch/basic/compile", COMPILED_EVERYTHING, marks=pytest.mark.slow),
        *(
            pytest.param(f"tensorflow/{name}", task, marks=[installed("tensorflow"), pytest.mark.slow])
            for name, task in (
                ("basic", COMPILED),
                ("basic", COMPILED_EVERYTHING),
                ("basic", COMPILED_UNDROPPED),
                ("cudnn/eager", COMPILED_EVERYTHING),
                ("block/graph/loop", COMPILED_EVERYTHING),
                ("basic/xla", COMPILED),
                ("basic/xla", COMPILED_EVERYTHING),
            )
        ),
    ],
)
def test_the_timed_execution_is_compared_with_its_own_masks(
    name: str, task: LanguageTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA's masks, which are not TensorFlow's, of each shape too. Scoring, without any, is compiled once."""
    trace_alone(monkeypatch)
    once = name == "tensorflow/basic/xla" and task is COMPILED_EVERYTHING
    found = checked_twice(task, builder(name), passes=("train",) if once else ("forward", "train"))
    assert ("same masks" in found.what["dropout"]) == (task is not COMPILED_UNDROPPED)


@pytest.mark.slow
@installed("tensorflow")
@pytest.mark.parametrize("precision", variants.REGISTRY["plain-tensorflow"].precisions)
def test_the_plain_loop_of_keras_passes(precision: str) -> None:
    """Torch's has a file of its own, rivals/test_plain_torch.py."""
    build = builder("plain-tensorflow/keras", precision=precision)
    found = checked_twice(LANGUAGE, build, precision=precision)
    assert "mean of 4" in found.what["dropout"]


class Widening(mutants.Wrapped):
    """It exports its float32 weights as float64: copies of them, or lists."""

    def outwards(self, weights: mutants.Weights) -> Weights:
        return {
            name: w.astype(np.float64) if name == "embedding" else w.tolist() for name, w in weights.items()
        }


def test_words_that_occur_hundreds_of_times_in_a_window_are_rounded_as_often() -> None:
    """Each occurrence is an addition to the word's row, whose rounding is no error of the gradient."""
    config = Config(num_layers=3, hidden_size=12, embedding_size=8, num_steps=50, batch_size=128)
    task = LanguageTask(config=config, vocabulary_size=20)
    own, plain = builder("torch/cudnn"), builder("plain-torch/cudnn")
    for build in (own, plain, lambda *given: Widening(own(*given), given[1])):
        found = checked(task, build, seed=2)
        assert found.errors["gradient_error"] < BOUNDS["fp32"].gradient / 10
    with pytest.raises(check.WrongError, match="is off by"):
        checked(task, wrong_variant.build, seed=2)


@pytest.mark.gpu
@pytest.mark.parametrize("task", [LANGUAGE, EVERYTHING, UNDROPPED])
@pytest.mark.parametrize("precision", FRAMEWORKS["torch"].precisions)
@pytest.mark.parametrize("model", FRAMEWORKS["torch"].models)
def test_right_language_models_pass_on_a_gpu(model: str, precision: str, task: LanguageTask) -> None:
    """A CUDA graph by default: the masks that a replay draws are those that are told."""
    build = builder(f"torch/{model}", precision=precision, device="cuda")
    checked_twice(task, build, precision=precision, passes=("forward", "train"))


@pytest.mark.gpu
def test_the_plain_loop_passes_in_tf32_on_a_gpu() -> None:
    checked_twice(LANGUAGE, builder("plain-torch/cudnn@tf32", device="cuda"), precision="tf32")


@pytest.mark.parametrize("task", [LANGUAGE, UNDROPPED])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_swapped_gates_are_refused_in_every_precision(precision: str, seed: int, task: LanguageTask) -> None:
    build = functools.partial(wrong_variant.build, precision=precision)
    with pytest.raises(check.WrongError, match=r"off by .*reference"):
        checked(task, build, precision=precision, seed=seed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_handful_of_words_is_known_less_well(precision: str, seed: int) -> None:
    """What rounds in six targets does not cancel out as in hundreds; swapped gates are refused there, too."""
    config = Config(hidden_size=3, embedding_size=2, num_steps=3, batch_size=2)
    task = LanguageTask(config=config, vocabulary_size=7)
    for model in ("cudnn", "block_fused"):
        checked(task, builder(f"torch/{model}", precision=precision), precision=precision, seed=seed)
    with pytest.raises(check.WrongError, match="is off by"):
        checked(
            task, functools.partial(wrong_variant.build, precision=precision), precision=precision, seed=seed
        )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_refused_as_single(precision: str) -> None:
    """A bound tells the precisions apart: what rounds to 8 or 11 bits is no float32."""
    with pytest.raises(check.WrongError, match=f"more than {BOUNDS['fp32'].gradient:.0e}|more than 2e-06"):
        checked(LANGUAGE, builder(f"torch/cudnn@{precision}"))


@pytest.mark.parametrize("loss", CLASSIFIERS)
@pytest.mark.parametrize(
    "name",
    [
        "torch/basic",
        "torch/basic/jit",
        "torch/block_fused",
        "torch/cudnn@fp64",
        pytest.param("tensorflow/block_fused", marks=[installed("tensorflow"), pytest.mark.slow]),
    ],
)
def test_right_classifiers_pass(name: str, loss: str) -> None:
    task = CLASSIFIERS[loss]
    if "tensorflow" in name and loss == "cross_entropy":  # tracing both directions takes twice as long
        task = dataclasses.replace(task, config=dataclasses.replace(task.config, bidirectional=False))
    precision = Variant(name).precision or "fp32"
    found = checked_twice(task, builder(name, task=task), precision=precision, passes=("forward", "train"))
    assert found.errors["update_error"] < found.errors["update_bound"]
    assert found.what["dropout"] == "there is none"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_a_timed_step_follows_from_the_gradient_that_is_compared(loss: str, seed: int) -> None:
    """One that lacks a single time step differs in it, also where few signs of the gradient turn around."""
    task = CLASSIFIERS[loss]
    found = checked(task, mutants.right, seed=seed).errors
    assert found["adam_error"] < found["adam_bound"] / 4
    with pytest.raises(check.WrongError, match="from what Adam makes of its gradients"):
        checked(task, mutants.backward_cut, seed=seed)


@pytest.mark.slow
@installed("tensorflow")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's
def test_keras_s_classifier_passes() -> None:
    build = builder("keras-tensorflow/lstm", task=RIVALS_CLASSIFIER)
    checked_twice(RIVALS_CLASSIFIER, build, passes=("forward", "train"))


@pytest.mark.slow
@installed("pytensor")
def test_pytensor_s_classifier_passes() -> None:
    """Without a compiler, which takes minutes; test_pytensor.py compares what it makes."""
    config = dataclasses.replace(RIVALS_CLASSIFIER.config, hidden_sizes=(5,))
    task = dataclasses.replace(RIVALS_CLASSIFIER, config=config)
    with pytensor_interpreted():
        checked_twice(task, builder("pytensor/scan", task=task))


def test_all_layers_in_one_call_pass() -> None:
    config = ClassifierConfig(input_size=4, hidden_sizes=(5, 5, 5), classes=6)
    task = ClassifierTask(config=config, batch_size=8, steps=40)
    build = builder("one-call-torch/cudnn", task=task)
    checked_twice(task, build)
    with pytest.raises(UserError, match="layers of one size"):
        build(dataclasses.replace(config, hidden_sizes=(5, 4)), {})


class OwnNorm(mutants.Wrapped):
    """It finds a norm that is too small by a part of itself, tells it, and clips by it."""

    off = 1e-3

    def __init__(self, model: Any, weights: mutants.Weights) -> None:
        super().__init__(model, weights)
        make = model.training.make_clipping
        model.training.make_clipping = lambda norm, *, steps: make((1 - self.off) * norm, steps=steps)

    def read(self, losses: Any) -> Any:
        return [
            each._replace(gradient_norm=(1 - self.off) * each.gradient_norm)
            for each in self.model.read(losses)
        ]


@pytest.mark.parametrize("task", [LANGUAGE, EVERYTHING, UNDROPPED])
def test_a_norm_that_is_off_excuses_nothing_else(task: LanguageTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held to its own bound, and all else to bounds that do not know of it."""
    largest = max(math.prod(shape) for shape in task.shapes.values())
    monkeypatch.setattr(bounds, "NAIVE_SUM", 2e-3 / largest)
    found = checked(task, mutants.wrapped(OwnNorm)).errors
    of = BOUNDS["fp32"]
    assert found["norm_bound"] == pytest.approx(of.norm + 2e-3)
    assert found["norm_error"] == pytest.approx(OwnNorm.off, rel=0.05)
    for kind in ("loss", "gradient", "bias", "length"):
        assert found[f"{kind}_error"] <= found[f"{kind}_bound"] == getattr(of, kind)

    class SecondLossOff(OwnNorm):
        def __init__(self, model: Any, weights: Weights) -> None:
            self.factors = iter([1.0, 1 + 2e-5])
            super().__init__(model, weights)

        def read(self, losses: Any) -> Any:
            return [each._replace(nll=next(self.factors) * each.nll) for each in super().read(losses)]

    with pytest.raises(check.WrongError, match=r"loss in training step 2 is off by \d\.\de-05"):
        checked(task, mutants.wrapped(SecondLossOff))

    class ClipsByAnother(OwnNorm):
        def read(self, losses: Any) -> Any:
            return self.model.read(losses)

    with pytest.raises(
        check.WrongError, match=r"gradient of .* in training step 1 is off by (1\.0e-03|[89]\.\de-04)"
    ):
        checked(task, mutants.wrapped(ClipsByAnother))


def test_words_that_are_kept_in_five_bits_are_refused() -> None:
    class Bits(mutants.Wrapped):
        def train_step(self, x_BT: Any, y_BT: Any, state: Any, *, learning_rate: float) -> Any:
            return self.model.train_step(x_BT % 32, y_BT, state, learning_rate=learning_rate)

    with pytest.raises(check.WrongError, match="is off by"):
        checked(LANGUAGE, mutants.wrapped(Bits))


@pytest.mark.parametrize("task", [LANGUAGE, *CLASSIFIERS.values()])
def test_what_is_no_number_is_refused(task: Any) -> None:
    class NoNumber(mutants.Wrapped):
        def inwards(self, weights: mutants.Weights) -> Weights:
            return {name: np.full_like(array, np.nan) for name, array in weights.items()}

    with pytest.raises(check.WrongError, match="off by nan"):
        checked(task, mutants.wrapped(NoNumber))


def problem_weights(task: Any) -> Weights:
    steps = task.config.num_steps if isinstance(task, LanguageTask) else task.steps
    return problem.weights(task.shapes, steps=steps, seed=3)


class Secretive(mutants.Wrapped):
    """It does not tell its masks, as a framework's own layers do not."""

    next_masks = None


def test_masks_that_nobody_tells_are_met_by_a_second_model() -> None:
    found = checked(LANGUAGE, mutants.wrapped(Secretive))
    assert "mean of 4" in found.what["dropout"]


class Sharing(mutants.Wrapped):
    """It exports its own memory, as .detach().numpy() of a parameter does."""

    def export_weights(self) -> dict[str, np.ndarray]:
        return {name: view.value.numpy() for name, view in self.model.network.canonical_views().items()}


def test_weights_may_be_the_program_s_own_memory() -> None:
    checked(LANGUAGE, mutants.wrapped(Sharing))


@pytest.mark.parametrize("task", [LANGUAGE, EVERYTHING])
def test_masks_that_are_drawn_are_never_refused(task: LanguageTask) -> None:
    """Of 200 pairs of windows none: chance is believed."""
    rng, config = np.random.default_rng(1), task.config
    specs = mask_specs(config, task.vocabulary_size, batch=config.batch_size, steps=config.num_steps)
    for _ in range(200):
        windows = [
            Masks(
                {name: rng.random(spec.shape) < spec.keep_prob for name, spec in specs.weights.items()},
                [rng.random(spec.shape) < spec.keep_prob for spec in specs.units],
            )
            for _ in range(2)
        ]
        dropout.check_masks(task, windows)


@pytest.mark.parametrize("wrong", sorted(mutants.DROPPING))
def test_masks_that_nobody_tells_and_that_are_not_there_are_refused(wrong: str) -> None:
    task = dataclasses.replace(LANGUAGE, config=LANGUAGE.config.replace(batch_size=20, keep_prob=0.35))

    def build(config: Config, weights: Weights) -> Any:
        model = mutants.DROPPING[wrong] if config.keep_prob < 1 else mutants.right
        return Secretive(model(config, weights), weights)

    with pytest.raises(check.WrongError, match="standard deviations"):
        checked(task, build)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 60, "keep_prob": 1.0, "embedding_keep_prob": 0.5, "recurrent_keep_prob": 0.5},
        {"batch_size": 60, "keep_prob": 0.5},
        {"batch_size": 1, "keep_prob": 0.5},
    ],
)
def test_the_deviation_of_a_loss_is_what_masks_make_it(changes: dict[str, float]) -> None:
    """Masks of weights are the same for all rows: their part is as large in a mean over these."""
    task = dataclasses.replace(LANGUAGE, config=LANGUAGE.config.replace(**changes))
    question = dropout.Losses(task, 3)
    model, (x_BT, y_BT) = mutants.right(task.config, question.weights), task.window(seed=3)
    state, losses = model.zero_state(task.batch_size), []
    for _ in range(100):
        _, loss = model.train_step(x_BT, y_BT, state, learning_rate=0.0)
        losses.append(model.read([loss])[0].nll / task.batch_size)
    found = float(question.answer()["deviation"])
    assert found == pytest.approx(np.std(losses, ddof=1), rel=0.5)


@pytest.mark.parametrize(
    ("mutant", "noun"),
    [
        (mutants.wrapped(mutants.NeverMoves), "does not move"),
        (mutants.wrapped(mutants.OneTensorStays), r"softmax\.bias"),
        (mutants.wrapped(mutants.WrongRate), "update .* 5.0e-02"),
        (mutants.clip_forgotten, "update .* clipping"),
        (mutants.masks_reused, "dropout .*equal"),
    ],
)
def test_a_mistake_of_the_timed_model_alone_is_refused(mutant: mutants.Mutant, noun: str) -> None:
    """A second model is compared in whole where a model reports no masks."""
    timed = Secretive(mutant(LANGUAGE.config, problem_weights(LANGUAGE)), problem_weights(LANGUAGE))
    with pytest.raises(check.WrongError, match=noun):
        check.check(LANGUAGE, mutants.wrapped(Secretive), timed, precision="fp32", seed=3)


@pytest.mark.parametrize(
    "wrong",
    [
        mutants.GatesSwapped,
        mutants.RecurrenceIgnored,
        mutants.BiasDropped,
        mutants.StateNotCarried,
        mutants.LastStepDropped,
        mutants.HalfOfTheBatch,
        mutants.OldWeights,
    ],
)
def test_a_plain_loop_is_compared_as_it_is_timed(wrong: type[mutants.Wrapped]) -> None:
    """Its dropout is switched off: what is wrong in the timed model alone is seen as anywhere else."""
    build, weights = builder("plain-torch/cudnn"), problem_weights(LANGUAGE)
    timed = wrong(build(LANGUAGE.config, weights), weights)
    timed.next_masks = None
    with pytest.raises(check.WrongError, match=r"(in training step|of window) .*is off by"):
        check.check(LANGUAGE, build, timed, precision="fp32", seed=3)


def test_a_plain_loop_that_goes_wrong_later_is_refused_then() -> None:
    stale = mutants.stale_after_a_comparison(LANGUAGE, builder("plain-torch/cudnn"))
    with pytest.raises(AfterOtherStepsError, match="off by"):
        checked_twice(LANGUAGE, stale)


@pytest.mark.parametrize("task", [LANGUAGE, UNDROPPED, *CLASSIFIERS.values()])
def test_what_is_timed_is_compared_and_not_what_is_built(task: Any) -> None:
    weights = problem_weights(task)
    timed = mutants.GatesSwapped(mutants.right(task.config, weights), weights)
    with pytest.raises(check.WrongError, match="is off by"):
        check.check(task, mutants.right, timed, precision="fp32", seed=3)


def test_a_plain_loop_that_leaves_out_the_top_output_s_dropout_is_refused() -> None:
    task = dataclasses.replace(LANGUAGE, config=LANGUAGE.config.replace(batch_size=20, keep_prob=0.35))

    class Once(nn.Module):
        """Dropout at every first of two calls: on the embedding's output, and not on the top one."""

        def __init__(self, dropout: nn.Module) -> None:
            super().__init__()
            self.dropout, self.calls = dropout, 0

        @property
        def p(self) -> float:
            return self.dropout.p

        @p.setter
        def p(self, probability: float) -> None:
            self.dropout.p = probability

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.dropout(x) if self.calls % 2 else x

    def build(config: Config, weights: Weights) -> Any:
        loop = builder("plain-torch/cudnn")(config, weights)
        loop.network.dropout = Once(loop.network.dropout)
        return loop

    with pytest.raises(check.WrongError, match="top output"):
        checked(task, build)


@pytest.mark.parametrize("task", [UNDROPPED, *CLASSIFIERS.values()])
def test_of_a_large_task_some_rows_are_copies_of_others(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variant's batch is as large as ever, and what is wrong is refused."""
    if isinstance(task, ClassifierTask):
        config = dataclasses.replace(task.config, hidden_sizes=(5, 5))
        task = dataclasses.replace(task, config=config)
    seen = []
    monkeypatch.setattr(problem, "MULTIPLY_ADDS", task.multiply_adds * 3.9 / 6)

    class Spy(mutants.Wrapped):
        def train_step(self, *given: Any, **rate: float) -> Any:
            seen.append(given[0].x_BTI if hasattr(given[0], "x_BTI") else given[0])
            return self.model.train_step(*given, **rate)

    found = checked(task, mutants.wrapped(Spy))
    assert (found.errors["rows"], found.errors["distinct_rows"]) == (6, 3)
    compared = seen[: problem.STEPS] if isinstance(task, LanguageTask) else seen  # with the reference
    for step in compared:
        rows = np.nan_to_num(np.asarray(step))
        assert len(rows) == 6
        assert len({row.tobytes() for row in rows}) == 3
    for mutant in mutants.of(task, ("train",)).values():
        with pytest.raises(check.WrongError):
            checked(task, mutant)


def test_the_second_comparison_has_the_masks_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the reference need not answer again: for medium that takes it seconds."""
    keys, key = [], expected._key
    monkeypatch.setattr(expected, "_key", lambda question: keys.append(key(question)) or keys[-1])
    checked_twice(EVERYTHING, builder("torch/cudnn"))
    first, second = keys
    assert first == second


@pytest.mark.parametrize("tied", [False, True])
def test_dropout_leaves_gates_and_logits_as_large_as_they_are_without(tied: bool) -> None:
    """Or they saturate: in bfloat16 gradients of medium's default recipe were off by three times as much."""
    sizes = {"hidden_size": 400, "num_layers": 2, "tie_weights": tied}
    dropped = Config(
        **sizes,
        input_keep_prob=0.4,
        between_keep_prob=0.7,
        output_keep_prob=0.3,
        embedding_keep_prob=0.5,
        recurrent_keep_prob=0.6,
    )
    task = LanguageTask(config=dropped, vocabulary_size=400)
    weights, rng = problem.language_weights(task, seed=1), np.random.default_rng(2)

    def masked(values: Any, keep_prob: float) -> Any:
        return values * (rng.random(values.shape) < keep_prob) / keep_prob

    ones = rng.normal(size=(400, 400))  # what the cell puts out, or takes
    logits = weights["embedding"].T if tied else weights["softmax.kernel"]
    sums = {
        "words": masked(masked(ones if tied else weights["embedding"], 0.5), 0.4) @ weights["lstm.0.kernel"],
        "units": masked(ones, 0.7) @ weights["lstm.1.kernel"],
        "recurrent": ones @ masked(weights["lstm.0.recurrent_kernel"], 0.6),
        "logits": masked(ones, 0.3) @ logits / problem.LOGITS,
    }
    assert {name: float(found.std()) for name, found in sums.items()} == pytest.approx(
        dict.fromkeys(sums, 1.0), rel=0.05
    )


@pytest.mark.parametrize("task", [UNDROPPED, CLASSIFIERS["ctc"]])
def test_copies_lie_side_by_side(task: Any) -> None:
    """So that no part of the batch stands for all of it, nor one process's rows for another's."""
    rows = (
        language_question.LanguageQuestion(task, 3, (), False, 1).text
        if task is UNDROPPED
        else (np.nan_to_num(classifier_check.distinct_batch(task, distinct=3, seed=1).x_BTI))
    )
    names = [row.tobytes() for row in rows]
    assert [names.index(name) for name in names] == [0, 0, 2, 2, 4, 4]


@pytest.mark.parametrize("distinct", [1, 2, 3, 6])
def test_the_longest_and_the_shortest_are_among_the_distinct_rows(distinct: int) -> None:
    """Or a variant that stops before the last time step would pass."""
    task = CLASSIFIERS["ctc"]
    for seed in range(5):
        drawn, found = (
            task.batch(seed=seed),
            classifier_check.distinct_batch(task, distinct=distinct, seed=seed),
        )
        assert len(set(found.lengths_B)) == distinct, "the drawn ones differ from each other"
        assert found.lengths_B.max() == drawn.lengths_B.max()
        assert distinct == 1 or found.lengths_B.min() == drawn.lengths_B.min()
        for x_TI, length in zip(found.x_BTI, found.lengths_B, strict=True):
            assert np.isfinite(x_TI[:length]).all()
            assert np.isnan(x_TI[length:]).all()


def test_there_are_as_many_copies_of_each_row() -> None:
    for batch_size, distinct in ((20, 20), (6, 6), (7, 7)):
        assert problem.distinct_rows(LANGUAGE.with_batch_size(batch_size)) == distinct
    workloads = {
        (suite, workload.name): problem.distinct_rows(workload.task)
        for suite in SUITES
        for workload in SUITES[suite].workloads
    }
    assert workloads["ptb", "small"] == workloads["ptb", "medium"] == 20, "compared whole"
    assert workloads["ptb", "large"] == 5
    assert workloads["stacked-lm", "3x256"] == 32
    assert workloads["template", "turning-points"] == 50
    assert min(workloads.values()) >= problem.LEAST_ROWS


def test_an_answer_is_computed_once_and_one_that_is_broken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path)
    asked, answer = [], language_question.LanguageQuestion.answer
    monkeypatch.setattr(
        language_question.LanguageQuestion, "answer", lambda self: asked.append(self) or answer(self)
    )
    question = language_question.LanguageQuestion(UNDROPPED, 6, (), True, 3)
    first = expected.answer(question)
    (path,) = tmp_path.iterdir()
    np.testing.assert_equal(expected.answer(dataclasses.replace(question)), first)
    assert len(asked) == 1, "it was kept"

    whole = path.read_bytes()
    for broken in (b"", whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        path.write_bytes(broken)
        found = expected.answer(question)
        np.testing.assert_array_equal(found["0.loss"], first["0.loss"])
        assert path.read_bytes() == whole
    assert len(asked) == 4

    for changed in ({"seed": 4}, {"forward": False}, {"distinct": 3}, {"task": EVERYTHING}):
        expected.answer(dataclasses.replace(question, **changed))
    assert len(asked) == 8
    found = {*tmp_path.glob("reference-????????????????????????????????.safetensors")}
    assert len(found) == 5

    for other in found - {path}:
        other.write_bytes(whole)  # the answer to another question
    again = expected.answer(dataclasses.replace(question, seed=4))
    assert len(asked) == 9
    assert again["0.loss"] != first["0.loss"]


def test_the_oldest_answers_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(expected, "CACHED_ANSWERS", 2)
    for seed in range(4):
        expected.answer(classifier_check.ClassifierQuestion(CLASSIFIERS["cross_entropy"], 6, seed))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "question",
    [
        language_question.LanguageQuestion(UNDROPPED, 3, (), True, 3),
        classifier_check.ClassifierQuestion(CLASSIFIERS["ctc"], 2, 3),
    ],
)
def test_a_process_of_its_own_gives_the_same_answer(question: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "INLINE", 0)
    np.testing.assert_equal(expected._compute(question), question.answer())


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("kill -9 $$", "was ended by signal 9; perhaps for want of memory"),
        ("echo Traceback >&2; echo 'MemoryError: 8 TiB' >&2; exit 1", "status 1: MemoryError: 8 TiB"),
    ],
)
def test_a_process_of_the_reference_that_ends_is_told(
    program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(expected, "INLINE", 0)
    with pytest.raises(ChildProcessError, match=f"reference.*{re.escape(told)}$"):
        expected._compute(language_question.LanguageQuestion(UNDROPPED, 3, (), True, 3))


@pytest.mark.parametrize("shape", [(3, 5), (WIDTH,), (200, 800), (1000, 101)])
def test_a_count_sketch_is_linear_and_as_long_as_its_tensor(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    one, two = rng.standard_normal((2, *shape))
    assert count_sketch(one).size == min(one.size, WIDTH)
    np.testing.assert_allclose(
        count_sketch(one) - 3 * count_sketch(two), count_sketch(one - 3 * two), atol=1e-9
    )
    assert np.linalg.norm(count_sketch(one)) == pytest.approx(np.linalg.norm(one), rel=0.05)
    # What is wrong in a row, in a column, or in a single element alone, is as large.
    for part in [(slice(None), 2), (1, slice(None)), (1, 2)] if len(shape) == 2 else [(slice(0, 9),)]:
        wrong = np.zeros(shape)
        wrong[part] = 1.0
        assert np.linalg.norm(count_sketch(wrong)) == pytest.approx(np.linalg.norm(wrong), rel=0.05)


@pytest.mark.parametrize(
    ("name", "part"), [("lstm.1.bias", 0.001), *((name, 0.01) for name in LANGUAGE.shapes)]
)
def test_a_wrong_gradient_of_any_one_tensor_is_refused_by_name(name: str, part: float) -> None:
    class Off(mutants.Wrapped):
        def outwards(self, weights: mutants.Weights) -> Weights:
            moved = weights[name] - self.loaded[name].astype(np.float32)
            return {**weights, name: weights[name] + np.float32(part) * moved}

    with pytest.raises(check.WrongError, match=f"gradient of {name} in training step"):
        checked(LANGUAGE, mutants.wrapped(Off))


# With so many targets the length of a matrix is known better than the rest of it.
MOGRIFIER = dataclasses.replace(
    UNDROPPED, config=UNDROPPED.config.replace(cell="mogrifier_lstm", batch_size=50)
)


@pytest.mark.parametrize(("name", "is_right"), [("x_gates_bias", True), ("x_gates", False)])
def test_a_bias_for_each_round_is_a_bias(name: str, is_right: bool) -> None:
    """In bfloat16 a tenth of it is left to chance, and not of the length of a matrix."""

    class Longer(mutants.Wrapped):
        def outwards(self, weights: mutants.Weights) -> Weights:
            whole = f"mogrifier_lstm.0.{name}"
            moved = weights[whole] - self.loaded[whole].astype(np.float32)
            return {**weights, whole: weights[whole] + np.float32(0.1) * moved}

    if is_right:
        checked(MOGRIFIER, mutants.wrapped(Longer), precision="bf16")
        return
    with pytest.raises(check.WrongError, match=f"length of the gradient of .*{name} in"):
        checked(MOGRIFIER, mutants.wrapped(Longer), precision="bf16")


def test_biases_are_of_order_one_and_matrices_by_their_width() -> None:
    wide = dataclasses.replace(MOGRIFIER, config=MOGRIFIER.config.replace(hidden_size=900, num_layers=1))
    drawn = problem.language_weights(wide, seed=1)
    names = ("h_gates_bias", "x_gates", "h_gates")
    found = [float(drawn[f"mogrifier_lstm.0.{name}"].std()) for name in names]
    assert found == pytest.approx([1, 1 / math.sqrt(900), 1 / math.sqrt(5)], rel=0.1)


def test_what_multiplies_the_input_may_have_any_name() -> None:
    shapes = {
        "embedding": (11, 7),
        "lstm.0.from_input": (7, 28),
        "lstm.0.recurrent_kernel": (7, 28),
        "softmax.kernel": (7, 11),
    }
    drawn = problem.weights(shapes, steps=3, seed=1)
    assert {name: array.shape for name, array in drawn.items()} == shapes


def lengths(
    answered: expected.Answer, found: Mapping[str, np.ndarray], rounding: Mapping[str, float] | None = None
) -> dict[str, float]:
    errors = expected.gradient_errors(answered, "0", found, rounding)
    return {name: error.length for name, error in errors.items()}


def test_the_length_of_a_gradient_is_that_along_the_reference() -> None:
    generator = np.random.default_rng(0)
    gradients = {name: generator.normal(size=(40, 3)) for name in "abc"} | {"zero": np.zeros(5)}
    answered = expected.gradients("0", gradients)
    for factor in (0.95, 1.05):
        found = {name: factor * gradient.ravel() for name, gradient in gradients.items()}
        assert lengths(answered, found) == pytest.approx({"a": 0.05, "b": 0.05, "c": 0.05, "zero": 0})
    rounding = {name: 0.02 * np.linalg.norm(gradient) for name, gradient in gradients.items()}
    errors = lengths(answered, found, rounding)
    assert errors == pytest.approx({"a": 0.03, "b": 0.03, "c": 0.03, "zero": 0})

    beside = generator.normal(size=120)
    beside -= gradients["a"].ravel() * (beside @ gradients["a"].ravel()) / np.sum(gradients["a"] ** 2)
    found = {"a": gradients["a"].ravel() + beside, "b": np.full(120, np.nan), "c": gradients["c"].ravel()}
    errors = lengths(answered, found)
    assert errors["a"] == pytest.approx(0, abs=1e-12)
    assert expected.gradient_errors(answered, "0", found)["a"].whole > 0.5
    assert math.isnan(errors["b"])


@pytest.mark.parametrize("task", [EVERYTHING, *CLASSIFIERS.values()])
def test_what_computes_an_answer_is_part_of_its_key(task: Any) -> None:
    """Every file of the package that runs."""
    question: expected.Question = classifier_check.ClassifierQuestion(task, 6, seed=3)
    if isinstance(task, LanguageTask):
        question = language_question.LanguageQuestion(task, 6, (), True, seed=3)
    package = Path(expected.__file__).resolve().parents[2]
    names: set[str] = set()
    sys.setprofile(lambda frame, event, arg: names.add(frame.f_code.co_filename))
    question.answer()
    sys.setprofile(None)
    ran = {Path(name) for name in names}
    known = {path for pattern in expected.SOURCES for path in package.glob(pattern)}
    assert package / "model" / "reference.py" in ran
    assert not {path for path in ran if path.is_relative_to(package)} - known
