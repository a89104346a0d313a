"""A captured step is the eager one: by a graph that a CPU can record, to the last bit."""

import ast
import functools
import gc
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from fake_graph import FakeRecorder
from implementations import override_implementation
from support import assert_arrays, random_weights
from training_steps import VOCABULARY, export_all

from ptb_lm.common.errors import OutOfMemoryError, UserError
from ptb_lm.data import corpus
from ptb_lm.model.cells import CELLS, LSTM
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import graph, precision
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.torch_backend.settings import convert_allocation_errors
from ptb_lm.torch_backend.training_step import TrainingStep

MODELS = list(FRAMEWORKS["torch"].models)
COMPUTED = [(model, cell) for cell, row in CELLS.items() for model in row.layers["torch"]]
DROPOUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "units": {"keep_prob": 0.5},
    "variational": {"keep_prob": 0.6, "variational": True},
    "all": {
        "keep_prob": 0.6,
        "variational": True,
        "embedding_keep_prob": 0.7,
        "recurrent_keep_prob": 0.8,
        "tie_weights": True,
    },
}
# Beside dropout, what a step may do otherwise.
TRAININGS: dict[str, dict[str, Any]] = {
    "lengths": {"vary_num_steps": True},
    "penalties": {"activation_penalty": 2.0, "slowness_penalty": 1.0, "weight_decay": 1e-2},
    "adam": {"optimizer": "adam", "weight_decay": 1e-2},
}
EVERYTHING = {name: value for changes in TRAININGS.values() for name, value in changes.items()}
RATES = [0.7, 0.7, 0.35, 0.35, 0.9, 0.2]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU that computes by torch's operations alone; and float16 begins with a gradient that overflows."""
    half = precision.PRECISIONS["fp16"]._replace(loss_scale=2.0**17)
    monkeypatch.setitem(precision.PRECISIONS, "fp16", half)
    monkeypatch.setattr(graph, "_failure", None)
    with override_implementation(kernels="torch", float32_library="MKL"):
        yield


def build(config: Config, model: str, precision_name: str, kind: type[TrainingStep] = TrainingStep) -> Any:
    choice = Choice.create(model=model, execution="eager", device="cpu", precision=precision_name, seed=3)
    built = TorchBackend(config, random_weights(config, VOCABULARY, seed=1), choice)
    built.training = kind(built.network, execution="eager", ranks=built.ranks, seed=built.seed)
    return built


def capture_step(built: Any, module: ModuleType = graph) -> Any:
    """The model with its step as a graph, and the class that captures it from a module."""
    training = built.training
    step = training.capture(FakeRecorder(training.dropout.generator))
    training.execute_step = module.GraphedStep(
        training.step,
        rate=step._rate,
        others=step._others,
        generator=step._generator,
        recorder=step._recorder,
    )
    return built


def life(built: Any) -> list[Any]:
    """Return all losses of a model in two short epochs, and in between all that it holds.

    The rate changes, windows are scored between the steps, averages are taken and scored, and the second
    epoch begins again in the middle of the first. If lengths vary, no two windows of an epoch have the same.
    """
    rows_BL = np.random.default_rng(2).integers(VOCABULARY, size=(3, 3 * 5 + 1), dtype=np.int32)
    device_rows_BL = built.to_device(rows_BL)
    held, losses, saved = [], [], None
    for epoch in range(2):
        state = built.zero_state(3)
        bounds = [[0, 4, 10, 15], [0, 6, 11, 15]][epoch] if built.config.vary_num_steps else [0, 5, 10, 15]
        for step, (x_BT, y_BT) in enumerate(corpus.cut_windows(device_rows_BL, bounds)):
            if (epoch, step) == (1, 1):
                weights, arrays = saved
                built.load_weights(weights)
                state = built.load_training_state(arrays)
            state, loss = built.train_step(x_BT, y_BT, state, learning_rate=RATES[3 * epoch + step])
            _, score = built.evaluate_step(x_BT, y_BT, built.zero_state(3))
            _, short = built.evaluate_step(x_BT[:, :2], y_BT[:, :2], built.zero_state(3))
            built.update_averages(0.3)
            with built.use_averages():
                _, averaged = built.evaluate_step(x_BT, y_BT, built.zero_state(3))
            losses += [loss, score, short, averaged]
            held.append(export_all(built, state))
            if (epoch, step) == (0, 1):
                saved = built.export_weights(), built.export_training_state(state)
    assert (device_rows_BL.numpy() == rows_BL).all()
    # Read at the end: no step may overwrite what another one measured.
    return [built.read(losses), *held]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    np.testing.assert_array_equal(np.array(found[0]), np.array(expected[0]), err_msg="losses")
    for step, (ours, theirs) in enumerate(zip(found[1:], expected[1:], strict=True)):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array, err_msg=f"step {step}: {name}")


