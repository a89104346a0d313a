"""The stack of LSTM layers in TensorFlow against the NumPy reference."""

from typing import Any

import numpy as np
import pytest
from support import name_state

from ptb_lm.model import parameters
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.reference import stack_backward, stack_forward

tf = pytest.importorskip("tensorflow")

from ptb_lm.tf_backend.cells import Layer, assign, layer_type  # noqa: E402
from ptb_lm.tf_backend.runtime import DTYPES, apply_execution  # noqa: E402
from ptb_lm.tf_backend.stack import RecurrentStack  # noqa: E402

# No two of a tensor's axes have the same size.
# What is traced holds every step of every layer, which takes long: few steps, and two layers, because the
# third is computed as the second.
STEPS, BATCH, WIDTH, HIDDEN = 4, 3, 6, (7, 5, 2)
TWO_LAYERS = HIDDEN[:2]
LENGTHS = np.array([3, 4, 1], np.int32)
VALID_TB1 = (np.arange(STEPS)[:, None] < LENGTHS)[..., None]

TENSORFLOW = FRAMEWORKS["tensorflow"]
BOUND = {"fp32": 1e-5, "fp64": 1e-11}


def variants() -> list[Any]:
    """Every model by default with and without directions and lengths, and otherwise with both.

    Directions do not depend on the model: one model is enough for each of both without the other.
    """
    rows = [("basic", "graph", "static", True, False), ("basic", "graph", "static", False, True)]
    for model in TENSORFLOW.models:
        options = TENSORFLOW.options(model)
        for both in (False, True):
            rows.append((model, "graph", options["unroll"][0], both, both))
        rows += [(model, execution, "static", True, True) for execution in options["execution"][1:]]
        rows += [(model, "graph", unroll, True, True) for unroll in options["unroll"][1:]]
    return [*rows, ("basic", "xla", "loop", True, True)]


class Inputs:
    """Random inputs of a stack, and gradients of a random mixture of its outputs with respect to them."""

    def __init__(
        self, bidirectional: bool, with_lengths: bool, hidden_sizes: tuple[int, ...] = HIDDEN
    ) -> None:
        rng = np.random.default_rng(0)
        shapes = parameters.stack_shapes(WIDTH, hidden_sizes, bidirectional=bidirectional)
        self.weights = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
        directions = 2 if bidirectional else 1
        widths = [WIDTH, *(directions * hidden for hidden in hidden_sizes)]
        self.masks = [rng.integers(2, size=(STEPS, BATCH, width)) / 0.5 for width in widths[:-1]]
        state_shapes = [(2, BATCH, hidden) for hidden in hidden_sizes for _ in range(directions)]
        self.x_TBI = rng.normal(size=(STEPS, BATCH, WIDTH))
        self.state = [tuple(rng.normal(size=shape)) for shape in state_shapes]
        self.d_output_TBK = rng.normal(size=(STEPS, BATCH, widths[-1]))
        self.d_state = [tuple(rng.normal(size=shape)) for shape in state_shapes]
        self.lengths_B = LENGTHS if with_lengths else None

    def compute_reference(self) -> dict[str, Any]:
        masks = [*self.masks, np.ones_like(self.d_output_TBK)]  # the top output is the caller's to drop
        output_TBK, after, tape = stack_forward(
            self.weights, self.x_TBI, self.state, lengths_B=self.lengths_B, masks=masks
        )
        d_x_TBI, gradients, d_before = stack_backward(self.weights, tape, self.d_output_TBK, self.d_state)
        return {
            "output": output_TBK,
            "x": d_x_TBI,
            **gradients,
            **name_state(after),
            **name_state(d_before, "d_"),
        }


def measure(stack: RecurrentStack, inputs: Inputs, execution: str, xs_TBI: list[Any]) -> list[dict[str, Any]]:
    """Return for each input the stack's output, the state after and all gradients; traced once."""
    cast = tf.nest.map_structure(
        lambda array: tf.constant(array, stack.dtype), (inputs.masks, inputs.d_output_TBK, inputs.d_state)
    )
    masks, d_output_TBK, d_state = cast
    lengths_B = None if inputs.lengths_B is None else tf.constant(inputs.lengths_B)

    def run(x_TBI: Any, state: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x_TBI, state))
            output_TBK, after = stack(x_TBI, state, masks=masks, lengths_B=lengths_B)
        gradients = tape.gradient(
            [output_TBK, after], [x_TBI, state, *stack.variables], output_gradients=[d_output_TBK, d_state]
        )
        return output_TBK, after, gradients

    function = apply_execution(run, execution)
    state = tf.nest.map_structure(lambda array: tf.constant(array, stack.dtype), inputs.state)
    measured = []
    for x_TBI in xs_TBI:
        result = function(tf.constant(x_TBI, stack.dtype), state)
        output_TBK, after, (d_x_TBI, d_before, *by_variable) = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), result
        )
        gradients = stack.to_canonical(by_variable)
        measured.append(
            {
                "output": output_TBK,
                "x": d_x_TBI,
                **gradients,
                **name_state(after),
                **name_state(d_before, "d_"),
            }
        )
    return measured


