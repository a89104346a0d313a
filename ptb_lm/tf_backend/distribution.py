"""The devices that train a model together: one, several of this process, or one in each of several processes.

Each device has a network of its own. In a training step it computes with its share of the batch's rows, the
devices add up their gradients, and each moves its weights alike: as one device would, with all rows. All
that is not training happens on the first device of a process. The state that its rows carry from window to
window lies there, whole.

Shapes: B = batch, T = time steps, N = tokens of a device's window, E = embedding width.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.tf_backend.loss import Loss
from ptb_lm.tf_backend.network import State
from ptb_lm.tf_backend.ranks import TensorFlowRanks, check_reduce_precision
from ptb_lm.tf_backend.runtime import Device, choose_device

# (index of a device in this process, x_BT, y_BT, state, learning rate) -> (state, loss)
DeviceStep = Callable[[int, tf.Tensor, tf.Tensor, State, tf.Tensor], tuple[State, Loss]]


class Distribution:
    """The devices that train a model together; as it is here, one.

    Attributes:
        ranks: The processes.
        strategy: The strategy of tf.distribute that connects the devices. None: there is one device.
        device: The first device of this process.
        names: Names of the devices of this process, for tf.device.
    """

    ranks: Ranks = SINGLE_PROCESS
    strategy: tf.distribute.Strategy | None = None

    def __init__(self, device: Device) -> None:
        self.device = device
        self.names = [device.name]

    def run(
        self, step: DeviceStep, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor
    ) -> tuple[State, Loss]:
        """Do a training step on each device of this process, with its share of the process's rows."""
        return step(0, x_BT, y_BT, state, rate)

    def merge(
        self, nll_N: tf.Tensor, ids_N: tf.Tensor, d_embedded_NE: tf.Tensor, gradients: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]:
        """Return the four results of all devices together, with gradients of the mean of the devices' losses.

        Each device calls this at the same place of its step. The rows of ids_N and d_embedded_NE are those of
        all devices, one after the other; nll_N and the other gradients are summed.

        Args:
            nll_N: Negative log likelihoods of this device's window.
            ids_N: Words of the window.
            d_embedded_NE: The gradient with respect to the embedding of each of these words.
            gradients: The gradients with respect to the other variables.
        """
        if self.strategy is None:
            return nll_N, ids_N, d_embedded_NE, gradients
        context = tf.distribute.get_replica_context()
        count = context.num_replicas_in_sync
        nll = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(tf.cast(nll_N, tf.float64)))
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [gradient / count for gradient in gradients])
        return nll, context.all_gather(ids_N, 0), context.all_gather(d_embedded_NE, 0) / count, list(sums)

    def broadcast_norm(self, norm: tf.Tensor) -> tf.Tensor:
        """Return the first device's norm of the gradient, so that all clip alike.

        All have the same gradients. But a norm is a sum, and another device may add in another order.
        """
        if self.strategy is None:
            return norm
        context = tf.distribute.get_replica_context()
        first = int(tf.get_static_value(context.replica_id_in_sync_group)) == 0
        return context.all_reduce(tf.distribute.ReduceOp.SUM, norm if first else tf.zeros_like(norm))

    def collective(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of an operation that waits for other processes.

        Raises:
            LostRankError: One of them has ended, or is silent.
        """
        return contextlib.nullcontext()

    def wait(self) -> None:
        """Wait for the devices of this process."""
        tf.test.experimental.sync_devices()

    def environment(self) -> dict[str, Any]:
        """Return how many devices or processes there are, if there are several."""
        counts = {"devices": len(self.names), "processes": self.ranks.size}
        return {what: count for what, count in counts.items() if count > 1}


class MirroredDevices(Distribution):
    """Several devices of this process, by tf.distribute.MirroredStrategy.

    Args:
        choice: The choices of the run.
        count: The number of devices, which share the rows evenly.

    Raises:
        UserError: There are fewer.
    """

    strategy: tf.distribute.Strategy

    def __init__(self, choice: Choice, count: int) -> None:
        if choice.device == "cpu" or not tf.config.list_physical_devices("GPU"):
            _divide_cpu(count)
        super().__init__(choose_device(choice))
        kind = "GPU" if self.device.gpu else "CPU"
        found = len(tf.config.list_logical_devices(kind))
        if found < count:
            raise UserError(f"--devices {count}: TensorFlow finds {found} {kind}{'s' * (found > 1)} here")
        self.names = [f"{kind}:{index}" for index in range(count)]
        self.strategy = tf.distribute.MirroredStrategy(
            self.names, cross_device_ops=None if self.device.gpu else tf.distribute.ReductionToOneDevice()
        )

    @override
    def run(
        self, step: DeviceStep, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor
    ) -> tuple[State, Loss]:
        def run_on_one(x_bT: tf.Tensor, y_bT: tf.Tensor, state: State) -> tuple[State, Loss]:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            return step(int(tf.get_static_value(index)), x_bT, y_bT, state, rate)

        shares = tuple(tf.nest.map_structure(self._share_rows, [x_BT, y_BT, state]))
        states, loss = self.strategy.run(run_on_one, args=shares)
        flat = [self.strategy.experimental_local_results(part) for part in tf.nest.flatten(states)]
        whole = tf.nest.pack_sequence_as(states, [tf.concat(parts, axis=0) for parts in flat])
        return whole, self.strategy.experimental_local_results(loss)[0]

    def _share_rows(self, tensor: tf.Tensor) -> Any:
        """Return a tensor of all rows as the devices have it: the same rows of each tensor."""
        parts = tf.split(tensor, len(self.names))
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )


class Workers(Distribution):
    """A device in each of several processes, by tf.distribute.MultiWorkerMirroredStrategy.

    Args:
        choice: The choices of the run.
        ranks: The processes.

    Raises:
        UserError: There is no such device.
    """

    ranks: TensorFlowRanks

    def __init__(self, choice: Choice, ranks: TensorFlowRanks) -> None:
        super().__init__(choose_device(choice))
        self.ranks, self.strategy = ranks, ranks.strategy

    @override
    def run(
        self, step: DeviceStep, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor
    ) -> tuple[State, Loss]:
        return self.ranks.strategy.run(lambda: step(0, x_BT, y_BT, state, rate))

    @override
    def collective(self) -> contextlib.AbstractContextManager[None]:
        return self.ranks.collective()

    @override
    def wait(self) -> None:
        tf.zeros([]).numpy()  # sync_devices would also ask the other processes' devices, and fail


def distribute(choice: Choice, ranks: Ranks) -> Distribution:
    """Return the devices that were chosen.

    Args:
        choice: The choices of the run.
        ranks: The processes and their devices.

    Raises:
        UserError: There are no such devices, XLA cannot compile the model on them, or gradients are to be
            rounded.
    """
    if choice.execution == "xla" and ranks.size * ranks.devices > 1:
        what = "device" if ranks.devices > 1 else "process"
        raise UserError(f"--execution xla is for one {what}; choose graph or eager")
    if ranks.devices > 1:
        check_reduce_precision(ranks.reduce_precision)
        return MirroredDevices(choice, ranks.devices)
    if ranks.size > 1:
        assert isinstance(ranks, TensorFlowRanks)
        return Workers(choice, ranks)
    return Distribution(choose_device(choice))


def _divide_cpu(count: int) -> None:
    """Let the CPU be so many devices, of which TensorFlow makes one by default."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    with contextlib.suppress(RuntimeError):  # it is in use already; what there is is counted
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
