"""The sequence classifier in torch: every model, direction, loss and length, against the NumPy reference."""

import functools
from typing import Any

import numpy as np
import pytest
import sequence_classifier
import torch
from sequence_classifier import CLASSIFIERS, LOSSES, Batch, ClassifierConfig, reference
from support import assert_arrays, trace_alone

from ptb_lm.common.errors import UserError
from ptb_lm.model import reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.dropout_places import MaskSpec
from ptb_lm.torch_backend.dropout import derive_seed, draw_mask

BATCH, STEPS = 5, 6
SEED = 3  # of dropout
# Some end together, some alone; between two ends lies one step, or several.
LENGTHS = np.array([4, 6, 3, 4, 6], np.int32)

every_model = pytest.mark.parametrize("model", CLASSIFIERS["torch"].models)
every_direction = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
every_length = pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])
every_loss = pytest.mark.parametrize("loss", LOSSES)
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def make_config(bidirectional: bool = True, loss: str = "ctc", **more: Any) -> ClassifierConfig:
    """Sizes that all differ."""
    return ClassifierConfig(
        input_size=4, hidden_sizes=(7, 4, 3), classes=8, bidirectional=bidirectional, loss=loss, **more
    )


def random_weights(config: ClassifierConfig) -> dict[str, np.ndarray]:
    """In float64, biases too."""
    rng = np.random.default_rng(1)
    return {name: rng.uniform(-0.8, 0.8, shape) for name, shape in sequence_classifier.shapes(config).items()}


def random_batch(config: ClassifierConfig, lengths: np.ndarray | None = None, seed: int = 2) -> Batch:
    """Labels of CTC repeat here and there, which takes a blank between."""
    rng = np.random.default_rng(seed)
    x_BTI = rng.normal(size=(BATCH, STEPS, config.input_size)).astype(np.float32)
    shape = (BATCH, 2) if config.loss == "ctc" else (BATCH,)
    labels = rng.integers(1, config.classes, size=shape, dtype=np.int32)
    if config.loss == "ctc":
        labels[1] = labels[1, 0]
    return Batch(x_BTI, labels, lengths)


def build(config: ClassifierConfig, weights: dict[str, np.ndarray] | None = None, **choice: Any) -> Any:
    weights = random_weights(config) if weights is None else weights
    defaults = {"precision": "fp64", "device": "cpu"}
    return sequence_classifier.build(config, weights, Choice.create(CLASSIFIERS, **{**defaults, **choice}))


@functools.cache
def expected_results(
    config: ClassifierConfig, *, lengths: bool
) -> tuple[float, dict[str, np.ndarray], np.ndarray]:
    """The reference's loss, gradients and scores of the random batch, computed once for all tests."""
    weights, batch = random_weights(config), random_batch(config, LENGTHS if lengths else None)
    scores = reference.predict(config, weights, batch.x_BTI, batch.lengths_B)
    return *reference.loss_and_gradients(config, weights, batch), scores


@every_device
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@every_length
@every_loss
@every_direction
@every_model
def test_loss_gradients_and_predictions_equal_the_reference(
    model: str, bidirectional: bool, loss: str, lengths: np.ndarray | None, precision: str, device: str
) -> None:
    # These functions must not use dropout or the bound on the gradients.
    config = make_config(bidirectional, loss, keep_prob=0.5, clip_value=1e-3)
    weights, batch = random_weights(config), random_batch(config, lengths)
    built = build(config, weights, model=model, precision=precision, device=device)
    expected, expected_gradients, expected_scores = expected_results(config, lengths=lengths is not None)
    bound = 1e-5 if precision == "fp32" else 1e-11
    found, gradients = built.loss_and_gradients(batch)
    assert found == pytest.approx(expected, rel=bound)
    assert_arrays(gradients, expected_gradients, atol=bound)
    assert built.read([built.forward_step(batch)]) == [pytest.approx(expected, rel=bound)]
    scores = built.predict(batch.x_BTI, lengths)
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=10 * bound)
    # No function has done a step.
    assert_arrays(built.export_weights(), weights, atol=1e-7 if precision == "fp32" else 0)


@functools.cache
def twenty_steps(
    config: ClassifierConfig, *, lengths: bool, device: str
) -> tuple[list[tuple[float, dict[str, np.ndarray]]], np.ndarray]:
    """The reference's loss at each step and its weights after it; and flags of what the bound has cut.

    Its masks are those of a twin of the models' stream, which is the same for all of them on a device.
    """
    twin = torch.Generator(device).manual_seed(derive_seed(SEED))
    directions = 2 if config.bidirectional else 1
    widths = [config.input_size, *(directions * hidden for hidden in config.hidden_sizes)]
    specs = [MaskSpec((STEPS, BATCH, width), config.keep_prob) for width in widths]
    weights, steps, cut = random_weights(config), [], []
    adam = reference_updates.adam_zero_state(weights)
    for step in range(20):
        batch = random_batch(config, LENGTHS if lengths else None, seed=step)
        masks = [draw_mask(spec, twin, torch.float64).cpu().numpy() for spec in specs]
        loss, gradients = reference.loss_and_gradients(config, weights, batch, masks=masks)
        weights, adam = reference_updates.adam(
            weights, gradients, adam, learning_rate=config.learning_rate, clip_value=config.clip_value
        )
        steps.append((loss, weights))
        cut += [abs(gradient.ravel()) > (config.clip_value or np.inf) for gradient in gradients.values()]
    return steps, np.concatenate(cut)


