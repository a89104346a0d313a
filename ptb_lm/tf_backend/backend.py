"""The TensorFlow backend: the contract of ptb_lm.backend.

Shapes: B = batch, T = time steps, H = hidden units.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.backend import Arrays, Ids, Measured
from ptb_lm.config import Config
from ptb_lm.errors import UserError
from ptb_lm.tf_backend.cells import layer_type
from ptb_lm.tf_backend.network import Loss, Network, State

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
        self.network = Network(
            config,
            layer_type(model, gpu=gpu),
            vocabulary_size=len(weights["embedding"]),
            unroll=unroll,
            dtype=dtype,
            seed=seed,
        )
        window, h_BH = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, config.hidden_size], dtype)
        signature = [window, window, [(h_BH, h_BH)] * config.num_layers]
        self.train_function = _executed(self.network.train, execution)
        self.evaluate_function = _executed(self.network.evaluate, execution, signature)
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
        return self.network.canonical()

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays."""
        self.network.load(weights)

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state and the state of the dropout stream."""
        return {
            "h": np.stack([h_BH.numpy() for h_BH, _ in state]),
            "c": np.stack([c_BH.numpy() for _, c_BH in state]),
            "tensorflow.generator": self.network.dropout.generator.state.numpy(),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""
        try:
            self.network.dropout.generator.reset(arrays["tensorflow.generator"])
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
            "threads": tf.config.threading.get_intra_op_parallelism_threads()
            or os.environ.get("TF_NUM_INTRAOP_THREADS")
            or "one a core",
            "device": f"cpu ({platform.machine()})",
        }
        if self.device == "GPU:0":
            (gpu, *_) = tf.config.list_physical_devices("GPU")
            build_info = tf.sysconfig.get_build_info()
            facts["device"] = tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
            facts["cuda"], facts["cudnn"] = build_info["cuda_version"], build_info["cudnn_version"]
        return facts


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


def _engine(model: str, execution: str, *, gpu: bool) -> str:
    if model != "cudnn":
        return f"tensorflow {model} on {'cuda' if gpu else 'cpu'} ({execution})"
    if gpu:
        return f"CudnnRNNV3 on cuda (cuDNN, {execution})"
    return f"keras.layers.LSTM on cpu ({execution}; cuDNN needs a GPU)"