def check(
    model: str, execution: str, unroll: str, *, bidirectional: bool, lengths: bool, gpu: bool = False
) -> None:
    precision = "fp32" if gpu else TENSORFLOW.options(model)["precision"][-1]
    hidden_sizes = HIDDEN if execution == "eager" or gpu else TWO_LAYERS
    inputs = Inputs(bidirectional, lengths, hidden_sizes)
    stack = RecurrentStack(
        layer_type(model, gpu=gpu),
        WIDTH,
        hidden_sizes,
        bidirectional=bidirectional,
        unroll=unroll,
        dtype=DTYPES[precision],
    )
    assign(stack.variables, stack.from_canonical(inputs.weights))
    poisoned_TBI = np.where(VALID_TB1, inputs.x_TBI, np.nan) if lengths else inputs.x_TBI
    clean, poisoned = measure(stack, inputs, execution, [inputs.x_TBI, poisoned_TBI])
    expected = inputs.compute_reference()
    assert clean.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(clean[name], array, rtol=0, atol=10 * BOUND[precision], err_msg=name)
        np.testing.assert_array_equal(poisoned[name], clean[name], err_msg=name)
    if lengths:
        padding = ~np.broadcast_to(VALID_TB1, (STEPS, BATCH, 1))[..., 0]
        assert not clean["output"][padding].any()
        assert not clean["x"][padding].any()


@pytest.mark.parametrize(("model", "execution", "unroll", "bidirectional", "lengths"), variants())
def test_outputs_states_and_gradients_equal_the_reference(
    model: str, execution: str, unroll: str, bidirectional: bool, lengths: bool
) -> None:
    """With dropout, and with NaN in the padding too: to the bit what it is without."""
    check(model, execution, unroll, bidirectional=bidirectional, lengths=lengths)


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("model", TENSORFLOW.models)
def test_a_gpu_equals_the_reference(model: str, lengths: bool, bidirectional: bool) -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no CUDA device")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    with tf.device("GPU:0"):
        check(model, "graph", "static", bidirectional=bidirectional, lengths=lengths, gpu=True)


@pytest.mark.parametrize("model", TENSORFLOW.models)
def test_parameters_come_back_by_the_names_of_stack_shapes(model: str) -> None:
    inputs = Inputs(bidirectional=True, with_lengths=False)
    stack = RecurrentStack(
        layer_type(model, gpu=False), WIDTH, HIDDEN, bidirectional=True, unroll="loop", dtype=tf.float32
    )
    assign(stack.variables, stack.from_canonical(inputs.weights))
    canonical = stack.to_canonical([variable.numpy() for variable in stack.variables])
    assert list(canonical) == list(inputs.weights)
    for name, array in inputs.weights.items():
        np.testing.assert_array_equal(canonical[name], array.astype(np.float32), err_msg=name)


def test_the_zero_state_has_each_layer_s_width() -> None:
    stack = RecurrentStack(
        layer_type("basic", gpu=False), WIDTH, HIDDEN, bidirectional=True, unroll="loop", dtype=tf.float64
    )
    state = stack.zero_state(BATCH)
    assert [h_BH.shape.as_list() for h_BH, _ in state] == [[BATCH, hidden] for hidden in (7, 7, 5, 5, 2, 2)]
    assert all(not array.numpy().any() for pair in state for array in pair)
    assert {array.dtype for pair in state for array in pair} == {tf.float64}


def test_without_lengths_nothing_is_masked() -> None:
    """The language model's graph holds no operation that only padding needs."""
    stack = RecurrentStack(layer_type("basic", gpu=False), WIDTH, HIDDEN, unroll="static", dtype=tf.float32)

    def run(x_TBI: Any) -> Any:
        return stack(x_TBI, stack.zero_state(BATCH))

    graph = tf.function(run).get_concrete_function(tf.TensorSpec([STEPS, BATCH, WIDTH])).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert "Tanh" in kinds
    assert not any(kind.startswith(("Select", "Where", "Less", "Reverse", "Gather")) for kind in kinds)


def test_a_layer_that_lacks_a_method_is_refused_when_it_is_built() -> None:
    class Half(Layer):
        pass

    with pytest.raises(TypeError, match="Can't instantiate abstract class Half"):
        Half(3, 4, dtype=tf.float32, unroll="static")