@pytest.fixture
def small(tiny_config: Config) -> Config:
    return tiny_config.replace(hidden_size=5, max_grad_norm=1.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision_name", "dropout"),
    [  # Masks are drawn outside of the models; weights are kept in one way for all of a precision.
        *((model, "fp32", "all") for model in MODELS),
        *(("block_fused", precision_name, "all") for precision_name in ("bf16", "fp16")),
        *(("block_fused", "fp32", dropout) for dropout in DROPOUTS if dropout != "all"),
    ],
)
def test_a_captured_step_equals_the_eager_one_to_the_bit(
    model: str, precision_name: str, dropout: str, small: Config
) -> None:
    config = small.replace(**DROPOUTS[dropout])
    expected = life(build(config, model, precision_name))
    found = capture_step(build(config, model, precision_name))
    assert_equal(life(found), expected)
    assert len(found.training.execute_step._recorder.graphs) == 1
    if precision_name == "fp16":
        assert any(measured.new_loss_scale for measured in expected[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision_name", "training", "tied"),
    [
        *(("fp32", training, False) for training in TRAININGS),
        *((precision_name, "all", True) for precision_name in ("fp32", "fp16", "fp64")),
        ("fp16", "all", False),
    ],
)
def test_captured_steps_of_every_length_and_optimiser_do_so_too(
    precision_name: str, training: str, tied: bool, small: Config
) -> None:
    """The graphs of all lengths share their memory: what one leaves there, another may overwrite."""
    changes = EVERYTHING if training == "all" else TRAININGS[training]
    config = small.replace(**DROPOUTS["all"], **changes).replace(tie_weights=tied)
    expected = life(build(config, "block_fused", precision_name))
    found = capture_step(build(config, "block_fused", precision_name))
    assert_equal(life(found), expected)
    assert len(found.training.execute_step._recorder.graphs) == (3 if config.vary_num_steps else 1)


@pytest.mark.parametrize(("model", "cell"), [each for each in COMPUTED if each[1] != LSTM])
def test_the_captured_steps_of_other_cells_do_so_too(model: str, cell: str, small: Config) -> None:
    config = small.replace(cell=cell, **DROPOUTS["all"])
    assert_equal(life(capture_step(build(config, model, "fp32"))), life(build(config, model, "fp32")))


def mutants() -> Iterator[Any]:
    """Yield the module's source without one of the statements of GraphedStep that call something."""
    lines = inspect.getsource(graph).splitlines()
    (step,) = (
        node
        for node in ast.parse("\n".join(lines)).body
        if isinstance(node, ast.ClassDef) and node.name == "GraphedStep"
    )
    for node in ast.walk(step):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            without = [*lines[: node.lineno - 1], " " * node.col_offset + "pass", *lines[node.end_lineno :]]
            yield pytest.param("\n".join(without), id=ast.unparse(node))


@functools.cache
def life_of(config: Config) -> list[Any]:
    return life(build(config, "block_fused", "fp16"))


@pytest.fixture
def eager_life(small: Config) -> list[Any]:
    return life_of(small.replace(**DROPOUTS["all"]))


@pytest.mark.slow
@pytest.mark.parametrize("source", list(mutants()))
def test_a_copy_that_is_forgotten_is_noticed(source: str, small: Config, eager_life: list[Any]) -> None:
    """The whole of it is found equal above."""
    module = ModuleType("mutant")
    exec(source, module.__dict__)
    found = capture_step(build(small.replace(**DROPOUTS["all"]), "block_fused", "fp16"), module)
    # Without steps before the capture it makes buffers, for which it sends numbers to the device.
    with pytest.raises((AssertionError, AttributeError, UserError)):
        assert_equal(life(found), eager_life)


class NumberForRate(TrainingStep):
    """Its update reads the rate as a number, which a capture would keep."""

    def update(self, *given: Any, **more: Any) -> torch.Tensor:
        rate, self.rate = self.rate, torch.full_like(self.rate, self._rate_on_device)
        norm = super().update(*given, **more)
        self.rate = rate
        return norm


class RateNotSent(TrainingStep):
    """The rate on the device stays as it was at first."""

    def __call__(self, *window: Any, learning_rate: float) -> Any:
        return super().__call__(*window, learning_rate=self._rate_on_device or learning_rate)


class SameMasks(TrainingStep):
    """Its masks are drawn once."""

    def step(self, *window: Any) -> Any:
        if not hasattr(self, "masks"):
            self.masks = self.dropout.draw(3, 5)
            self.dropout.draw = lambda *_: self.masks  # type: ignore[method-assign]
        return super().step(*window)


@pytest.mark.parametrize("kind", [NumberForRate, RateNotSent, SameMasks])
def test_a_number_that_a_capture_would_keep_is_noticed(
    kind: type[TrainingStep], small: Config, eager_life: list[Any]
) -> None:
    found = capture_step(build(small.replace(**DROPOUTS["all"]), "block_fused", "fp16", kind))
    with pytest.raises(AssertionError):
        assert_equal(life(found), eager_life)


class Waits(TrainingStep):
    """A step that reads a number of the device's."""

    def update(self, *given: Any, **more: Any) -> torch.Tensor:
        norm = super().update(*given, **more)
        return norm * norm.item()


class FromHost(TrainingStep):
    """A step that sends a number to the device."""

    def update(self, *given: Any, **more: Any) -> torch.Tensor:
        return super().update(*given, **more) * torch.tensor(1.0)


@pytest.mark.parametrize("kind", [Waits, FromHost])
def test_a_capture_that_fails_is_the_last_of_the_process(kind: type[TrainingStep], small: Config) -> None:
    broken, sound = (capture_step(build(small, "basic", "fp32", each)) for each in (kind, TrainingStep))
    x_BT, y_BT = np.zeros((3, 5), np.int32), np.ones((3, 5), np.int32)
    for built, noun in ((broken, "not permitted"), (broken, "earlier"), (sound, "earlier")):
        with pytest.raises(UserError, match=f"{noun} .*--execution eager"):
            built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.5)
        assert gc.isenabled()


