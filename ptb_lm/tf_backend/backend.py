"""The TensorFlow backend: the contract of ptb_lm.backend.

Shapes: B = batch, T = time steps, N = T * B tokens, L = layers, H = hidden units, V = vocabulary.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.backend import Arrays, Ids, Measured
from ptb_lm.config import Config
from ptb_lm.errors import UserError
from ptb_lm.tf_backend.cells import layer_type
from ptb_lm.tf_backend.loss import SoftmaxLayer, sum_by_word
from ptb_lm.tf_backend.model import InvertedDropout, LSTMStack, no_dropout
from ptb_lm.tf_backend.time_loop import LayerState

State = Sequence[LayerState]
Loss: TypeAlias = tf.Tensor  # [2] in float64: negative log likelihood, gradient norm

DTYPES = {"fp32": tf.float32, "fp64": tf.float64}


def build(
    config: Config,
    weights: Mapping[str, NDArray[Any]],
    *,
    model: str,
    execution: str,
    unroll: str,
    device: str,
    precision: str,
    seed: int,
) -> "TensorFlowBackend":
    """Build the backend; see ptb_lm.backend.build.

    Raises:
        UserError: There is no such device, or XLA cannot compile the model on it.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if device == "cuda" and not gpus:
        raise UserError(f"--device cuda: tensorflow {tf.__version__} finds no CUDA device here")
    gpu = device == "cuda" or (device == "auto" and bool(gpus))
    if gpu and model == "cudnn" and execution == "xla":
        raise UserError("XLA cannot compile CudnnRNNV3; choose --execution graph or eager, or --model basic")
    with tf.device("GPU:0" if gpu else "CPU:0"):
        return TensorFlowBackend(
            config,
            weights,
            model=model,
            execution=execution,
            unroll=unroll,
            gpu=gpu,
            dtype=DTYPES[precision],
            seed=seed,
        )


