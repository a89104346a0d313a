"""The Block operations and their gradients, one by hand, against the tape over elementary operations."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from ptb_lm.tf_backend import block_ops  # noqa: E402
from ptb_lm.tf_backend.block_ops import (  # noqa: E402
    LONGEST_UNROLLED,
    block_cell,
    block_lstm,
    sequence_gradient,
)

# No two of a tensor's axes have the same size.
BATCH, WIDTH, HIDDEN = 3, 5, 2
NAMES = ("x", "h", "c", "weight", "bias")
LENGTHS = [1, 4, 6, 7]


@pytest.fixture
def six_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a sequence of seven steps is a loop."""
    monkeypatch.setattr(block_ops, "LONGEST_UNROLLED", 6)


def random_inputs(steps: int, dtype: Any) -> list[Any]:
    """Random (x_TBI, h_BH, c_BH, weight, bias), gates in the order i, f, g, o."""
    rng = np.random.default_rng(0)
    shapes = [
        (steps, BATCH, WIDTH),
        (BATCH, HIDDEN),
        (BATCH, HIDDEN),
        (WIDTH + HIDDEN, 4 * HIDDEN),
        (4 * HIDDEN,),
    ]
    return [tf.constant(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def random_output_gradients(steps: int, dtype: Any) -> list[Any]:
    """Random gradients of the output and the cell at every step."""
    rng = np.random.default_rng(1)
    return [tf.constant(rng.normal(size=(steps, BATCH, HIDDEN)), dtype) for _ in range(2)]


class Activations(NamedTuple):
    """What BlockLSTMV2 returns."""

    i: Any
    cs: Any
    f: Any
    o: Any
    ci: Any
    co: Any
    h: Any


def elementary(x_TBI: Any, h_BH: Any, c_BH: Any, weight: Any, bias: Any) -> Activations:
    """The outputs of BlockLSTMV2, step by step."""
    activations = []
    for x_BI in tf.unstack(x_TBI):
        gates = tf.split(tf.concat([x_BI, h_BH], 1) @ weight + bias, 4, axis=1)
        i, f, o = (tf.sigmoid(gates[gate]) for gate in (0, 1, 3))
        g = tf.tanh(gates[2])
        c_BH = f * c_BH + i * g
        h_BH = o * tf.tanh(c_BH)
        activations.append(Activations(i=i, cs=c_BH, f=f, o=o, ci=g, co=tf.tanh(c_BH), h=h_BH))
    return Activations(*(tf.stack(every) for every in zip(*activations, strict=True)))


@functools.cache
def expected_gradients(steps: int) -> tuple[Activations, list[Any]]:
    """The activations, and the gradients with respect to every input, in float64."""
    inputs = random_inputs(steps, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        after = elementary(*inputs)
    outputs = random_output_gradients(steps, tf.float64)
    return after, tape.gradient([after.h, after.cs], inputs, output_gradients=outputs)


def check(measured: Any, expected: Any, bound: float) -> None:
    for name, array, right in zip(NAMES, measured, expected, strict=True):
        np.testing.assert_allclose(array, right, rtol=0, atol=bound, err_msg=name)


@pytest.mark.usefixtures("six_unrolled")
@pytest.mark.parametrize("execution", ["eager", "graph", "any shape"])
@pytest.mark.parametrize("steps", LENGTHS)
def test_the_gradient_by_hand_equals_the_tape_s(steps: int, execution: str) -> None:
    """With respect to every input, from gradients of every step's output and cell."""
    x_TBI, h_BH, c_BH, weight, _ = random_inputs(steps, tf.float64)
    after, expected = expected_gradients(steps)

    def run(x_TBI: Any, h_BH: Any, c_BH: Any, after: Any, outputs: Any) -> Any:
        return sequence_gradient(x_TBI, h_BH, c_BH, weight, Activations(*after), *outputs)

    given = (x_TBI, h_BH, c_BH, tuple(after), tuple(random_output_gradients(steps, tf.float64)))
    function: Any = run
    if execution == "graph":
        function = tf.function(run)
    if execution == "any shape":
        unknown = {2: [None], 3: [None, None]}  # but for the width
        specs = tf.nest.map_structure(
            lambda a: tf.TensorSpec([*unknown[len(a.shape)], a.shape[-1]], a.dtype), given
        )
        function = tf.function(run, input_signature=specs)
    check(function(*given), expected, 1e-13)


@pytest.mark.usefixtures("six_unrolled")
@pytest.mark.parametrize("execution", ["eager", "graph"])
@pytest.mark.parametrize("steps", LENGTHS)
def test_block_lstm_has_the_gradient_by_hand(steps: int, execution: str) -> None:
    _, expected = expected_gradients(steps)

    def run(*inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = block_lstm(*inputs)
        return tape.gradient(outputs, inputs, output_gradients=random_output_gradients(steps, tf.float32))

    function = tf.function(run) if execution == "graph" else run
    check(function(*random_inputs(steps, tf.float32)), expected, 3e-5)


@pytest.mark.parametrize(("steps", "loops"), [(LONGEST_UNROLLED, 0), (LONGEST_UNROLLED + 1, 1), (None, 1)])
def test_a_long_sequence_is_a_loop_in_the_graph(steps: int | None, loops: int) -> None:
    _, *others = random_inputs(1, tf.float32)

    def run(x_TBI: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x_TBI)
            outputs = block_lstm(x_TBI, *others)
        return tape.gradient(outputs, x_TBI)

    graph = tf.function(run).get_concrete_function(tf.TensorSpec([steps, BATCH, WIDTH])).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert sum(kind.endswith("While") for kind in kinds) == loops


def run_cells(x_TBI: Any, h_BH: Any, c_BH: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    weight, bias = (
        tf.concat([tf.split(a, 4, -1)[gate] for gate in (0, 2, 1, 3)], -1) for a in (weight, bias)
    )
    outputs = []
    for x_BI in x_TBI:
        h_BH, c_BH = block_cell(x_BI, h_BH, c_BH, weight, bias)
        outputs.append(h_BH)
    return tf.stack(outputs), c_BH


def run_layer(*inputs: Any) -> tuple[Any, Any]:
    h_TBH, c_TBH = block_lstm(*inputs)
    return h_TBH, c_TBH[-1]


def run_elementary(*inputs: Any) -> tuple[Any, Any]:
    after = elementary(*inputs)
    return after.h, after.cs[-1]


def outputs_and_gradients(layer: Callable[..., tuple[Any, Any]]) -> list[np.ndarray]:
    """Outputs, and the gradients of a random mixture of them with respect to every input."""
    inputs, rng = random_inputs(4, tf.float32), np.random.default_rng(1)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(*inputs)
        mixture = sum(tf.reduce_sum(rng.normal(size=output.shape) * output) for output in outputs)
    return [array.numpy() for array in (*outputs, *tape.gradient(mixture, inputs))]


@pytest.mark.parametrize("layer", [run_cells, run_layer])
def test_block_operations_equal_elementary_ones(layer: Callable[..., tuple[Any, Any]]) -> None:
    """Random weights and states: two swapped gates, in the output or a gradient, would not pass."""
    expected = outputs_and_gradients(run_elementary)
    for array, right in zip(outputs_and_gradients(layer), expected, strict=True):
        np.testing.assert_allclose(array, right, rtol=0, atol=3e-6)


def test_the_gradient_that_tensorflow_registers_for_block_lstm_v2_is_wrong() -> None:
    """When this fails, TensorFlow has fixed it, and block_ops may use the registered one."""

    def run_registered(x_TBI: Any, h_BH: Any, c_BH: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        after = tf.raw_ops.BlockLSTMV2(
            seq_len_max=len(x_TBI),
            x=x_TBI,
            cs_prev=c_BH,
            h_prev=h_BH,
            w=weight,
            wci=tf.zeros(HIDDEN),
            wcf=tf.zeros(HIDDEN),
            wco=tf.zeros(HIDDEN),
            b=bias,
            cell_clip=-1.0,
            use_peephole=False,
        )
        return after.h, after.cs[-1]

    h_TBH, c_BH, d_x_TBI, *_ = outputs_and_gradients(run_registered)
    expected_h_TBH, expected_c_BH, expected_d_x_TBI, *_ = outputs_and_gradients(run_elementary)
    np.testing.assert_allclose(h_TBH, expected_h_TBH, atol=3e-6)
    np.testing.assert_allclose(c_BH, expected_c_BH, atol=3e-6)
    assert np.abs(d_x_TBI - expected_d_x_TBI).max() > 0.1