@pytest.mark.slow
@every_device
@every_length
@every_loss
@every_direction
@every_model
def test_twenty_steps_equal_the_reference(
    model: str, bidirectional: bool, loss: str, lengths: np.ndarray | None, device: str
) -> None:
    """Dropout draws the masks of its stream; the bound cuts some of the elements, where there is one."""
    clip_value = None if loss == "cross_entropy" and not bidirectional else 0.05
    config = make_config(bidirectional, loss, keep_prob=0.7, clip_value=clip_value, learning_rate=0.01)
    built = build(config, model=model, device=device, seed=SEED)
    steps, cut = twenty_steps(config, lengths=lengths is not None, device=device)
    for step, (expected, weights) in enumerate(steps):
        measured = built.train_step(random_batch(config, lengths, seed=step))
        assert built.read([measured]) == [pytest.approx(expected, rel=1e-9)], f"step {step}"
        assert_arrays(built.export_weights(), weights, atol=1e-8)
    assert cut.any() == (clip_value is not None)
    assert not cut.all()


@pytest.mark.parametrize(
    ("model", "execution", "bidirectional", "loss"),
    [
        *(
            (model, "eager", bidirectional, loss)
            for model in CLASSIFIERS["torch"].models
            for bidirectional in (False, True)
            for loss in LOSSES
        ),
        # TorchScript compiles a layer, whose directions and steps the losses are outside of.
        *(
            (model, "jit", bidirectional, loss)
            for model in ("basic", "block")
            for bidirectional, loss in ((True, "ctc"), (False, "cross_entropy"))
        ),
    ],
)
def test_the_padding_changes_no_bit(model: str, execution: str, bidirectional: bool, loss: str) -> None:
    config = make_config(bidirectional, loss, keep_prob=0.7)
    batch = random_batch(config, LENGTHS)
    poisoned = Batch(batch.x_BTI.copy(), batch.labels, LENGTHS)
    poisoned.x_BTI[np.arange(STEPS) >= LENGTHS[:, None]] = np.nan
    found = []
    # TorchScript profiles its first run, which rounds otherwise.
    for given in (batch, poisoned) if execution == "eager" else (batch, batch, poisoned):
        built = build(config, model=model, precision="fp32", execution=execution)
        loss_before, gradients = built.loss_and_gradients(given)
        numbers = [loss_before, *built.read([built.train_step(given), built.forward_step(given)])]
        scores = built.predict(given.x_BTI, LENGTHS)
        found.append({"losses": np.array(numbers), "scores": scores, **gradients})
        found[-1] |= {f"{name} after": array for name, array in built.export_weights().items()}
    before, after = found[-2:]
    assert np.isfinite(before["losses"]).all()
    assert_arrays(after, before, atol=0)