class TensorFlowBackend:
    """An LSTM language model in TensorFlow, with SGD.

    Attributes:
        train_function: The training step, as it is executed; traced once for each shape of window.
        evaluate_function: The evaluation step; traced once for all.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        *,
        model: str,
        execution: str,
        unroll: str,
        gpu: bool,
        dtype: tf.DType,
        seed: int,
    ) -> None:
        # fp32 means IEEE float32; TensorFlow's default would let a GPU round to TF32.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        self.config = config
        self.device = "GPU:0" if gpu else "CPU:0"
        self.dtype = dtype
        self.engine = _engine(model, execution, gpu=gpu)
        width, vocabulary_size = config.hidden_size, len(weights["embedding"])
        self.embedding_VH = tf.Variable(tf.zeros([vocabulary_size, width], dtype))
        layer = layer_type(model, gpu=gpu)
        self.stack = LSTMStack(
            [layer(width, width, dtype=dtype, unroll=unroll) for _ in range(config.num_layers)]
        )
        self.softmax = SoftmaxLayer(width, vocabulary_size, dtype=dtype)
        self.dropout = InvertedDropout(config.keep_prob, seed=seed)
        window = tf.TensorSpec([None, None], tf.int32)
        layer_state = (tf.TensorSpec([None, width], dtype), tf.TensorSpec([None, width], dtype))
        self.train_function = _executed(self._train, execution)
        self.evaluate_function = _executed(
            self._evaluate, execution, signature=[window, window, [layer_state] * config.num_layers]
        )
        self.load_weights(weights)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        shape = (batch_size, self.config.hidden_size)
        with tf.device(self.device):
            return [
                (tf.zeros(shape, self.dtype), tf.zeros(shape, self.dtype))
                for _ in range(self.config.num_layers)
            ]

    def train_step(self, x_BT: Ids, y_BT: Ids, state: State, *, learning_rate: float) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        with tf.device(self.device):
            # A tensor, because the function would be traced again for every new number.
            rate = tf.constant(learning_rate, self.dtype)
            state, loss = self.train_function(tf.constant(x_BT), tf.constant(y_BT), state, rate)
        return state, loss

    def evaluate_step(self, x_BT: Ids, y_BT: Ids, state: State) -> tuple[State, Loss]:
        """Score a window without dropout."""
        with tf.device(self.device):
            state, loss = self.evaluate_function(tf.constant(x_BT), tf.constant(y_BT), state)
        return state, loss

    def read(self, losses: Sequence[Loss]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            tf.test.experimental.sync_devices()
            return []
        return [Measured(*pair) for pair in tf.stack(losses).numpy().tolist()]

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name."""
        arrays: Arrays = {"embedding": self.embedding_VH.numpy()}
        for index, layer in enumerate(self.stack.layers):
            arrays |= {f"lstm.{index}.{name}": array for name, array in layer.canonical().items()}
        weight = self.softmax.weight.numpy()
        return arrays | {"softmax.kernel": weight[:-1], "softmax.bias": weight[-1]}

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays."""
        arrays = {name: array.astype(self.dtype.as_numpy_dtype) for name, array in weights.items()}
        self.embedding_VH.assign(arrays["embedding"])
        for index, layer in enumerate(self.stack.layers):
            prefix = f"lstm.{index}."
            layer.load({n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)})
        self.softmax.weight.assign(np.vstack([arrays["softmax.kernel"], arrays["softmax.bias"]]))

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state and the state of the dropout stream."""
        return {
            "h": np.stack([h_BH.numpy() for h_BH, _ in state]),
            "c": np.stack([c_BH.numpy() for _, c_BH in state]),
            "tensorflow.generator": self.dropout.generator.state.numpy(),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""
        try:
            self.dropout.generator.reset(arrays["tensorflow.generator"])
        except ValueError as error:
            raise UserError(f"the dropout stream is not one of TensorFlow's ({error})") from None
        with tf.device(self.device):
            return [
                (tf.constant(h_BH, self.dtype), tf.constant(c_BH, self.dtype))
                for h_BH, c_BH in zip(arrays["h"], arrays["c"], strict=True)
            ]

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        facts: dict[str, Any] = {
            "tensorflow": tf.__version__,
            # 0: TensorFlow chooses.
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "device": f"cpu ({platform.machine()})",
        }
        if self.device == "GPU:0":
            (gpu, *_) = tf.config.list_physical_devices("GPU")
            build_info = tf.sysconfig.get_build_info()
            facts["device"] = tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
            facts["cuda"], facts["cudnn"] = build_info["cuda_version"], build_info["cudnn_version"]
        return facts

    def _train(
        self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, learning_rate: tf.Tensor
    ) -> tuple[State, Loss]:
        ids_N, targets_N = _time_major(x_BT), _time_major(y_BT)
        batch, steps = x_BT.shape
        x_TBH = tf.reshape(tf.gather(self.embedding_VH, ids_N), [steps, batch, -1])
        with tf.GradientTape() as tape:
            tape.watch(x_TBH)
            output_TBH, state = self.stack(x_TBH, state, self.dropout)
        output_NH = tf.reshape(output_TBH, [steps * batch, -1])
        nll_N, d_output_NH, d_softmax = self.softmax.loss_and_gradients(output_NH, targets_N, 1 / batch)
        d_x_TBH, *gradients = tape.gradient(
            output_TBH, [x_TBH, *self.stack.trained], tf.reshape(d_output_NH, [steps, batch, -1])
        )
        d_x_NH = tf.reshape(d_x_TBH, [steps * batch, -1])
        norm = self._update(ids_N, d_x_NH, [d_softmax, *gradients], learning_rate)
        return state, _loss(nll_N, norm)

    def _evaluate(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, Loss]:
        ids_BT = tf.transpose(x_BT)
        output_TBH, state = self.stack(tf.gather(self.embedding_VH, ids_BT), state, no_dropout)
        output_NH = tf.reshape(output_TBH, [-1, self.config.hidden_size])
        nll_N = self.softmax.losses(output_NH, _time_major(y_BT))
        return state, _loss(nll_N, tf.zeros([], self.dtype))

    def _update(
        self, ids_N: tf.Tensor, d_x_NH: tf.Tensor, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor
    ) -> tf.Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        The embedding's gradient has rows only for the words of the window; no others are touched.
        """
        d_embedding_NH = sum_by_word(d_x_NH, ids_N, self.embedding_VH.shape[0])
        norm = tf.linalg.global_norm([d_embedding_NH, *gradients])
        bound = self.config.max_grad_norm
        scale = learning_rate * bound / tf.maximum(norm, bound)
        self.embedding_VH.scatter_sub(tf.IndexedSlices(scale * d_embedding_NH, ids_N))
        for variable, gradient in zip([self.softmax.weight, *self.stack.trained], gradients, strict=True):
            # In one pass, where assign_sub(scale * gradient) takes two.
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=scale, delta=gradient)
        return norm


def _executed(
    function: Callable[..., Any], execution: str, signature: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """Return a function as --execution wants it run."""
    if execution == "eager":
        return function
    compiled: Callable[..., Any] = tf.function(
        function,
        input_signature=signature,
        jit_compile=execution == "xla",
        autograph=False,  # loops say themselves whether they unroll
    )
    return compiled


def _time_major(ids_BT: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.transpose(ids_BT), [-1])


def _loss(nll_N: tf.Tensor, norm: tf.Tensor) -> Loss:
    # Summed in float64: the total over a split must not depend on how it was cut into windows.
    loss: Loss = tf.stack([tf.reduce_sum(tf.cast(nll_N, tf.float64)), tf.cast(norm, tf.float64)])
    return loss


def _engine(model: str, execution: str, *, gpu: bool) -> str:
    if model != "cudnn":
        return f"tensorflow {model} on {'cuda' if gpu else 'cpu'} ({execution})"
    if gpu:
        return f"CudnnRNNV3 on cuda (cuDNN, {execution})"
    return f"keras.layers.LSTM on cpu ({execution}; cuDNN needs a GPU)"
