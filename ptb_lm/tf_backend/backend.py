"""The TensorFlow backend: the contract of ptb_lm.model.backend.

Shapes: B = batch, T = time steps, L = length of a row, H = hidden units.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import Words
from ptb_lm.data.text import Ids
from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays, Backend, StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.tf_backend import streams
from ptb_lm.tf_backend.cells import layer_type
from ptb_lm.tf_backend.device import DTYPES, choose, enough_memory
from ptb_lm.tf_backend.execution import executed
from ptb_lm.tf_backend.network import Loss, Network, State


@enough_memory()
def build(
    config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = SINGLE_PROCESS
) -> "TensorFlowBackend":
    """Build the backend; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, XLA cannot compile the model on it, there is not enough memory, or
            gradients are to be rounded.
    """
    if ranks.devices > 1:
        from ptb_lm.tf_backend.ranks import check_reduce_precision
        from ptb_lm.tf_backend.replicas import ReplicatedBackend

        check_reduce_precision(ranks.reduce_precision)
        return ReplicatedBackend(config, weights, choice, devices=ranks.devices)
    if ranks.size > 1:
        from ptb_lm.tf_backend.ranks import TensorFlowRanks
        from ptb_lm.tf_backend.workers import WorkerBackend

        assert isinstance(ranks, TensorFlowRanks)
        return WorkerBackend(config, weights, choice, ranks)
    return TensorFlowBackend(config, weights, choice)


class TensorFlowBackend(Backend):
    """An LSTM language model in TensorFlow, with SGD.

    Attributes:
        train_function: The training step, as it is executed; traced once for each shape of window.
        window_function: The evaluation step for windows of the configuration's own shape, executed likewise.
        evaluate_function: The evaluation step for all others; traced once for all.
        log_probabilities_function, next_words_function: Likewise, for what a trained model is used for.
    """

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        host.keep_freed_memory()
        self.config = config
        self.choice = choice
        self.device = choose(choice)
        self.dtype = DTYPES[choice.precision]
        self.carried = cells.get(config.cell).state_names
        with tf.device(self.device.name):
            self.network = self.new_network(len(weights["embedding"]), seed=choice.seed)
        window = tf.TensorSpec([None, None], tf.int32)
        states = [tf.TensorSpec([None, hidden_size], self.dtype) for hidden_size in config.layer_sizes]
        signature = [window, window, [(part_BH,) * len(self.carried) for part_BH in states]]
        self.train_function = executed(self.network.train, choice.execution)
        self.window_function = executed(self.network.evaluate, choice.execution)
        self.evaluate_function = executed(self.network.evaluate, choice.execution, signature)
        self.log_probabilities_function = executed(
            self.network.log_probabilities, choice.execution, signature
        )
        self.next_words_function = executed(self.network.next_words, choice.execution, signature[1:])
        self.dropout = self.network.dropout
        self.streams = [self.dropout.generator]  # of each device
        self.averages: list[tf.Variable] = []
        self.load_weights(weights)

    def new_network(self, vocabulary_size: int, *, seed: int) -> Network:
        """Return a network of this configuration; its weights are still to be loaded."""
        return Network(
            self.config,
            layer_type(self.choice.model, cell=self.config.cell, gpu=self.device.gpu),
            vocabulary_size=vocabulary_size,
            unroll=self.choice.unroll,
            dtype=self.dtype,
            seed=seed,
        )

    @property
    def engine(self) -> str:
        """What computes the LSTM, for people."""
        return self.device.engine(self.choice, self.config.cell)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        with tf.device(self.device.name):
            return self.network.stack.zero_state(batch_size)

    @enough_memory()
    def place(self, rows_BL: Ids) -> tf.Tensor:
        """Return the rows on the device."""
        with tf.device(self.device.name):
            return tf.constant(rows_BL)

    @enough_memory()
    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        with tf.device(self.device.name):
            # A tensor, because the function would be traced again for every new number.
            rate = tf.constant(learning_rate, self.dtype)
            state, loss = self.train_function(
                tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state, rate
            )
        return state, loss

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that dropout will keep in the next training window."""

        def draw() -> tuple[Mapping[str, tf.Tensor], Sequence[tf.Tensor]]:
            masks = self.dropout.draw(batch, steps)
            return masks.weights, masks.units

        # XLA makes other masks of the same stream.
        execution = "xla" if self.choice.execution == "xla" else "eager"
        with tf.device(self.device.name):
            state = tf.identity(self.dropout.generator.state)
            weights, units = executed(draw, execution)()
            self.dropout.generator.reset(state)
        kept = {name: mask.numpy() != 0 for name, mask in weights.items()}
        return Masks(kept, [mask.numpy() != 0 for mask in units])

    @enough_memory()
    def evaluate_step(self, x_BT: Words, y_BT: Words, state: State) -> tuple[State, Loss]:
        """Score a window without dropout.

        One of the configuration's own shape is run as a training step is; all others share a graph.
        """
        own = x_BT.shape == (self.config.batch_size, self.config.num_steps)
        function = self.window_function if own else self.evaluate_function
        with tf.device(self.device.name):
            state, loss = function(tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state)
        return state, loss

    @enough_memory()
    def log_probabilities(
        self, x_BT: Words, y_BT: Words, state: State, *, lengths_B: Ids | None = None
    ) -> tuple[State, NDArray[Any]]:
        """Return the state after a window and the log-probability of each target [B, T].

        Padding, too, is computed: a graph of one shape is worth more than what it saves.
        """
        with tf.device(self.device.name):
            state, log_p_BT = self.log_probabilities_function(
                tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state
            )
        return state, log_p_BT.numpy()

    @enough_memory()
    def next_words(self, x_BT: Words, state: State) -> tuple[State, NDArray[Any]]:
        """Return the state after some words and the log-probability of every word to come next [B, V]."""
        with tf.device(self.device.name):
            state, log_p_BV = self.next_words_function(tf.convert_to_tensor(x_BT), state)
        return state, log_p_BV.numpy()

    @enough_memory()
    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            tf.test.experimental.sync_devices()
            return []
        return [StepMetrics(*pair) for pair in tf.stack(losses).numpy().tolist()]

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name."""
        return self.network.canonical()

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays."""
        with tf.device(self.device.name):
            self.network.load(weights)

    @enough_memory()
    def average(self, weight: float) -> None:
        """Move the averages of the parameters towards them."""
        with tf.device(self.device.name):
            if not self.averages:
                self.averages = [tf.Variable(variable) for variable in self.network.trained]
                return
            for average, variable in zip(self.averages, self.network.trained, strict=True):
                average.assign_add(weight * (variable - average))

    @contextlib.contextmanager
    def use_averages(self) -> Iterator[None]:
        """Return a context in which the averages are the parameters."""
        self._swap_averages()
        try:
            yield
        finally:
            self._swap_averages()

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state and the state of the dropout stream."""
        return {
            **{
                name: np.stack([part_BH.numpy() for part_BH in parts])
                for name, parts in zip(self.carried, zip(*state, strict=True), strict=True)
            },
            streams.NAME: streams.export(self.streams),
        }

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""
        try:
            streams.load(self.streams, arrays[streams.NAME], self.ranks)
        except ValueError as error:
            raise UserError(f"the random stream of dropout was not saved by TensorFlow ({error})") from None
        with tf.device(self.device.name):
            return [
                tuple(tf.constant(part_BH, self.dtype) for part_BH in layer)
                for layer in zip(*(arrays[name] for name in self.carried), strict=True)
            ]

    @enough_memory()
    def _swap_averages(self) -> None:
        with tf.device(self.device.name):
            for average, variable in zip(self.averages, self.network.trained, strict=True):
                kept = tf.identity(variable)
                variable.assign(average)
                average.assign(kept)

    def device_memory(self) -> int | None:
        """Return the peak of allocated bytes since the last call; None on a CPU."""
        return self.device.peak_memory()

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        return self.device.environment()
