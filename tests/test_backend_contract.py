"""The contract of ptb_lm.model.backend: one suite for every framework, model and cell."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from support import assert_arrays, installed, random_weights, random_windows, trace_alone
from training_steps import COMPUTED, assert_steps_equal_the_reference, skip_what_a_gpu_refuses

from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.model import backend, cells, reference
from ptb_lm.model.backend import Backend
from ptb_lm.model.cells import CELLS, LSTM
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS

VOCABULARY = 11

# For what is outside of the layers: TensorFlow's other models, which take long to trace, are the same there.
QUICK = [each for each in COMPUTED if each[0] == "torch" or each[1:] == ("basic", LSTM)]


def on_each_device(framework: str, *choice: str | None, on_cpu: bool = True) -> Iterator[ParameterSet]:
    """A choice on every device that can do it; torch's auto is eager on a CPU."""
    elsewhere = {*FRAMEWORKS[framework].needs_cuda, *(["eager"] if framework == "torch" else [])}
    if on_cpu and not elsewhere & set(choice):
        yield pytest.param(framework, *choice, "cpu", marks=installed(framework))
    yield pytest.param(framework, *choice, "cuda", marks=[installed(framework), pytest.mark.gpu])


def variants() -> Iterator[ParameterSet]:
    """Every model in every precision as its framework runs it by default, and otherwise in the finest.

    The loop of an unroll is the same for every cell: beyond the LSTM it runs in the default execution alone.
    """
    for framework, model, cell in COMPUTED:
        row = FRAMEWORKS[framework]
        options = row.options(model)
        for execution, unroll, precision in itertools.product(*options.values()):
            others = (execution != row.executions[0]) + (unroll != row.unrolls[0])
            is_finest = precision == options["precision"][-1]
            if (others == 0 or is_finest) and (others < 2 or cell == LSTM):
                choice = (framework, model, cell, execution, unroll, precision)
                # TensorFlow's models take long to trace. Cells beyond the LSTM are run over time by what runs
                # it, and compiled by XLA.
                repeats = framework == "tensorflow" and cell != LSTM and others > 0 and execution != "xla"
                # model/test_dropout.py has a loop in the other executions.
                yield from on_each_device(*choice, on_cpu=others < 2 and not repeats)


# Bounds on the relative difference from reference.py, which computes in float64. Those of the half precisions
# are half their unit roundoff, 2^-11 (TF32 and float16) and 2^-8: a loss is a mean over many roundings.
TOLERANCE = {"fp32": 1e-5, "tf32": 2.5e-4, "fp16": 2.5e-4, "bf16": 2e-3, "fp64": 1e-11}

every_model, every_quick_model = (
    pytest.mark.parametrize(
        ("framework", "model", "cell"), [pytest.param(*each, marks=installed(each[0])) for each in models]
    )
    for models in (COMPUTED, QUICK)
)
every_variant = pytest.mark.parametrize(
    ("framework", "model", "cell", "execution", "unroll", "precision", "device"), list(variants())
)
every_framework = pytest.mark.parametrize(
    "framework", [pytest.param(framework, marks=installed(framework)) for framework in FRAMEWORKS]
)
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture
def tiny_config(short_config: Config) -> Config:
    """The sizes of all of these tests."""
    return short_config.replace(max_grad_norm=1.2)  # which clips some steps and not others


def sized_for(execution: str | None, config: Config) -> Config:
    """Return one layer, and one round of each kind, for compilers, which take long.

    model/test_dropout.py gives them two layers.
    """
    is_compiled = execution in ("compile", "xla")
    return config.replace(num_layers=1, mogrifier_rounds=2) if is_compiled else config


def finest(framework: str, model: str) -> str:
    """Return the most precise way to compute a model."""
    return FRAMEWORKS[framework].options(model)["precision"][-1]


def usual(framework: str, model: str) -> str:
    """Return torch's default, in which its kernels compute, and the finest of TensorFlow: `reused` has it."""
    return "fp32" if framework == "torch" else finest(framework, model)


