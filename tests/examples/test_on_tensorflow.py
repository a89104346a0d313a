"""The sequence classifier in TensorFlow against the NumPy reference."""

from typing import Any

import numpy as np
import pytest
import sequence_classifier
from sequence_classifier import CLASSIFIERS, Batch, ClassifierConfig, reference
from support import assert_arrays

from ptb_lm.common.errors import UserError
from ptb_lm.model import reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS

tf = pytest.importorskip("tensorflow")

from ptb_lm.tf_backend.adam import Adam  # noqa: E402
from ptb_lm.tf_backend.dropout import draw_mask, new_stream  # noqa: E402
from ptb_lm.tf_backend.runtime import apply_execution  # noqa: E402

# No two of a tensor's axes have the same size.
STEPS, BATCH, LABELS = 6, 4, 2
CONFIG = ClassifierConfig(input_size=3, hidden_sizes=(7, 5), classes=9, learning_rate=0.01)
LENGTHS = np.array([3, 6, 4, 5], np.int32)
SEED = 3

TENSORFLOW = FRAMEWORKS["tensorflow"]
EVERY_MODEL = pytest.mark.parametrize("model", TENSORFLOW.models)
EVERY_LOSS = pytest.mark.parametrize("loss", sequence_classifier.LOSSES)
# TensorFlow's CTC computes in float32, whatever the model's precision.
BOUND = {"fp32": 1e-5, "fp64": 1e-11}
ADAM_BOUND = {"float32": 1e-6, "float64": 1e-12}  # float32 holds 1 - 0.999 so exactly


def make_config(**changes: Any) -> ClassifierConfig:
    return ClassifierConfig(**{**vars(CONFIG), **changes})


def random_weights(config: ClassifierConfig) -> dict[str, np.ndarray]:
    # With this seed no gradient is so small that it is mostly rounding in float32: Adam's step would be, too.
    rng = np.random.default_rng(2)
    return {name: rng.uniform(-0.5, 0.5, shape) for name, shape in sequence_classifier.shapes(config).items()}


def random_batch(config: ClassifierConfig, *, lengths: bool, seed: int = 2, steps: int = STEPS) -> Batch:
    rng = np.random.default_rng(seed)
    first = 1 if config.loss == "ctc" else 0
    labels = rng.integers(first, config.classes, (BATCH, LABELS) if config.loss == "ctc" else BATCH)
    labels[0] = 4  # for CTC a label twice, which needs a blank between
    x_BTI = rng.normal(size=(BATCH, steps, config.input_size)).astype(np.float32)
    return Batch(x_BTI, labels.astype(np.int32), LENGTHS if lengths else None)


def pad_with_nan(batch: Batch) -> Batch:
    """Return the batch with NaN in the padding."""
    x_BTI = batch.x_BTI.copy()
    x_BTI[np.arange(STEPS) >= batch.lengths_B[:, None]] = np.nan
    return batch._replace(x_BTI=x_BTI)


def finest(model: str) -> str:
    return TENSORFLOW.options(model)["precision"][-1]


def bound(config: ClassifierConfig, precision: str) -> float:
    return BOUND["fp32" if config.loss == "ctc" else precision]


def build(config: ClassifierConfig, model: str, **choice: Any) -> Any:
    defaults = {"device": "cpu", "precision": finest(model), "seed": SEED}
    chosen = Choice.create(CLASSIFIERS, framework="tensorflow", model=model, **{**defaults, **choice})
    return sequence_classifier.build(config, random_weights(config), chosen)


def variants() -> list[Any]:
    """Every model and loss with both directions and lengths, and each other option once."""
    rows = [
        (model, "graph", TENSORFLOW.options(model)["unroll"][0], loss, True, True)
        for model in TENSORFLOW.models
        for loss in sequence_classifier.LOSSES
    ]
    for model in TENSORFLOW.models:
        options = TENSORFLOW.options(model)
        rows += [
            (model, execution, "static", "cross_entropy" if execution == "xla" else "ctc", False, True)
            for execution in options["execution"][1:]
        ]
        rows += [(model, "graph", unroll, "cross_entropy", False, True) for unroll in options["unroll"][1:]]
    return [*rows, ("basic", "graph", "loop", "ctc", False, False)]


