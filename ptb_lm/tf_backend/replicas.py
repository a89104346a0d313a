"""A language model on several devices of one process, by tf.distribute.MirroredStrategy.

Each device has a network of its own. In a training step it computes with its share of the batch's rows, the
replicas add up their gradients, and each moves its weights alike: as one device would, of all rows. What is
carried from window to window lies on the first device, whole, and all that is not training happens there.

Shapes: B = batch, T = time steps.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import Words
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.tf_backend import streams
from ptb_lm.tf_backend.backend import TensorFlowBackend
from ptb_lm.tf_backend.device import Device, enough_memory
from ptb_lm.tf_backend.execution import executed
from ptb_lm.tf_backend.network import Loss, Network, State


class ReplicatedBackend(TensorFlowBackend):
    """An LSTM language model in TensorFlow that several devices train together.

    Args:
        config: The hyper-parameters.
        weights: To start from.
        choice: What computes it.
        devices: How many; they share the rows evenly.

    Raises:
        UserError: There are fewer, or XLA is asked for.
    """

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, *, devices: int
    ) -> None:
        if choice.execution == "xla":
            raise UserError("--execution xla is for one device; choose graph or eager")
        if choice.device == "cpu" or not tf.config.list_physical_devices("GPU"):
            _divide_cpu(devices)
        self.others: list[Network] = []
        self._average_in_place = False
        super().__init__(config, weights, choice)
        names = _names(self.device, devices)
        self.strategy = tf.distribute.MirroredStrategy(
            names, cross_device_ops=None if self.device.gpu else tf.distribute.ReductionToOneDevice()
        )
        for replica, name in enumerate(names[1:], start=1):
            with tf.device(name):
                self.others.append(
                    self.new_network(len(weights["embedding"]), seed=streams.seed(choice.seed, replica))
                )
        self.streams += [network.dropout.generator for network in self.others]
        self.train_function = executed(self._train, choice.execution)
        self.load_weights(weights)

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters of all replicas; where averages are in their place, those of the first."""
        super().load_weights(weights)
        if not self._average_in_place:
            for network in self.others:
                network.load(weights)

    @contextlib.contextmanager
    def use_averages(self) -> Iterator[None]:
        """Return a context in which the averages are the parameters of the first replica."""
        with super().use_averages():
            self._average_in_place = True
            try:
                yield
            finally:
                self._average_in_place = False

    @enough_memory()
    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD, each device with its share of the rows."""
        rate = tf.constant(learning_rate, self.dtype)
        after: tuple[State, Loss] = self.train_function(
            tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state, rate
        )
        return after

    def _train(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor) -> tuple[State, Loss]:
        shares = self._dealt_out([x_BT, y_BT, state])
        # As the replicas' threads number them.
        networks = [self.network, *self.others]

        def one(x_bT: tf.Tensor, y_bT: tf.Tensor, carried: State) -> tuple[State, Loss]:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            network = networks[int(tf.get_static_value(index))]
            return network.train(x_bT, y_bT, carried, rate, exchange=exchanged, agreed=of_first)

        computed = self.strategy.run(one, args=shares)
        states, loss = computed
        flat = [self.strategy.experimental_local_results(part) for part in tf.nest.flatten(states)]
        whole = tf.nest.pack_sequence_as(states, [tf.concat(parts, axis=0) for parts in flat])
        return whole, self.strategy.experimental_local_results(loss)[0]

    def _dealt_out(self, whole: Any) -> tuple[Any, ...]:
        """Return tensors of all rows as the replicas have them: the same rows of each."""

        def of_replicas(tensor: tf.Tensor) -> Any:
            parts = tf.split(tensor, 1 + len(self.others))
            return self.strategy.experimental_distribute_values_from_function(
                lambda context: parts[context.replica_id_in_sync_group]
            )

        return tuple(tf.nest.map_structure(of_replicas, whole))

    def environment(self) -> dict[str, Any]:
        """Return versions, device, threads, and how many devices."""
        return {**super().environment(), "devices": 1 + len(self.others)}


def exchanged(
    nll_N: tf.Tensor, ids_N: tf.Tensor, d_embedded_NE: tf.Tensor, gradients: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Return the losses, words, embedding's gradients of all replicas, and the sums of other gradients."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    nll = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(tf.cast(nll_N, tf.float64)))
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [gradient / count for gradient in gradients])
    return nll, context.all_gather(ids_N, 0), context.all_gather(d_embedded_NE, 0) / count, list(sums)


def of_first(norm: tf.Tensor) -> tf.Tensor:
    """Return the first replica's norm, so that all clip alike.

    All have the same gradients. But a norm is a sum, and another device may add in another order.
    """
    context = tf.distribute.get_replica_context()
    first = int(tf.get_static_value(context.replica_id_in_sync_group)) == 0
    return context.all_reduce(tf.distribute.ReduceOp.SUM, norm if first else tf.zeros_like(norm))


def _names(device: Device, count: int) -> list[str]:
    kind = "GPU" if device.gpu else "CPU"
    found = len(tf.config.list_logical_devices(kind))
    if found < count:
        raise UserError(f"--devices {count}: TensorFlow finds {found} {kind}{'s' * (found > 1)} here")
    return [f"{kind}:{index}" for index in range(count)]


def _divide_cpu(count: int) -> None:
    """Let the CPU be so many devices, of which TensorFlow makes one by default."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    with contextlib.suppress(RuntimeError):  # it is in use already, and _names counts
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
