"""The device, precision and execution of a model in TensorFlow, and how functions run by them."""

import contextlib
import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ptb_lm.common import cli, host, nvidia
from ptb_lm.common.errors import OutOfMemoryError, UserError
from ptb_lm.model.cells import LSTM
from ptb_lm.model.choice import Choice
from ptb_lm.model.rules import MachineFacts

TRACED = ("TrainingStep", "Network.")  # what the name of each of our traced functions has


def _should_log(record: logging.LogRecord) -> bool:
    """Return whether TensorFlow's logger keeps a record: all but warnings of what is done on purpose.

    A step is traced once for each length of windows, and scoring once for each model. Several devices of one
    process compute operation by operation if --execution says so.
    """
    message = str(record.msg)
    is_traced_again = "retracing" in message and any(name in message for name in TRACED)
    return not is_traced_again and not message.startswith("Using MirroredStrategy eagerly")


tf.get_logger().addFilter(_should_log)

DTYPES = {"fp32": tf.float32, "fp64": tf.float64}


@dataclass(frozen=True)
class Device:
    """The device of one model.

    Attributes:
        gpu: True for a CUDA device, False for the CPU.
    """

    gpu: bool

    @property
    def name(self) -> str:
        """Its name for tf.device."""
        return "GPU:0" if self.gpu else "CPU:0"

    def engine(self, choice: Choice, cell: str = LSTM) -> str:
        """Return the description of what computes the layers here, for people."""
        if choice.model != "cudnn":  # which computes the LSTM alone
            layers = choice.model if cell == LSTM else f"{choice.model} {cell}"
            return f"tensorflow {layers} on {'cuda' if self.gpu else 'cpu'} ({choice.execution})"
        if self.gpu:
            return f"CudnnRNNV3 on cuda (cuDNN, {choice.execution})"
        return f"keras.layers.LSTM on cpu ({choice.execution}; cuDNN needs a GPU)"

    def peak_memory(self) -> int | None:
        """Return the peak of allocated bytes since the last call; None on a CPU."""
        if not self.gpu:
            return None
        peak = int(tf.config.experimental.get_memory_info(self.name)["peak"])
        tf.config.experimental.reset_memory_stats(self.name)
        return peak

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        facts: dict[str, Any] = {
            "tensorflow": tf.__version__,
            "threads": tf.config.threading.get_intra_op_parallelism_threads()
            or _threads_from_environment()
            or "one a core",
            "device": f"cpu ({platform.machine()})",
        }
        if self.gpu:
            (gpu, *_) = tf.config.list_physical_devices("GPU")
            build_info = tf.sysconfig.get_build_info()
            facts["device"] = tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
            facts["cuda"], facts["cudnn"] = build_info["cuda_version"], build_info["cudnn_version"]
        return facts


def _threads_from_environment() -> str:
    """Return TF_NUM_INTRAOP_THREADS; "" if TensorFlow is to choose, because it is 0 or not set."""
    number = cli.from_environment("TF_NUM_INTRAOP_THREADS", cli.whole_number(0, 2**31 - 1), 0)
    return str(number) if number else ""


def choose_device(choice: Choice) -> Device:
    """Return the device that was chosen, and hold it to IEEE float32.

    Raises:
        UserError: There is no such device, or XLA cannot compile the model on it; or TF_NUM_INTRAOP_THREADS
            is no number of threads, which TensorFlow would not say.
    """
    _threads_from_environment()
    gpus = tf.config.list_physical_devices("GPU")
    if choice.device != "cpu" and not gpus:
        problem = f"tensorflow {tf.__version__} finds no CUDA device here"
        if found := nvidia.gpus():
            problem += f"; for the {found[0].name} it needs an environment of its own, as {nvidia.PAGE} says"
        if choice.device == "cuda":
            raise UserError(f"--device cuda: {problem}")
        if found:
            nvidia.warn(problem)
    gpu = choice.device == "cuda" or (choice.device == "auto" and bool(gpus))
    if gpu and (why := choice.framework_row.gpu_refusals.get((choice.model, choice.execution))):
        raise UserError(f"{why}; choose --execution graph or eager, or --model basic")
    # fp32 means IEEE float32; TensorFlow's default would let a GPU round to TF32.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return Device(gpu)


def examine(device: str) -> MachineFacts:
    """Return what the choice of a model and a precision depends on.

    Args:
        device: "auto", "cpu" or "cuda".
    """
    gpus = [] if device == "cpu" else tf.config.list_physical_devices("GPU")
    if not gpus:
        return MachineFacts(device="cpu", name="a CPU", cores=len(host.cores()))
    details = tf.config.experimental.get_device_details(gpus[0])
    return MachineFacts(device="cuda", name=f"the GPU {details.get('device_name', gpus[0].name)}")


@contextlib.contextmanager
def convert_allocation_errors() -> Iterator[None]:
    """Turn a failed allocation in this context, or in the function that it decorates, into one sentence.

    Raises:
        OutOfMemoryError: An allocation failed, on either device.
    """
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise OutOfMemoryError(host.describe_failed_allocation(error)) from None


def apply_execution(
    function: Callable[..., Any], execution: str, signature: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """Return a function that runs as --execution says.

    Args:
        function: The function to run.
        execution: "graph", "eager" or "xla".
        signature: The TensorSpecs of one graph for all shapes. None: a graph for each shape.
    """
    if execution == "eager":
        return function
    return tf.function(
        function,
        input_signature=signature,
        jit_compile=execution == "xla",
        autograph=False,  # loops say themselves whether they unroll
    )