@pytest.mark.parametrize(("model", "execution", "unroll", "loss", "bidirectional", "lengths"), variants())
def test_training_steps_equal_the_reference(
    model: str, execution: str, unroll: str, loss: str, bidirectional: bool, lengths: bool
) -> None:
    """Loss and weights at each step, with dropout, clipping, and NaN in the padding."""
    clip_value = 0.02  # bounds some elements of each step's gradient and not others
    config = make_config(loss=loss, bidirectional=bidirectional, keep_prob=0.5, clip_value=clip_value)
    built = build(config, model, execution=execution, unroll=unroll)
    stream = new_stream(SEED)
    twin = tf.function(
        lambda shape: draw_mask(stream, shape, config.keep_prob, tf.float32),
        jit_compile=execution == "xla",  # which makes other masks of the stream
    )
    weights = random_weights(config)
    state, atol = reference_updates.adam_zero_state(weights), bound(config, finest(model))
    for step in range(4):
        batch = random_batch(config, lengths=lengths, seed=step)
        masks = twin_masks(twin, config)
        expected, gradients = reference.loss_and_gradients(config, weights, batch, masks=masks)
        clipped = np.abs(np.concatenate([gradient.ravel() for gradient in gradients.values()])) > clip_value
        assert clipped.any()
        assert not clipped.all()
        weights, state = reference_updates.adam(
            weights, gradients, state, learning_rate=config.learning_rate, clip_value=clip_value
        )
        loss_before = built.train_step(pad_with_nan(batch) if lengths else batch)
        assert built.read([loss_before]) == pytest.approx([expected], rel=atol), f"step {step}"
        for name, array in built.export_weights().items():
            np.testing.assert_allclose(array, weights[name], rtol=0, atol=atol, err_msg=f"{step}, {name}")


def twin_masks(twin: Any, config: ClassifierConfig) -> list[np.ndarray]:
    """The next masks of a twin stream: the input's, those between the layers, and the dense layer's."""
    directions = 2 if config.bidirectional else 1
    *between, top = (directions * hidden for hidden in config.hidden_sizes)
    inner = [twin((STEPS, BATCH, width)).numpy() for width in (config.input_size, *between)]
    if config.loss == "ctc":
        return [*inner, twin((STEPS, BATCH, top)).numpy()]
    # One step of each direction is read, so one mask is drawn for whichever step that is.
    return [*inner, np.tile(twin((BATCH, top)).numpy(), (STEPS, 1, 1))]


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@EVERY_LOSS
def test_the_gradient_and_predictions_equal_the_reference(
    loss: str, bidirectional: bool, lengths: bool
) -> None:
    """With respect to every canonical parameter, without dropout, clipping and a step."""
    config = make_config(loss=loss, bidirectional=bidirectional, keep_prob=0.5, clip_value=1e-3)
    built, weights = build(config, "basic", execution="eager"), random_weights(config)
    batch = random_batch(config, lengths=lengths)
    atol = bound(config, "fp64")
    expected, expected_gradients = reference.loss_and_gradients(config, weights, batch)
    for given in [batch, pad_with_nan(batch)] if lengths else [batch]:
        measured, gradients = built.loss_and_gradients(given)
        assert measured == pytest.approx(expected, rel=atol)
        assert built.read([built.forward_step(given)]) == [measured]
        assert gradients.keys() == weights.keys()
        assert_arrays(gradients, expected_gradients, atol=atol)
        log_p = reference.predict(config, weights, batch.x_BTI, batch.lengths_B)
        np.testing.assert_allclose(
            built.predict(given.x_BTI, given.lengths_B), log_p, rtol=0, atol=BOUND["fp64"]
        )
    assert_arrays(built.export_weights(), weights)


@EVERY_MODEL
def test_every_model_predicts_any_shape_with_one_graph(model: str) -> None:
    config = make_config(loss="ctc", bidirectional=True)
    built, weights = build(config, model), random_weights(config)
    atol = BOUND[finest(model)]
    for steps in (1, STEPS):
        x_BTI = random_batch(config, lengths=False, steps=steps).x_BTI[: steps + 1]
        expected = reference.predict(config, weights, x_BTI)
        np.testing.assert_allclose(built.predict(x_BTI), expected, rtol=0, atol=atol)
    batch = random_batch(config, lengths=True)
    expected = reference.predict(config, weights, batch.x_BTI, batch.lengths_B)
    np.testing.assert_allclose(built.predict(*pad_with_nan(batch)[::2]), expected, rtol=0, atol=atol)
    assert built.predict_function.experimental_get_tracing_count() == 1


@EVERY_LOSS
def test_only_the_first_step_of_a_shape_is_traced(loss: str) -> None:
    config = make_config(loss=loss, keep_prob=0.5)
    built = build(config, "block_fused")
    for seed in range(3):
        batch = random_batch(config, lengths=True, seed=seed)
        built.train_step(batch)
        built.forward_step(batch._replace(lengths_B=np.roll(batch.lengths_B, 1)))
    assert built.train_function.experimental_get_tracing_count() == 1
    assert built.forward_function.experimental_get_tracing_count() == 1
    built.train_step(random_batch(config, lengths=True, steps=STEPS + 1))
    assert built.train_function.experimental_get_tracing_count() == 2


@pytest.mark.parametrize("model", ["basic", "block"])
def test_a_loop_puts_long_sequences_into_a_small_graph(model: str) -> None:
    config = make_config(bidirectional=True)
    built = build(config, model, unroll="loop", precision="fp32")
    x_BTI = tf.TensorSpec([BATCH, 1000, config.input_size])
    arguments = (x_BTI, tf.TensorSpec([BATCH], tf.int32), tf.TensorSpec([BATCH], tf.int32))
    graph = built.train_function.get_concrete_function(*arguments).graph
    assert len(graph.get_operations()) < 2000


