"""A language model that several processes train, each a worker of tf.distribute's strategy.

Each has the network and its share of the batch's rows. In a training step the workers add up their gradients,
and each moves its weights alike. All other steps are a worker's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import Words
from ptb_lm.model.backend import Arrays, StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.tf_backend import streams
from ptb_lm.tf_backend.backend import TensorFlowBackend
from ptb_lm.tf_backend.execution import executed
from ptb_lm.tf_backend.network import Loss, State
from ptb_lm.tf_backend.ranks import TensorFlowRanks
from ptb_lm.tf_backend.replicas import exchanged, of_first


class WorkerBackend(TensorFlowBackend):
    """An LSTM language model in TensorFlow that several workers train together.

    Args:
        config: The hyper-parameters.
        weights: To start from.
        choice: What computes it.
        ranks: The workers.

    Raises:
        UserError: XLA is asked for.
    """

    ranks: TensorFlowRanks

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: TensorFlowRanks
    ) -> None:
        if choice.execution == "xla":
            raise UserError("--execution xla is for one process; choose graph or eager")
        super().__init__(config, weights, choice)
        self.ranks = ranks
        streams.begin(self.dropout.generator, streams.seed(choice.seed, ranks.rank))
        self.train_function = executed(self._train, choice.execution)

    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD, each worker with its share of the rows."""
        with self.ranks.heard():
            return super().train_step(x_BT, y_BT, state, learning_rate=learning_rate)

    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses."""
        with self.ranks.heard(), tf.device(self.device.name):
            if losses:
                return super().read(losses)
            tf.zeros([]).numpy()  # sync_devices would also ask the other workers' devices, and fail
            return []

    def _train(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor) -> tuple[State, Loss]:
        def of_one() -> tuple[State, Loss]:
            return self.network.train(x_BT, y_BT, state, rate, exchange=exchanged, agreed=of_first)

        after: tuple[State, Loss] = self.ranks.strategy.run(of_one)
        return after

    def export_training_state(self, state: State) -> Arrays:
        """Return what the rows of all workers carry, and their streams."""
        everywhere = self.ranks.gather(super().export_training_state(state))
        return {
            **{name: np.concatenate([there[name] for there in everywhere], axis=1) for name in self.carried},
            streams.NAME: np.stack([there[streams.NAME] for there in everywhere]),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set this worker's part of what `export_training_state` returned; return the carried state."""
        mine = self.ranks.share(arrays[self.carried[0]].shape[1])
        return super().load_training_state(
            {**arrays, **{name: arrays[name][:, mine] for name in self.carried}}
        )

    def environment(self) -> dict[str, Any]:
        """Return versions, device, threads, and how many processes."""
        return {**super().environment(), "processes": self.ranks.size}