def test_memory_that_runs_out_before_the_capture_is_not_the_end(small: Config) -> None:
    """Nothing has moved, and a step that fits is captured."""
    config = small.replace(keep_prob=0.5)
    built, eager = capture_step(build(config, "basic", "fp16")), build(config, "basic", "fp16")
    before = export_all(built, built.zero_state(3))
    step, calls = built.training.execute_step._step, []

    def second_is_too_large(*window: Any) -> Any:
        calls.append(step(*window))
        if len(calls) == 2:
            torch.empty(2**60)
        return calls[-1]

    built.training.execute_step._step = second_is_too_large
    x_BT, y_BT = np.zeros((3, 5), np.int32), np.ones((3, 5), np.int32)
    with pytest.raises(OutOfMemoryError):
        built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.5)
    assert_arrays(export_all(built, built.zero_state(3)), before)
    losses = [
        each.read([each.train_step(x_BT, y_BT, each.zero_state(3), learning_rate=0.5)[1]])
        for each in (built, eager)
    ]
    assert losses[0] == losses[1]


def test_memory_that_runs_out_in_the_capture_is_said_as_such(small: Config) -> None:
    built = capture_step(build(small, "basic", "fp32"))

    @convert_allocation_errors()
    def capture() -> None:
        with graph._forbid_further_captures():
            torch.empty(2**60)

    with pytest.raises(OutOfMemoryError):
        capture()
    x_BT = np.zeros((3, 5), np.int32)
    with pytest.raises(UserError, match="earlier"):
        built.train_step(x_BT, x_BT, built.zero_state(3), learning_rate=0.5)


@pytest.mark.parametrize("changes", [{"keep_prob": 0.5}, DROPOUTS["all"]], ids=["units", "all"])
@pytest.mark.parametrize(("model", "cell"), COMPUTED)
def test_no_node_that_accumulates_gradients_outlives_a_step(
    model: str, cell: str, changes: dict[str, Any], small: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the warm-up's that is alive would bring its stream into the capture."""
    built = build(small.replace(cell=cell, **changes), model, "fp32")
    marked = 0
    gradients = torch.autograd.grad

    def node(parameter: torch.Tensor) -> Any:
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]

    def mark(*arguments: Any) -> Any:
        nonlocal marked
        for parameter in built.training.parameters:
            node(parameter).metadata["of"] = "the step"
            marked += 1
        found = gradients(*arguments)
        assert all(node(parameter).metadata for parameter in built.training.parameters), (
            "the marks do not hold"
        )
        return found

    monkeypatch.setattr(torch.autograd, "grad", mark)
    x_BT = np.zeros((3, 5), np.int32)
    with graph.pause_garbage_collection():
        state, loss = built.train_step(x_BT, x_BT, built.zero_state(3), learning_rate=0.5)
        assert marked == len(built.training.parameters)
        alive = [parameter for parameter in built.training.parameters if node(parameter).metadata]
        assert not alive
        assert state[0][0].grad_fn is None
        assert loss.grad_fn is None
