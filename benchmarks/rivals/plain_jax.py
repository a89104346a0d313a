"""The JAX loop that people write: LSTM layers by lax.scan, and one jitted step with clipping and SGD.

One product of all of a layer's inputs stands before its scan. The embedding's gradient is that of jax.grad: a
row for every word of the vocabulary. In bf16 the weights are kept in float32 and cast in each step; the
softmax's loss is computed in float32.

Shapes: B = batch, T = time steps, V = vocabulary, I = input width, H = hidden units, G = 4 H.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.rivals import jax_device  # sets up JAX before it is imported

# isort: split
import jax
import jax.numpy as jnp
from jax import lax
from numpy.typing import NDArray

from ptb_lm.bench.rivals import check_config
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import TokenArray
from ptb_lm.data.text import Ids
from ptb_lm.model.backend import Arrays, StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config

Parameters: TypeAlias = dict[str, jax.Array]  # by canonical name
LayerState: TypeAlias = tuple[jax.Array, jax.Array]  # (h_BH, c_BH)
State: TypeAlias = list[LayerState]
Loss: TypeAlias = tuple[jax.Array, jax.Array]  # negative log likelihood [], gradient norm []
DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}  # by precision


class JaxLoop:
    """A language model in JAX; as much of ptb_lm.model.backend.Backend as the benchmark asks for."""

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        if choice.device == "cuda" and not jax_device.has_gpu():
            raise UserError("--device cuda: JAX finds no CUDA device here")
        self.gpu = choice.device != "cpu" and jax_device.has_gpu()
        if self.gpu:
            jax_device.compute_in_ieee_float32()
        self.config, self.dtype = config, DTYPES[choice.precision]
        self.device = jax.devices("gpu" if self.gpu else "cpu")[0]
        self.engine = f"jax.lax.scan on {'cuda' if self.gpu else 'cpu'} (XLA)"
        self.key = jax.device_put(jax.random.key(choice.seed), self.device)
        self.train_function = jax.jit(
            functools.partial(_train, config=config, dtype=self.dtype), donate_argnums=0
        )
        self.parameters: Parameters = {}
        self.load_weights(weights)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        shapes = [(batch_size, hidden) for hidden in self.config.hidden_sizes]
        zeros = functools.partial(jnp.zeros, dtype=self.dtype, device=self.device)
        return [(zeros(shape), zeros(shape)) for shape in shapes]

    def to_device(self, rows_BL: Ids) -> jax.Array:
        """Return the rows on the device."""
        return jax.device_put(rows_BL, self.device)

    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        self.parameters, self.key, state, loss = self.train_function(
            self.parameters, self.key, x_BT, y_BT, state, learning_rate
        )
        return state, loss

    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses."""
        jax.block_until_ready(self.parameters)
        return [StepMetrics(*map(float, loss)) for loss in jax.device_get(losses)]

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name."""
        return dict(jax.device_get(self.parameters))

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays."""
        self.parameters = {
            name: jax.device_put(jnp.array(array, jnp.float32), self.device)
            for name, array in weights.items()
        }

    def device_memory(self) -> int | None:
        """Return the peak of allocated bytes since the process started; None on a CPU."""
        return jax_device.peak_memory() if self.gpu else None

    def environment(self) -> dict[str, Any]:
        """Return the version, the device and the threads."""
        return jax_device.environment(self.gpu)


def _train(
    parameters: Parameters,
    key: jax.Array,
    x_BT: jax.Array,
    y_BT: jax.Array,
    state: State,
    learning_rate: jax.Array,
    *,
    config: Config,
    dtype: Any,
) -> tuple[Parameters, jax.Array, State, Loss]:
    key, dropout_key = jax.random.split(key)

    def tutorial_loss(parameters: Parameters) -> tuple[jax.Array, tuple[jax.Array, State]]:
        mean, after = _mean_loss(parameters, x_BT, y_BT, state, dropout_key, config, dtype)
        # The mean over tokens is what people write; this factor makes it the tutorial's loss.
        return mean * x_BT.shape[1], (mean, after)

    gradients, (mean, state) = jax.grad(tutorial_loss, has_aux=True)(parameters)
    norm = jnp.sqrt(sum(jnp.vdot(gradient, gradient) for gradient in gradients.values()))
    scale = learning_rate * jnp.minimum(1.0, config.max_grad_norm / norm)
    moved = {name: array - scale * gradients[name] for name, array in parameters.items()}
    return moved, key, state, (mean * x_BT.size, norm)


def _mean_loss(
    parameters: Parameters,
    x_BT: jax.Array,
    y_BT: jax.Array,
    state: State,
    key: jax.Array,
    config: Config,
    dtype: Any,
) -> tuple[jax.Array, State]:
    """Return the mean loss of a target, [], and the state."""
    weights = {name: array.astype(dtype) for name, array in parameters.items()}
    keys = jax.random.split(key, config.num_layers + 1)
    output_TBI, after = _drop(weights["embedding"][x_BT.T], keys[0], config.keep_prob), []
    for layer, before in enumerate(state):
        last, output_TBI = _run_layer(weights, layer, output_TBI, before)
        output_TBI = _drop(output_TBI, keys[layer + 1], config.keep_prob)
        after.append(last)
    logits_TBV = (output_TBI @ weights["softmax.kernel"] + weights["softmax.bias"]).astype(jnp.float32)
    log_p_TBV = jax.nn.log_softmax(logits_TBV)
    return -jnp.take_along_axis(log_p_TBV, y_BT.T[..., None], axis=-1).mean(), after


def _drop(x_TBI: jax.Array, key: jax.Array, keep_prob: float) -> jax.Array:
    if keep_prob == 1:
        return x_TBI
    return jnp.where(jax.random.bernoulli(key, keep_prob, x_TBI.shape), x_TBI / keep_prob, 0)


def _run_layer(
    weights: Parameters, layer: int, x_TBI: jax.Array, state: LayerState
) -> tuple[LayerState, jax.Array]:
    """Return the state after the last step, and the output [T, B, H]."""
    kernel_IG, recurrent_kernel_HG, bias_G = (
        weights[f"lstm.{layer}.{kind}"] for kind in ("kernel", "recurrent_kernel", "bias")
    )

    def step(state: LayerState, inputs_BG: jax.Array) -> tuple[LayerState, jax.Array]:
        h_BH, c_BH = state
        i_BH, f_BH, g_BH, o_BH = jnp.split(inputs_BG + h_BH @ recurrent_kernel_HG, 4, axis=-1)
        c_BH = jax.nn.sigmoid(f_BH) * c_BH + jax.nn.sigmoid(i_BH) * jnp.tanh(g_BH)
        h_BH = jax.nn.sigmoid(o_BH) * jnp.tanh(c_BH)
        return (h_BH, c_BH), h_BH

    last, output_TBH = lax.scan(step, state, x_TBI @ kernel_IG + bias_G)
    return last, output_TBH


def build(config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> JaxLoop:
    """Build the loop; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, or the configuration asks for what the loop lacks.
    """
    check_config(config, "JAX")
    return JaxLoop(config, weights, choice)