@pytest.mark.parametrize(
    ("model", "execution", "layers", "bidirectional", "lengths"),
    [
        ("basic", "compile", (5,), False, None),
        ("block_fused", "compile", (5,), True, None),
        ("basic", "jit", (5, 3), True, np.array([3, 2, 3, 3, 2], np.int32)),
        ("block", "jit", (5, 3), True, None),
    ],
)
def test_other_executions_equal_the_reference(
    model: str,
    execution: str,
    layers: tuple[int, ...],
    bidirectional: bool,
    lengths: np.ndarray | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over few steps and layers: a compiler takes its time for each."""
    trace_alone(monkeypatch)
    config = ClassifierConfig(
        input_size=4,
        hidden_sizes=layers,
        classes=6,
        bidirectional=bidirectional,
        loss="ctc",
        learning_rate=0.01,
    )
    weights = random_weights(config)
    built, adam = build(config, model=model, execution=execution), reference_updates.adam_zero_state(weights)
    for step in range(4):
        rng = np.random.default_rng(step)
        x_BTI = rng.normal(size=(BATCH, 3, 4)).astype(np.float32)
        batch = Batch(x_BTI, rng.integers(1, 6, size=(BATCH, 1), dtype=np.int32), lengths)
        expected, gradients = reference.loss_and_gradients(config, weights, batch)
        assert built.read([built.forward_step(batch)]) == [pytest.approx(expected, rel=1e-11)]
        found, found_gradients = built.loss_and_gradients(batch)
        assert found == pytest.approx(expected, rel=1e-11)
        assert_arrays(found_gradients, gradients, atol=1e-11)
        built.train_step(batch)
        weights, adam = reference_updates.adam(weights, gradients, adam, learning_rate=0.01)
        assert_arrays(built.export_weights(), weights, atol=1e-8)


@pytest.mark.parametrize(("model", "others"), [("basic", "eager, jit"), ("block_fused", "eager")])
def test_lengths_are_refused_with_compile(model: str, others: str) -> None:
    """And what else the model has is named."""
    config = make_config()
    built = build(config, model=model, execution="compile")
    with pytest.raises(UserError, match=rf"--execution compile .* from {others}$"):
        built.train_step(random_batch(config, LENGTHS))


@pytest.mark.parametrize("lengths", [[4, 6, 0, 4, 6], [4, 6, 1, 4, 7], [4, 6]])
@every_model
def test_impossible_lengths_are_refused(model: str, lengths: list[int]) -> None:
    config = make_config()
    built = build(config, model=model)
    with pytest.raises(UserError, match=r"5 lengths.* 1 to 6"):
        built.train_step(random_batch(config, np.array(lengths, np.int32)))


@pytest.mark.parametrize(
    ("loss", "label", "least"),
    [("ctc", 0, 1), ("ctc", 8, 1), ("cross_entropy", -1, 0), ("cross_entropy", 8, 0)],
)
def test_a_label_that_is_no_class_is_refused(loss: str, label: int, least: int) -> None:
    """CTC's blank is no class."""
    config = make_config(loss=loss)
    batch, built = random_batch(config), build(config)
    batch.labels[-1] = label
    for compute in (built.train_step, built.forward_step, built.loss_and_gradients):
        with pytest.raises(UserError, match=f"label .*from {least} to 7$"):
            compute(batch)


def test_reversed_sequences_are_read() -> None:
    config = make_config()
    built, x_BTI = build(config), random_batch(config).x_BTI[:, ::-1]
    np.testing.assert_array_equal(built.predict(x_BTI), built.predict(x_BTI.copy()))


def test_labels_that_do_not_fit_have_an_infinite_loss() -> None:
    """The loss is that of the reference."""
    config = make_config()
    batch = random_batch(config, np.array([4, 6, 1, 4, 6], np.int32))
    assert reference.loss_and_gradients(config, random_weights(config), batch)[0] == np.inf
    built = build(config)
    assert built.read([built.forward_step(batch)]) == [np.inf]


def test_the_same_seed_drops_the_same_units_whatever_the_model() -> None:
    config = make_config(keep_prob=0.5)
    batch = random_batch(config, LENGTHS)
    losses = []
    for model, seed in (
        ("basic", 3),
        ("block_fused", 3),
        ("cudnn", 3),
        ("cudnn", 4),
        ("cudnn", 2**32 + 3),
    ):
        built = build(config, model=model, seed=seed)
        losses.append(built.read([built.train_step(batch), built.train_step(batch)]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    assert losses[2] == pytest.approx(losses[0], rel=1e-10)
    for other in losses[3:]:
        assert other != pytest.approx(losses[0], rel=1e-3)


def test_engine_environment_and_memory_of_a_cpu() -> None:
    built = build(make_config(), model="block", execution="jit")
    assert built.engine == "torch block on cpu (jit)"
    assert built.environment()["torch"] == torch.__version__
    assert built.device_memory() is None
    assert built.read([]) == []


@pytest.mark.gpu
def test_the_peak_of_a_gpu_s_memory_is_known() -> None:
    built = build(make_config(), device="cuda")
    assert built.device_memory() >= 8 * sum(array.size for array in random_weights(make_config()).values())


def test_denormal_numbers_are_flushed_to_zero() -> None:
    """A CPU computes many times slower with denormal numbers; long sequences have gradients full of them."""
    built, zeros = build(make_config()), list[bool]()
    built.dense.register_forward_hook(lambda *_: zeros.append((torch.full((), 1e-38) * 0.01).item() == 0))
    built.train_step(random_batch(built.config))
    assert zeros == [True]


def test_a_choice_of_a_language_model_that_no_classifier_has_is_refused() -> None:
    config = make_config()
    weights = random_weights(config)
    choice = Choice.create(execution="graph", model="basic", device="cpu")
    with pytest.raises(UserError, match="execution 'graph'"):
        sequence_classifier.build(config, weights, choice)
    assert sequence_classifier.build(
        config, weights, Choice.create(execution="eager", device="cpu")
    ).export_weights()


def test_the_engine_names_the_library_that_ran() -> None:
    """Sequences of different lengths are packed, and packed ones are ATen's."""
    config = make_config()
    built = build(config, sequence_classifier.initial(config, seed=1), precision="fp32")
    alike, batch = random_batch(config), random_batch(config, LENGTHS)
    for given, name in ((alike, "oneDNN"), (batch, "ATen"), (alike, "oneDNN")):
        with torch.profiler.profile(acc_events=True) as profile:
            built.read([built.train_step(given)])
        ran_onednn = any("mkldnn_rnn_layer" in event.name for event in profile.events())
        assert ran_onednn == (name == "oneDNN")
        assert built.engine.startswith(f"torch.nn.LSTM on cpu ({name}")
