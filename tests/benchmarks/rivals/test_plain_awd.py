"""The plain AWD-LSTM: its own formulas in NumPy, the torch backend in float64, and torch's averaged SGD."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from support import assert_gradients, checked, checked_twice, random_weights
from torch import Tensor, nn

from benchmarks.rivals import plain_awd
from benchmarks.rivals.plain_awd import AWDLoop
from ptb_lm.bench import check
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import REGISTRY, Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import backend, dropout_places, parameters, reference
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.presets import PRESETS
from ptb_lm.torch_backend import cpu
from ptb_lm.training.window_plan import WindowPlan

VOCABULARY, ROWS = 11, 3
CLIP_EPSILON = 1e-6  # torch's clip_grad_norm_ adds it to the norm
# As it was published, but for the sizes; the penalties and the weight decay are large enough to be seen.
AWD = PRESETS["awd"].replace(
    layer_sizes=(6, 5, 4),
    num_steps=10,
    batch_size=ROWS,
    learning_rate=0.1,
    max_grad_norm=2.0,
    weight_decay=0.01,
)


def build(config: Config, weights: dict[str, np.ndarray]) -> AWDLoop:
    """Return the loop in float64."""
    return plain_awd.build(
        config, weights, Choice.create(model="cudnn", device="cpu", precision="fp64", seed=3)
    )


def windows(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return consecutive windows of random words, each of a length of its own, as a run has them."""
    ids = np.random.default_rng(0).integers(VOCABULARY, size=3000).astype(np.int32)
    splits = dict.fromkeys(("train", "valid", "test"), ids)
    plan = WindowPlan(Corpus(Vocabulary([f"w{i}" for i in range(VOCABULARY)]), splits), AWD, seed=1)
    found = list(itertools.islice(plan.windows(corpus.rows(ids, ROWS), 0), count))
    assert len({x_BT.shape[1] for x_BT, _ in found}) >= min(count, 5)
    return found


def numpy_loss(
    config: Config, weights: dict[str, np.ndarray], window: Any, state: Any, masks: dict[str, Any]
) -> tuple[float, float, Any]:
    """Return the mean loss of a word, the same with both penalties, and the state, by published formulas."""
    x_BT, y_BT = window
    *inner, last = masks["masks"]
    dropped = {**weights, **{name: weights[name] * mask for name, mask in masks["weight_masks"].items()}}
    raw_TBH, after, _ = reference.stack_forward(
        dropped, dropped["embedding"][x_BT.T], state, masks=[*inner, np.ones_like(last)]
    )
    output_TBH = raw_TBH * last
    log_p_TBV = reference.log_softmax(output_TBH @ weights["embedding"].T + weights["softmax.bias"])
    mean = -float(np.take_along_axis(log_p_TBV, y_BT.T[..., None], axis=-1).mean())
    activation = config.activation_penalty * np.square(output_TBH).mean()
    slowness = config.slowness_penalty * np.square(np.diff(raw_TBH, axis=0)).mean()
    return mean, mean + activation + slowness, after


def scaled(config: Config, kept: Masks[np.ndarray], steps: int) -> dict[str, Any]:
    """Return masks as the reference takes them."""
    specs = dropout_places.mask_specs(config, VOCABULARY, batch=ROWS, steps=steps)
    units = [mask / spec.keep_prob for mask, spec in zip(kept.units, specs.units, strict=True)]
    weights = {name: kept.weights[name] / spec.keep_prob for name, spec in specs.weights.items()}
    return {"masks": units, "weight_masks": weights}


@pytest.mark.parametrize("max_grad_norm", [2.0, 1e3], ids=["clipped", "not clipped"])
def test_a_step_is_that_of_the_published_formulas(max_grad_norm: float) -> None:
    """Its gradient, by finite differences of the loss of a word, in windows of different lengths."""
    config = AWD.replace(max_grad_norm=max_grad_norm)
    weights = random_weights(config, VOCABULARY, seed=1)
    loop = build(config, weights)
    state, numpy_state = loop.zero_state(ROWS), reference.zero_state(weights, ROWS)
    for window in windows(3):
        steps = window[0].shape[1]
        masks = scaled(config, loop.next_masks(ROWS, steps), steps)
        mean, _, next_state = numpy_loss(config, weights, window, numpy_state, masks)
        state, loss = loop.train_step(*window, state, learning_rate=config.learning_rate)
        (measured,) = loop.read([loss])
        assert measured.nll == pytest.approx(mean * steps * ROWS, rel=1e-12)
        # The published rate is 30 for a window of 70 steps; the norm is bounded by 0.25.
        rate, bound = config.learning_rate * steps, max_grad_norm / config.num_steps
        moved, norm = loop.export_weights(), measured.gradient_norm / steps
        assert (norm > bound) == (max_grad_norm == 2.0)
        gradients = {
            name: ((weights[name] - moved[name]) / rate - config.weight_decay * weights[name])
            / min(1, bound / (norm + CLIP_EPSILON))
            for name in weights
        }
        assert norm == pytest.approx(np.sqrt(sum(np.square(each).sum() for each in gradients.values())))
        assert_gradients(
            lambda given=(config, weights, window, numpy_state, masks): numpy_loss(*given)[1],
            weights,
            gradients,
            atol=1e-8,
        )
        weights, numpy_state = moved, next_state


