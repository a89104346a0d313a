"""Workers that train together, by tf.distribute.MultiWorkerMirroredStrategy: one process and device each.

TF_CONFIG tells each process the addresses of all and its own place among them. What is agreed upon outside of
a training step is summed by the strategy, too: to send something, a rank adds its numbers, and the others add
zeros.
"""

import contextlib
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.common import signals
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.model.ranks import RANK_TIMEOUT, SeveralRanks, timeout
from ptb_lm.model.tf_config import TRAINING_JOBS, tf_config

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
        device: What --device says.
        reduce_precision: What --reduce-precision says.

    Raises:
        UserError: Some did not come; or this process has several GPUs, or is to round gradients.
    """
    said = tf_config()
    if not said.processes or said.job not in TRAINING_JOBS:
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
        waits = f"this {said.job} waits for all {said.processes} processes that TF_CONFIG names"
        alone = said.processes == 1
        with contextlib.nullcontext() if alone else signals.handle_in_libraries(waits, deaf=True):
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
        raise UserError("--reduce-precision bf16: TensorFlow sends gradients as they are")


class TensorFlowRanks(SeveralRanks):
    """The workers of a strategy.

    Args:
        strategy: It has one replica in each worker.
    """

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        self.strategy = strategy
        resolver = strategy.cluster_resolver
        self._chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
        self.rank = self._of(resolver.task_type, resolver.task_id)
        self.size = strategy.num_replicas_in_sync
        self._summed = tf.function(self._sum_of_replicas, autograph=False)

    def _of(self, task_type: str, task: str | int) -> int:
        """Return which rank a task of the cluster is: the chief is the first."""
        return int(task) + (self._chiefs if task_type == "worker" else 0)

    def broadcast(self, outcome: T) -> T:
        """Return what the first rank gives here."""
        message = pickle.dumps(outcome) if self.is_first else b""
        (length,) = self._sums(np.array([len(message)]))
        first: T = pickle.loads(self._sums(_as_numbers(message, length)).tobytes())  # noqa: S301 (a rank's)
        return first

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, in their order."""
        message = pickle.dumps(value)
        length = max(self._of_each(np.array([len(message)])))[0]
        found = self._of_each(_as_numbers(message, length))
        return [pickle.loads(each.tobytes()) for each in found]  # noqa: S301 (a rank's)

    def sum_over_ranks(self, number: float) -> float:
        """Return the sum of a number over the ranks."""
        return float(self._sums(np.array([number], np.float64))[0])

    def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> list[int]:
        """Return the greatest over the ranks, of each number."""
        greatest: list[int] = self._of_each(np.array(numbers, np.int64)).max(axis=0).tolist()
        return greatest

    def _of_each(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of each rank, [ranks, numbers]."""
        everywhere = np.zeros([self.size, len(numbers)], numbers.dtype)
        everywhere[self.rank] = numbers
        return self._sums(everywhere)

    def _sums(self, numbers: NDArray[Any]) -> NDArray[Any]:
        with self.heard():
            # Not by a call of the function, which warns of its many shapes.
            summed = self._summed.get_concrete_function(tf.TensorSpec(numbers.shape, numbers.dtype))
            sums: NDArray[Any] = summed(tf.constant(numbers)).numpy()
        return sums

    def _sum_of_replicas(self, numbers: tf.Tensor) -> tf.Tensor:
        def of_one() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(numbers))

        return self.strategy.run(of_one)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Return a context of a collective operation.

        Raises:
            LostRankError: Another rank has ended, or is silent.
        """
        try:
            with signals.handle_in_libraries():
                yield
        except LOST as error:
            raise LostRankError(self._lost(error), speaker=True) from error

    def _lost(self, error: tf.errors.OpError) -> str:
        if isinstance(error, tf.errors.DeadlineExceededError):
            return f"a rank did not answer for {timeout(RANK_TIMEOUT).total_seconds():.0f} seconds"
        # TensorFlow lists the tasks whose heartbeats stopped.
        tasks = TASK.findall(error.message) if "heartbeat" in error.message else []
        missing = sorted({self._of(*task) for task in tasks} - {self.rank})
        names = ", ".join(f"rank {rank} of {self.size}" for rank in missing) or "a rank"
        return f"{names} has ended or does not answer"

    def report_failure(self, problem: str) -> bool:
        """Return whether this process tells the user why it ends: each has a terminal of its own."""
        return True

    def leave(self) -> None:
        """Close nothing: TensorFlow closes its connections as the process ends."""


def _as_numbers(message: bytes, length: int) -> NDArray[np.int64]:
    """Return a message as numbers, for a sum, with zeros behind it.

    Their count is rounded up to a power of two: each count needs a graph of its own, so there are few.

    Args:
        message: Or nothing, from a rank that only listens.
        length: Of the message that is sent, in bytes.
    """
    numbers = np.zeros(1 << (max(1, int(length) - 1) // 8).bit_length(), np.int64)
    numbers.view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
    return numbers
