"""Adam in TensorFlow against the NumPy reference, step by step."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from ptb_lm.classifier import reference  # noqa: E402
from ptb_lm.classifier.tensorflow_network import Adam  # noqa: E402
from ptb_lm.tf_backend.execution import executed  # noqa: E402

# What float32 holds of 1 - 0.999.
BOUND = {"float32": 1e-6, "float64": 1e-12}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("execution", ["graph", "eager", "xla"])
def test_every_step_equals_the_reference(execution: str, dtype: str) -> None:
    """With gradients about as large as epsilon, which tell where it stands, and much larger ones."""
    rng = np.random.default_rng(0)
    weights = {"a": np.zeros((3, 4)), "b": np.zeros(5)}
    state = reference.adam_start(weights)
    variables = [tf.Variable(weight, dtype=dtype) for weight in weights.values()]
    adam = Adam(variables, 0.01)
    step = executed(adam.step, execution)
    for _ in range(12):
        gradients = {
            name: rng.normal(size=weight.shape) * 10.0 ** rng.integers(-9, 3, weight.shape)
            for name, weight in weights.items()
        }
        gradients["b"][2] = 0
        before = weights
        weights, state = reference.adam(weights, gradients, state, learning_rate=0.01)
        moved = [variable.numpy() for variable in variables]
        step([tf.constant(gradient, dtype) for gradient in gradients.values()])
        for variable, was, name in zip(variables, moved, weights, strict=True):
            # Each step's own length: the sum over the steps would hide an error in the first ones.
            np.testing.assert_allclose(
                variable.numpy() - was, weights[name] - before[name], rtol=0, atol=0.01 * BOUND[dtype]
            )
    assert adam.steps.numpy() == 12