@pytest.fixture
def masks_given(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A list of masks that torch's dropout takes one after the other, in place of its own."""
    given: list[Tensor] = []

    def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
        return x * given.pop(0) / (1 - p) if training else x

    monkeypatch.setattr(plain_awd.functional, "dropout", dropout)
    return given


def clip_exactly(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Clip as clip_grad_norm_ does, but for CLIP_EPSILON."""
    norm = nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm - CLIP_EPSILON)
    return norm


@pytest.mark.parametrize("model", ["basic", "block_fused", "cudnn"])
def test_twenty_steps_are_those_of_the_torch_backend(
    model: str, masks_given: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of different lengths, dropout in every place, penalties, weight decay, tied weights."""
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", clip_exactly)
    weights = random_weights(AWD, VOCABULARY, seed=1)
    loop = build(AWD, weights)
    ours = backend.build(AWD, weights, Choice.create(model=model, device="cpu", precision="fp64"))
    state, our_state = loop.zero_state(ROWS), ours.zero_state(ROWS)
    clipped = set()
    for x_BT, y_BT in windows(20):
        kept = ours.next_masks(ROWS, x_BT.shape[1])
        words, *kernels = (torch.from_numpy(mask) for mask in kept.weights.values())
        bottom, *units = (torch.from_numpy(mask) for mask in kept.units)
        layers = itertools.chain.from_iterable(zip((kernel.T for kernel in kernels), units, strict=True))
        masks_given += [words, bottom, *layers]
        state, loss = loop.train_step(x_BT, y_BT, state, learning_rate=AWD.learning_rate)
        our_state, our_loss = ours.train_step(x_BT, y_BT, our_state, learning_rate=AWD.learning_rate)
        (theirs,), (measured,) = loop.read([loss]), ours.read([our_loss])
        assert measured == pytest.approx(theirs, rel=1e-10)
        clipped.add(theirs.gradient_norm > AWD.max_grad_norm * x_BT.shape[1] / AWD.num_steps)
        moved = loop.export_weights()
        for name, array in ours.export_weights().items():
            np.testing.assert_allclose(array, moved[name], rtol=1e-10, atol=1e-13, err_msg=name)
    assert not masks_given
    assert clipped == {True, False}


@pytest.fixture
def in_float64() -> Iterator[None]:
    """torch.optim.ASGD keeps its rate, and what a step weighs in the average, in torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def perplexity(loop: AWDLoop, ids: np.ndarray, config: Config) -> float:
    """Return the perplexity of a split."""
    state, losses, tokens = loop.zero_state(config.batch_size), [], 0
    for x_BT, y_BT in corpus.windows(corpus.rows(ids, config.batch_size), config.num_steps, partial=True):
        state, loss = loop.evaluate_step(x_BT, y_BT, state)
        losses.append(loss)
        tokens += y_BT.size
    return float(np.exp(sum(measured.nll for measured in loop.read(losses)) / tokens))


class AveragingLoop:
    """The loop after its switch to torch.optim.ASGD, as in the published program."""

    def __init__(self, loop: AWDLoop) -> None:
        self.loop, self.steps = loop, 0
        decay = loop.config.weight_decay
        loop.optimizer = torch.optim.ASGD(loop.trained, lr=1.0, t0=0, lambd=0.0, weight_decay=decay)
        self.first: list[Tensor] = []  # the weights after the first step, which torch's average leaves out

    def count_step(self) -> None:
        """Count a step that was done."""
        self.steps += 1
        self.first = self.first or [parameter.detach().clone() for parameter in self.loop.trained]

    @contextlib.contextmanager
    def use_averages(self) -> Iterator[None]:
        """Have the loop's weights be the mean of those after each step of ASGD."""
        weights = self.loop.export_weights()
        with torch.no_grad():
            for parameter, first in zip(self.loop.trained, self.first, strict=True):
                rest = self.loop.optimizer.state[parameter]["ax"]
                parameter.copy_((first + (self.steps - 1) * rest) / self.steps)
        yield
        self.loop.load_weights(weights)


@pytest.mark.slow
def test_averages_after_a_stall_are_those_of_torch_s_asgd(
    tmp_path: Path, in_float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the package, and the published loop: when they begin to average, and what follows."""
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", clip_exactly)
    config = Config(
        hidden_size=6,
        num_steps=5,
        batch_size=4,
        epochs=8,
        decay_after=8,
        learning_rate=3.0,
        max_grad_norm=1.0,
        tie_weights=True,
        average_after_stall=2,
        weight_decay=1e-4,
    )
    flags = "--epochs 8 --decay-after 8 --learning-rate 3 --max-grad-norm 1 --tie-weights"
    data = runs.write_corpus(tmp_path / "data")
    more = f"--average-after-stall 2 --weight-decay 1e-4 --seed 3 --precision fp64 {flags}".split()
    run = runs.train_run(data, tmp_path / "run", *more)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    text = corpus.load(data)
    valid, train_BL = text.splits["valid"], corpus.rows(text.splits["train"], config.batch_size)
    loop = build(config, parameters.draw_initial(config, len(text.vocabulary), seed=3))
    before: list[float] = []
    averaging: AveragingLoop | None = None
    for row in rows:
        state = loop.zero_state(config.batch_size)
        for x_BT, y_BT in corpus.windows(train_BL, config.num_steps):
            state, _ = loop.train_step(x_BT, y_BT, state, learning_rate=config.learning_rate)
            if averaging:
                averaging.count_step()
        found = perplexity(loop, valid, config)
        assert row["unaveraged_valid_perplexity"] == pytest.approx(found, rel=1e-9)
        if averaging:
            with averaging.use_averages():
                found = perplexity(loop, valid, config)
        elif len(before) > config.average_after_stall and found > min(before[: -config.average_after_stall]):
            averaging = AveragingLoop(loop)
        before.append(found)
        assert row["valid_perplexity"] == pytest.approx(found, rel=1e-9)
    assert averaging
    assert averaging.steps > len(train_BL[0]) // config.num_steps, "of more than an epoch"


# By the benchmark's check.
TASK = LanguageTask(
    config=AWD.replace(
        layer_sizes=(30, 20, 25), num_steps=20, batch_size=20, weight_decay=1e-4, vary_num_steps=False
    ),
    vocabulary_size=300,
)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", REGISTRY["plain-awd"].models)
def test_the_loop_passes_with_its_dropout_in_each_precision(model: str, precision: str) -> None:
    builder = Variant(f"plain-awd/{model}").builder(REGISTRY, device="cpu", precision=precision, seed=1)
    if precision == "bf16" and not cpu.has_bfloat16_lstm():
        with pytest.raises(UserError, match="bfloat16"):
            checked_twice(TASK, builder, precision=precision)
        return
    found = checked_twice(TASK, builder, precision=precision)
    assert found.what["dropout"] == "the reference had the same masks"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", REGISTRY["plain-awd"].precisions)
def test_the_loop_passes_on_a_gpu(precision: str) -> None:
    builder = Variant("plain-awd/cudnn").builder(REGISTRY, device="cuda", precision=precision, seed=1)
    checked_twice(TASK, builder, precision=precision)


def compute_with_kept_weights(lstm: Any, weights: Any, given: Any) -> Any:
    """Compute a layer with the weights that it has: what was to replace them is lost."""
    return lstm(*given)


def drop_unscaled(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Drop, and leave what is kept as it is."""
    return x * torch.empty_like(x).bernoulli_(1 - p) if training else x


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (plain_awd, "functional_call", compute_with_kept_weights),
        (plain_awd.functional, "dropout", drop_unscaled),
    ],
)
def test_a_loop_with_a_known_mistake_is_refused(
    place: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them weight drop that is silently without effect: its masks are drawn, and told."""
    monkeypatch.setattr(place, name, wrong)
    builder = Variant("plain-awd/cudnn").builder(REGISTRY, device="cpu", precision="fp32", seed=1)
    with pytest.raises(check.WrongError, match="off by"):
        checked(TASK, builder)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cell": "gru"}, "--cell"),
        ({"optimizer": "adam"}, "--optimizer"),
        ({"variational": False}, "--variational"),
    ],
)
def test_the_loop_refuses_what_it_lacks(changes: dict[str, Any], what: str) -> None:
    config = AWD.replace(**changes)
    with pytest.raises(UserError, match=what):
        build(config, random_weights(config, VOCABULARY, seed=1))


def test_the_suite_has_the_published_sizes_and_smaller_ones() -> None:
    """Both sides have windows of one length, and the smaller one has the widths of `modern`."""
    (published,), (smaller,) = (SUITES[name].workloads for name in ("awd", "awd-2x650"))
    for workload in published, smaller:
        assert isinstance(workload.task, LanguageTask)
        config = workload.task.config
        assert (config.num_steps, config.batch_size, config.vary_num_steps) == (70, 20, False)
        names = {variant.name for variant in workload.variants}
        assert {workload.baseline, "plain-awd/cudnn@bf16", "torch/block_fused@bf16"} <= names
    assert published.task.config.hidden_sizes == (1150, 1150, 400)
    assert published.work("train", precision="bf16", device="cpu").parameters == pytest.approx(
        24.2e6, rel=0.01
    )
    assert smaller.task.config.hidden_sizes == PRESETS["modern"].hidden_sizes
    assert smaller.work("train", precision="bf16", device="cpu").parameters < 24e6