def build(config: Config, weights: dict[str, np.ndarray], **choice: str | None) -> Backend:
    return _built(config, weights, _chosen(**choice))


def reused(config: Config, weights: dict[str, np.ndarray], **choice: str | None) -> Backend:
    """As `build`, but TensorFlow's, which take long to trace, are those that other tests had before.

    Their weights and their training state are set back. Their averages are not: only one test may move them.
    """
    chosen = _chosen(**choice)
    if chosen.framework != "tensorflow":
        return _built(config, weights, chosen)
    built, start = _built_once(config, chosen)
    built.load_weights(weights)
    built.load_training_state(start)
    return built


@functools.cache
def _built_once(config: Config, choice: Choice) -> tuple[Backend, dict[str, np.ndarray]]:
    """Return a backend, and the training state that it begins with."""
    built = _built(config, random_weights(config, VOCABULARY, seed=1), choice)
    return built, built.export_training_state(built.zero_state(1))


def _chosen(**choice: str | None) -> Choice:
    return Choice.create(seed=3, **{"device": "cpu", "precision": "fp32", **choice})


def _built(config: Config, weights: dict[str, np.ndarray], choice: Choice) -> Backend:
    with skip_what_a_gpu_refuses(choice.device):
        return backend.build(config, weights, choice)


