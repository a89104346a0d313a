"""Workers that train together, by tf.distribute.MultiWorkerMirroredStrategy: one process and device each.

TF_CONFIG tells each process the addresses of all and its own place among them. What is agreed upon outside of
a training step is summed by the strategy, too: to send something, a rank adds its numbers, and the others add
zeros.
"""

import contextlib
import pickle
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.common import signals
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.model.ranks import RANK_TIMEOUT, SILENCE_SHARE, TRAINING_JOBS, Ranks, tf_config, timeout

T = TypeVar("T")

TASK = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")
LOST = (
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)


def join(*, device: str, reduce_precision: str) -> "TensorFlowRanks":
    """Return the ranks that this process is one of, once all of them are there.

    Args:
        device: The value of --device.
        reduce_precision: The value of --reduce-precision.

    Raises:
        UserError: Some did not come; or this process has several GPUs, or is to round gradients.
    """
    processes, job = tf_config()
    if not processes or job not in TRAINING_JOBS:
        raise UserError(
            "TF_CONFIG must name this process as a worker or the chief; torchrun starts the processes of "
            "--framework torch"
        )
    check_reduce_precision(reduce_precision)
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif (gpus := len(tf.config.list_physical_devices("GPU"))) > 1:
        raise UserError(
            f"each worker of TF_CONFIG trains on one GPU, and this one sees {gpus}; start one for each, with "
            "its own CUDA_VISIBLE_DEVICES"
        )
    try:
        seconds = timeout(RANK_TIMEOUT).total_seconds()
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)
        waits = f"this {job} waits for all {processes} processes that TF_CONFIG names"
        with (
            contextlib.nullcontext()
            if processes == 1
            else signals.handle_in_libraries(waits, blocks_python=True)
        ):
            strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        return TensorFlowRanks(strategy)
    except (*LOST, tf.errors.UnknownError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(f"the workers of TF_CONFIG did not find each other: {first_line}") from None


def check_reduce_precision(name: str) -> None:
    """Check that gradients need not be rounded.

    Raises:
        UserError: They are to be.
    """
    if name == "bf16":
        raise UserError("--reduce-precision bf16: TensorFlow does not round the gradients that it sends")


class TensorFlowRanks(Ranks):
    """The workers of a strategy.

    Args:
        strategy: The strategy, with one replica in each worker.
    """

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        super().__init__()
        self.strategy = strategy
        resolver = strategy.cluster_resolver
        self._chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
        self.rank = self._task_rank(resolver.task_type, resolver.task_id)
        self.size = strategy.num_replicas_in_sync
        self._all_reduce_function = tf.function(self._all_reduce_replicas, autograph=False)

    def _task_rank(self, task_type: str, task: str | int) -> int:
        """Return the rank of a task of the cluster: the chief is the first."""
        return int(task) + (self._chiefs if task_type == "worker" else 0)

    @override
    def broadcast(self, outcome: T) -> T:
        message = pickle.dumps(outcome) if self.is_first else b""
        (length,) = self._all_reduce(np.array([len(message)]))
        numbers = self._all_reduce(_pack(message, length))
        return pickle.loads(numbers.tobytes())  # noqa: S301 (a rank's)

    @override
    def gather(self, value: T) -> list[T]:
        message = pickle.dumps(value)
        length = max(self._all_gather(np.array([len(message)])))[0]
        rows = self._all_gather(_pack(message, length))
        return [pickle.loads(row.tobytes()) for row in rows]  # noqa: S301 (a rank's)

    @override
    def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> list[int]:
        return self._all_gather(np.array(numbers, np.int64)).max(axis=0).tolist()

    def _all_gather(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of each rank, [ranks, numbers]."""
        rows = np.zeros([self.size, len(numbers)], numbers.dtype)
        rows[self.rank] = numbers
        return self._all_reduce(rows)

    def _all_reduce(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the sums over the ranks."""
        with self.collective():
            # Not by a call of the function, which warns of its many shapes.
            graph = self._all_reduce_function.get_concrete_function(
                tf.TensorSpec(numbers.shape, numbers.dtype)
            )
            sums: NDArray[Any] = graph(tf.constant(numbers)).numpy()
        return sums

    def _all_reduce_replicas(self, numbers: tf.Tensor) -> tf.Tensor:
        def all_reduce() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(numbers))

        return self.strategy.run(all_reduce)

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Return the context of a collective operation.

        Raises:
            LostRankError: Another rank has ended, or is silent.
        """
        start = time.monotonic()
        try:
            with signals.handle_in_libraries():
                yield
        except LOST as error:
            raise self._find_lost(error, time.monotonic() - start) from error

    def _find_lost(self, error: tf.errors.OpError, seconds: float) -> LostRankError:
        """Return the error that names the ranks that TensorFlow misses, which it has noticed after a time."""
        is_late = isinstance(error, tf.errors.DeadlineExceededError)  # or the time of a heartbeat is over
        if is_late and seconds > SILENCE_SHARE * timeout(RANK_TIMEOUT).total_seconds():
            return LostRankError(f"a rank did not answer for {seconds:.0f} seconds", speaker=True)
        # TensorFlow lists the tasks whose heartbeats stopped.
        tasks = TASK.findall(error.message) if "heartbeat" in error.message else []
        lost = sorted({self._task_rank(*task) for task in tasks} - {self.rank})
        names = ", ".join(f"rank {rank} of {self.size}" for rank in lost) or "a rank"
        return LostRankError(f"{names} has ended or does not answer", speaker=True)

    def report_failure(self, problem: str) -> bool:
        """Return whether this process tells the user why it ends: each has a terminal of its own."""
        return True

    def leave(self, *, failed: bool = False) -> None:
        """Close nothing: TensorFlow closes its connections as the process ends."""


def _pack(message: bytes, length: int) -> NDArray[np.int64]:
    """Return a message as numbers, for a sum, with zeros behind it.

    Their count is rounded up to a power of two: each count needs a graph of its own, so there are few.

    Args:
        message: The message, or nothing from a rank that only listens.
        length: The bytes of the message that is sent.
    """
    numbers = np.zeros(1 << (max(1, int(length) - 1) // 8).bit_length(), np.int64)
    numbers.view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
    return numbers