def test_losses_are_read_in_order_and_none_gives_none() -> None:
    built = build(CONFIG, "block_fused")
    batches = [random_batch(CONFIG, lengths=False, seed=seed) for seed in range(3)]
    each = [built.read([built.forward_step(batch)])[0] for batch in batches]
    assert built.read([built.forward_step(batch) for batch in batches]) == each
    assert len(set(each)) == 3
    assert built.read([]) == []


def test_engine_environment_and_memory_of_a_cpu() -> None:
    built = build(CONFIG, "block", execution="eager")
    assert built.engine == "tensorflow block on cpu (eager)"
    assert built.device_memory() is None
    assert built.environment()["tensorflow"] == tf.__version__


def test_a_missing_device_is_refused() -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a CUDA device")
    with pytest.raises(UserError, match=r"^--device cuda: tensorflow [\d.]+ "):
        build(CONFIG, "basic", device="cuda")


@pytest.mark.gpu
@EVERY_MODEL
@EVERY_LOSS
def test_a_gpu_computes_the_reference_s_gradient(loss: str, model: str) -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a CUDA device")
    config = make_config(loss=loss, bidirectional=True)
    built = build(config, model, device="cuda", precision="fp32")
    batch = random_batch(config, lengths=True)
    expected, expected_gradients = reference.loss_and_gradients(config, random_weights(config), batch)
    measured, gradients = built.loss_and_gradients(pad_with_nan(batch))
    assert measured == pytest.approx(expected, rel=1e-5)
    assert_arrays(gradients, expected_gradients, atol=1e-5)
    assert built.device_memory() > 0


def test_ctc_refuses_xla_and_too_few_steps() -> None:
    config = make_config(loss="ctc", bidirectional=False)
    with pytest.raises(UserError, match=r"XLA .*CTC"):
        build(config, "basic", execution="xla")
    batch = random_batch(config, lengths=False)
    steps = batch._replace(x_BTI=batch.x_BTI[:, : LABELS - 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Not enough time"):
        build(config, "block_fused").forward_step(steps)


@pytest.mark.parametrize(
    ("loss", "label", "least"),
    [
        *(("ctc", label, 1) for label in (0, CONFIG.classes)),
        *(("cross_entropy", label, 0) for label in (-1, CONFIG.classes)),
    ],
)
def test_a_label_that_is_no_class_is_refused(loss: str, label: int, least: int) -> None:
    """CTC's blank is no class."""
    config = make_config(loss=loss)
    batch, built = random_batch(config, lengths=False), build(config, "block_fused")
    batch.labels[-1] = label
    for compute in (built.train_step, built.forward_step, built.loss_and_gradients):
        with pytest.raises(UserError, match=f"label .*from {least} to {CONFIG.classes - 1}$"):
            compute(batch)


@pytest.mark.parametrize("lengths", [[3, 6, 4], [3, 6, 4, 0], [3, 6, 4, 7]])
def test_impossible_lengths_are_refused(lengths: list[int]) -> None:
    config = make_config()
    batch = random_batch(config, lengths=True)._replace(lengths_B=np.array(lengths, np.int32))
    built = build(config, "block_fused")
    with pytest.raises(UserError, match=r"4 lengths.* 1 to 6"):
        built.train_step(batch)
    with pytest.raises(UserError, match=r"4 lengths.* 1 to 6"):
        built.predict(batch.x_BTI, batch.lengths_B)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("execution", ["graph", "eager", "xla"])
def test_every_step_of_adam_equals_the_reference(execution: str, dtype: str) -> None:
    """After a reset, too. Gradients about as large as epsilon show where it is added; others are larger."""
    rng = np.random.default_rng(0)
    weights = {"a": np.zeros((3, 4)), "b": np.zeros(5)}
    state = reference_updates.adam_zero_state(weights)
    variables = [tf.Variable(weight, dtype=dtype) for weight in weights.values()]
    adam, rate = Adam(variables), tf.constant(0.01, tf.float64)
    step = apply_execution(adam.step, execution)
    for number in range(12):
        if number == 7:
            adam.reset()
            state = reference_updates.adam_zero_state(weights)
        gradients = {
            name: rng.normal(size=weight.shape) * 10.0 ** rng.integers(-9, 3, weight.shape)
            for name, weight in weights.items()
        }
        gradients["b"][2] = 0
        before = weights
        weights, state = reference_updates.adam(weights, gradients, state, learning_rate=0.01)
        moved = [variable.numpy() for variable in variables]
        step([tf.constant(gradient, dtype) for gradient in gradients.values()], rate)
        for variable, was, name in zip(variables, moved, weights, strict=True):
            # Each step's own length: the sum over the steps would hide an error in the first ones.
            np.testing.assert_allclose(
                variable.numpy() - was, weights[name] - before[name], rtol=0, atol=0.01 * ADAM_BOUND[dtype]
            )
    assert adam.steps.numpy() == 12 - 7