@pytest.mark.slow
@every_variant
def test_twenty_training_steps_equal_the_reference(
    framework: str,
    model: str,
    cell: str,
    execution: str,
    unroll: str,
    precision: str,
    device: str,
    tiny_config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With operations of our own the compiler makes code around what it does not know.
    if (
        (execution, device) == ("compile", "cpu")
        and (model, cell) != ("basic", LSTM)
        and model != "block_fused"
    ):
        trace_alone(monkeypatch)
    config = sized_for(execution, tiny_config).replace(cell=cell)
    built = reused(
        config,
        random_weights(config, VOCABULARY, seed=1),
        framework=framework,
        model=model,
        execution=execution,
        unroll=unroll,
        precision=precision,
        device=device,
    )
    # At the LSTM's rate the others train chaotically from such weights: half precision's rounding would grow
    # from step to step.
    rate = 0.7 if cell == LSTM else 0.2
    windows = random_windows(config, VOCABULARY, 20, seed=2)
    assert_steps_equal_the_reference(built, windows, bound=TOLERANCE[precision], rate=rate)


# All that training may do otherwise.
REGULARISED = {
    "keep_prob": 0.6,
    "variational": True,
    "embedding_keep_prob": 0.7,
    "recurrent_keep_prob": 0.8,
    "tie_weights": True,
}
CHANGES: dict[str, dict[str, Any]] = {"plain": {}, "dropout": {"keep_prob": 0.6}, "all": REGULARISED}


@every_model
def test_evaluation_has_no_dropout_and_changes_nothing(
    framework: str, model: str, cell: str, tiny_config: Config
) -> None:
    config = tiny_config.replace(cell=cell, **REGULARISED)
    weights, batch = random_weights(config, VOCABULARY, seed=1), config.batch_size
    precision = usual(framework, model)
    built = reused(config, weights, framework=framework, model=model, precision=precision)
    state, expected_state = built.zero_state(batch), reference.zero_state(weights, batch)
    before = built.export_training_state(state)
    for x_BT, y_BT in random_windows(config, VOCABULARY, 3, seed=2):
        state, loss = built.evaluate_step(x_BT, y_BT, state)
        expected, _, expected_state = reference.loss_and_gradients(weights, x_BT, y_BT, expected_state)
        (measured,) = built.read([loss])
        assert measured.nll == pytest.approx(batch * expected, rel=1e-6 if precision == "fp32" else 1e-11)
    for name, array in built.export_weights().items():
        np.testing.assert_array_equal(array, weights[name].astype(array.dtype))
    # Nor dropout's random stream: how often one evaluates must not change what is trained.
    after = built.export_training_state(built.zero_state(batch))
    assert all((after[name] == before[name]).all() for name in before)


@every_quick_model
def test_evaluation_takes_any_batch_and_window(
    framework: str, model: str, cell: str, tiny_config: Config
) -> None:
    config = tiny_config.replace(cell=cell)
    weights = random_weights(config, VOCABULARY, seed=1)
    built = reused(config, weights, framework=framework, model=model)
    for batch, steps in ((1, 1), (1, 13), (4, 2)):
        sizes = config.replace(batch_size=batch, num_steps=steps)
        ((x_BT, y_BT),) = random_windows(sizes, VOCABULARY, 1, seed=2)
        _, loss = built.evaluate_step(x_BT, y_BT, built.zero_state(batch))
        zero = reference.zero_state(weights, batch)
        expected = batch * reference.loss_and_gradients(weights, x_BT, y_BT, zero)[0]
        assert built.read([loss])[0].nll == pytest.approx(expected, rel=1e-6), (batch, steps)


def each_as_by_default() -> Iterator[ParameterSet]:
    """Every model in its finest precision, and the simplest in every execution, on each device.

    A tied softmax is outside of the layers: the simplest model is run without it, too; but not by XLA, which
    takes long.
    """
    for framework, model, cell in COMPUTED:
        executions, precision = FRAMEWORKS[framework].executions, finest(framework, model)
        simplest = (model, cell) == ("basic", LSTM)
        for execution in executions if simplest else executions[:1]:
            for changes in ("plain", "all") if simplest else ("all",):
                choice = (framework, model, cell, execution, precision, changes)
                yield from on_each_device(*choice, on_cpu=(execution, changes) != ("xla", "plain"))


@pytest.mark.parametrize(
    ("framework", "model", "cell", "execution", "precision", "changes", "device"), list(each_as_by_default())
)
def test_every_word_s_log_probability_equals_the_reference(
    framework: str,
    model: str,
    cell: str,
    execution: str,
    precision: str,
    changes: str,
    device: str,
    tiny_config: Config,
) -> None:
    """Of the targets, and of all words that may follow; over batches and windows of many sizes.

    XLA compiles each size by itself, which takes a second: it gets one batch with these changes, and one
    without.
    """
    config = sized_for(execution, tiny_config).replace(cell=cell, **CHANGES[changes])
    weights = random_weights(config, VOCABULARY, seed=1)
    built = reused(
        config,
        weights,
        framework=framework,
        model=model,
        execution=execution,
        precision=precision,
        device=device,
    )
    bound = {"rtol": 0, "atol": TOLERANCE[precision]}
    rng = np.random.default_rng(2)
    sizes = {1: [3, 1, 9], 4: [3, 1, 9]}
    if execution == "xla":
        sizes = {4: [3, 1]} if changes == "all" else {1: [9]}
    for batch, lengths in sizes.items():
        state, expected_state = built.zero_state(batch), reference.zero_state(weights, batch)
        for steps in lengths:
            x_BT, y_BT = rng.integers(VOCABULARY, size=(2, batch, steps), dtype=np.int32)
            after, expected_BTV = reference.log_probabilities(weights, x_BT, expected_state)
            expected_BT = np.take_along_axis(expected_BTV, y_BT[..., None], axis=-1)[..., 0]
            first, log_p_BT = built.log_probabilities(x_BT, y_BT, state)
            np.testing.assert_allclose(log_p_BT, expected_BT, **bound)
            lengths_B = rng.integers(1, steps + 1, size=batch).astype(np.int32)
            _, log_p_BT = built.log_probabilities(x_BT, y_BT, state, lengths_B=lengths_B)
            counts_BT = np.arange(steps) < lengths_B[:, None]
            np.testing.assert_allclose(log_p_BT[counts_BT], expected_BT[counts_BT], **bound)
            # From the same state once more: it is as it was.
            second, log_p_BV = built.next_word_log_probabilities(x_BT, state)
            np.testing.assert_allclose(log_p_BV, expected_BTV[:, -1], **bound)
            for carried in (built.export_training_state(first), built.export_training_state(second)):
                for name, array in zip(cells.get(cell).state_names, zip(*after, strict=True), strict=True):
                    np.testing.assert_allclose(carried[name], array, **bound)
            state, expected_state = first, after


@pytest.mark.parametrize(
    ("framework", "model", "cell", "device"),
    [each for model in COMPUTED for each in on_each_device(*model, on_cpu=model in QUICK)],
)
def test_windows_of_device_rows_are_as_good_as_numpy_s(
    framework: str, model: str, cell: str, device: str, tiny_config: Config
) -> None:
    """Trained with dropout on whole windows, and scored on those of another length, the last one shorter."""
    config = tiny_config.replace(cell=cell, **REGULARISED)
    weights = random_weights(config, VOCABULARY, seed=1)
    rows_BL = np.random.default_rng(2).integers(VOCABULARY, size=(config.batch_size, 27), dtype=np.int32)
    precision = "fp32" if device == "cuda" else usual(framework, model)
    choice = {"framework": framework, "model": model, "precision": precision, "device": device}
    built, every_loss = reused(config, weights, **choice), []
    start = built.export_training_state(built.zero_state(config.batch_size))
    for on_device in (False, True):
        built.load_weights(weights)
        state = built.load_training_state(start)
        rows = built.to_device(rows_BL) if on_device else rows_BL
        assert tuple(rows.shape) == rows_BL.shape
        losses = []
        for x_BT, y_BT in corpus.windows(rows, config.num_steps):
            state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
            losses.append(loss)
        state = built.zero_state(config.batch_size)
        for x_BT, y_BT in corpus.windows(rows, 8, partial=True):
            state, loss = built.evaluate_step(x_BT, y_BT, state)
            losses.append(loss)
        every_loss.append(built.read(losses))
    assert len(every_loss[0]) == 8 + 4
    # A GPU adds up the embedding's gradient in no fixed order.
    np.testing.assert_allclose(every_loss[1], every_loss[0], rtol=0 if device == "cpu" else 1e-5)


def train(built: Backend, config: Config, windows: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Train over some windows; return the losses."""
    state, losses = built.zero_state(config.batch_size), []
    for x_BT, y_BT in windows:
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        losses.append(loss)
    return [measured.nll for measured in built.read(losses)]


def resumable() -> Iterator[ParameterSet]:
    """Every model, and with compiled steps: what the first one compiles must not depend on which it is.

    Dropout alone, and a softmax that is not tied, are outside of the layers: on a CPU one model is run with
    them.
    """

    def of(framework: str, model: str, cell: str, execution: str | None) -> Iterator[ParameterSet]:
        quick = framework == "torch" and execution != "compile"
        simplest = (model, cell) == ("basic", LSTM)
        alone = simplest and execution not in ("compile", "xla")
        for changes in ("dropout", "all") if quick or alone else ("all",):
            choice = (framework, model, cell, execution, changes)
            by_default = execution is None
            at_once = changes == "all" and (simplest or quick or by_default)
            yield from on_each_device(*choice, on_cpu=at_once or (simplest and by_default))

    for framework, model, cell in COMPUTED:
        yield from of(framework, model, cell, None)
    for cell, row in CELLS.items():
        for framework in row.layers:
            for execution in FRAMEWORKS[framework].executions[1:]:
                if cell == LSTM or execution not in ("compile", "xla"):  # they take long
                    yield from of(framework, "basic", cell, execution)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "model", "cell", "execution", "changes", "device"), list(resumable()))
def test_stopped_at_any_step_and_resumed_is_bit_identical(
    framework: str,
    model: str,
    cell: str,
    execution: str | None,
    changes: str,
    device: str,
    tiny_config: Config,
) -> None:
    """Weights, optimiser, carried state and dropout's random stream all go on."""
    config = sized_for(execution, tiny_config).replace(cell=cell, **CHANGES[changes])
    weights = random_weights(config, VOCABULARY, seed=1)
    windows = random_windows(config, VOCABULARY, 8, seed=2)
    choice = {"framework": framework, "model": model, "execution": execution, "device": device}
    if device == "cpu" and (execution == "compile" or framework == "tensorflow"):
        choice["precision"] = finest(framework, model)  # which other tests have compiled or traced
    built = resumed = reused(config, weights, **choice)
    state, saved = built.zero_state(config.batch_size), []
    for x_BT, y_BT in windows:
        saved.append((built.export_weights(), built.export_training_state(state)))
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
    expected = (built.export_weights(), built.export_training_state(state))
    for stop in (5, 0, 1, 7) if execution is None else (5,):
        # A new one, as in a new process. TensorFlow's takes long to trace: the others are loaded into the one
        # that has gone on to the end, and so are those of other layers, which have no state.
        if framework == "torch" or (stop == 5 and (model, cell) == ("basic", LSTM)):
            resumed = build(config, random_weights(config, VOCABULARY, seed=9), **choice)
        resumed.load_weights(saved[stop][0])
        state = resumed.load_training_state(saved[stop][1])
        for x_BT, y_BT in windows[stop:]:
            state, _ = resumed.train_step(x_BT, y_BT, state, learning_rate=0.7)
        for after, before in zip(
            (resumed.export_weights(), resumed.export_training_state(state)), expected, strict=True
        ):
            assert after.keys() == before.keys()
            for name in after:
                # A GPU adds up the embedding's gradient in no fixed order.
                np.testing.assert_allclose(
                    after[name],
                    before[name],
                    rtol=0,
                    atol=0 if device == "cpu" else 1e-6,
                    err_msg=f"stopped at {stop}: {name}",
                )


@every_device
@every_model
def test_averages_are_moved_scored_and_kept_apart(
    framework: str, model: str, cell: str, device: str, tiny_config: Config
) -> None:
    """They follow the weights, `use_averages` scores with them, and training goes on as without them."""
    config = tiny_config.replace(cell=cell, **REGULARISED)
    precision = "fp32" if device == "cuda" else finest(framework, model)
    weights, batch = random_weights(config, VOCABULARY, seed=1), config.batch_size
    choice = {"framework": framework, "model": model, "precision": precision, "device": device}
    built, windows = reused(config, weights, **choice), random_windows(config, VOCABULARY, 6, seed=2)
    start = built.export_training_state(built.zero_state(batch))
    train(built, config, windows)
    plain = built.export_weights()
    built.load_weights(weights)
    state = built.load_training_state(start)
    expected: dict[str, np.ndarray] = {}
    bound = {"rtol": 0, "atol": 1e-14 if precision == "fp64" else 1e-6}
    for (x_BT, y_BT), weight in zip(windows, [1.0, 0.5, 1 / 3, 0.25, 0.1, 0.9], strict=True):
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        built.update_averages(weight)
        before = built.export_weights()
        for name, array in before.items():
            average = expected.get(name, array)
            expected[name] = average + weight * (array - average)
        with built.use_averages():
            for name, array in built.export_weights().items():
                np.testing.assert_allclose(array, expected[name], **bound, err_msg=name)
            _, score = built.evaluate_step(x_BT, y_BT, built.zero_state(batch))
            averages = {name: array.astype(np.float64) for name, array in expected.items()}
            loss, _, _ = reference.loss_and_gradients(
                averages, x_BT, y_BT, reference.zero_state(averages, batch)
            )
            assert built.read([score])[0].nll == pytest.approx(batch * loss, rel=1e-6)
        assert_arrays(built.export_weights(), before)
    for name, array in plain.items():
        if device == "cpu":  # a GPU adds up the embedding's gradient in no fixed order
            np.testing.assert_array_equal(before[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("choice", "nouns"),
    [
        ("torch cudnn execution=compile", "cudnn .* compile: .* torch.nn.LSTM; .* auto, eager, graph"),
        ("tensorflow block execution=xla", "block .* xla: .* LSTMBlockCell; .* graph, eager"),
        ("tensorflow block_fused precision=fp64", "block_fused .* fp64: BlockLSTMV2 .* float32 .* fp32"),
        ("torch block cell=gru", "torch block .* gru; .* basic or cudnn, .* lstm"),
        ("torch cudnn cell=layer_norm_lstm", "torch cudnn .* layer_norm_lstm; .* basic, .* lstm or gru"),
        (
            "tensorflow basic cell=gru",
            "gru; .* torch .* basic or cudnn, .* lstm or layer_norm_lstm or mogrifier_lstm.*",
        ),
    ],
)
def test_choices_that_do_not_go_together_are_refused(
    choice: str, nouns: str, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the framework is imported: it need not be installed."""
    framework, model, option = choice.split()
    kind, _, value = option.partition("=")
    config = tiny_config.replace(cell=value if kind == "cell" else LSTM)
    weights = random_weights(config, VOCABULARY, seed=1)
    nowhere = dataclasses.replace(FRAMEWORKS[framework], build="ptb_lm.there_is_no_such_module:build")
    monkeypatch.setitem(FRAMEWORKS, framework, nowhere)
    more = {} if kind == "cell" else {kind: value}
    with pytest.raises(UserError, match=f"{nouns}$"):
        build(config, weights, framework=framework, model=model, **more)


def test_the_tables_of_cells_and_models_agree() -> None:
    """Every cell's models are their framework's, and every model computes some cell."""
    computed = {(framework, model) for framework, model, _ in COMPUTED}
    assert computed == {(framework, model) for framework, row in FRAMEWORKS.items() for model in row.models}
    for name in CELLS:
        assert cells.get(name).name == name
        assert cells.get(name).state_names[0] == "h"


@every_framework
def test_a_backend_says_that_it_is_one(framework: str, tiny_config: Config) -> None:
    """A method that a class lacks is then found when it is made, not in a run's last hour."""
    weights = random_weights(tiny_config, VOCABULARY, 1)
    built = build(tiny_config, weights, framework=framework, model="basic")
    assert isinstance(built, Backend)
    lacking = type("Lacking", (type(built),), {"zero_state": Backend.zero_state})
    with pytest.raises(TypeError, match="zero_state"):
        lacking()


@every_framework
def test_a_model_that_scores_builds_nothing_that_trains(framework: str, tiny_config: Config) -> None:
    """No optimiser, exchange, loss scale, random stream or averages."""
    weights, batch = random_weights(tiny_config, VOCABULARY, seed=1), tiny_config.batch_size
    precision = "fp16" if framework == "torch" else "fp32"
    built: Any = build(tiny_config, weights, framework=framework, model="basic", precision=precision)
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    built.read([built.evaluate_step(x_BT, y_BT, built.zero_state(batch))[1]])
    built.log_probabilities(x_BT, y_BT, built.zero_state(batch))
    built.next_word_log_probabilities(x_BT, built.zero_state(batch))
    built.load_weights(built.export_weights())
    assert built.engine
    assert built.environment()
    assert "training" not in vars(built)
    built.train_step(x_BT, y_BT, built.zero_state(batch), learning_rate=0.1)
    assert "training" in vars(built)


@every_framework
def test_a_small_weight_decay_is_not_rounded_alike_for_every_weight(framework: str) -> None:
    """Some spacings of float32 a step: each weight rounds as it lies, and their mean is right."""
    config = Config(hidden_size=20, num_steps=4, batch_size=2, weight_decay=5e-8, max_grad_norm=1e-30)
    model = build(
        config, random_weights(config, 50, seed=1), framework=framework, model="basic", precision="fp32"
    )
    before, state = model.export_weights(), model.zero_state(config.batch_size)
    for x_BT, y_BT in random_windows(config, 50, 20, seed=2):
        state, _ = model.train_step(x_BT, y_BT, state, learning_rate=1.0)
    after = model.export_weights()
    shrunk = np.concatenate([(1 - after[name].astype(float) / before[name]).ravel() for name in before])
    assert shrunk.mean() == pytest.approx(20 * config.num_steps * config.weight_decay, rel=0.02)
