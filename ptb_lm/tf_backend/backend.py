"""The TensorFlow backend: the contract of ptb_lm.model.backend.

Shapes: B = batch, T = time steps, L = length of a row, H = hidden units, V = vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.common import host
from ptb_lm.data.corpus import TokenArray
from ptb_lm.data.text import Ids
from ptb_lm.model.backend import Arrays, Backend, StepMetrics, in_model_context
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.tf_backend.cells import SteppedLayer, layer_type
from ptb_lm.tf_backend.distribution import Distribution, distribute
from ptb_lm.tf_backend.loss import Loss
from ptb_lm.tf_backend.network import Network, State
from ptb_lm.tf_backend.runtime import DTYPES, apply_execution, convert_allocation_errors
from ptb_lm.tf_backend.training_step import TrainingStep


@convert_allocation_errors()
def build(
    config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, ranks: Ranks = SINGLE_PROCESS
) -> "TensorFlowBackend":
    """Build the backend; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, XLA cannot compile the model on it, there is not enough memory, or
            gradients are to be rounded.
    """
    return TensorFlowBackend(config, weights, choice, distribute(choice, ranks))


class TensorFlowBackend(Backend):
    """A language model in TensorFlow, with SGD or Adam.

    Attributes:
        window_function: The evaluation step for windows of the configuration's own shape, as it is executed;
            traced once.
        evaluate_function: The evaluation step for all others; traced once for all.
        log_probabilities_function, next_word_function: The functions of a trained model, likewise.

    Args:
        config: The hyper-parameters.
        weights: The canonical parameters to start from.
        choice: The choices of the run.
        distribution: The devices.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        distribution: Distribution,
    ) -> None:
        host.keep_freed_memory()
        self.config, self.choice = config, choice
        self.distribution, self.ranks, self.device = distribution, distribution.ranks, distribution.device
        self.dtype = DTYPES[choice.precision]
        state_names = config.cell_declaration.state_names
        self._vocabulary_size = len(weights["embedding"])
        self._layer = layer_type(choice.model, cell=config.cell, gpu=self.device.gpu)
        self.network = self._new_network(self.device.name)
        window = tf.TensorSpec([None, None], tf.int32)
        states = [tf.TensorSpec([None, hidden_size], self.dtype) for hidden_size in config.hidden_sizes]
        signature = [window, window, [(part_BH,) * len(state_names) for part_BH in states]]
        self.window_function = apply_execution(self.network.evaluate, choice.execution)
        self.evaluate_function = apply_execution(self.network.evaluate, choice.execution, signature)
        self.log_probabilities_function = apply_execution(
            self.network.log_probabilities, choice.execution, signature
        )
        self.next_word_function = apply_execution(
            self.network.next_word_log_probabilities, choice.execution, signature[1:]
        )
        self.load_weights(weights)

    def _new_network(self, device: str) -> Network:
        """Return a network of this configuration on a device; its weights are still to be loaded."""
        with tf.device(device):
            return Network(
                self.config,
                self._layer,
                vocabulary_size=self._vocabulary_size,
                unroll=self.choice.unroll,
                dtype=self.dtype,
            )

    @override
    @contextmanager
    def context(self) -> Iterator[None]:
        with convert_allocation_errors(), tf.device(self.device.name):
            yield

    @cached_property
    def training(self) -> TrainingStep:
        """The training step and its state, made when it is first used."""
        copies = [self._new_network(name) for name in self.distribution.names[1:]]
        return TrainingStep([self.network, *copies], self.config, self.choice, self.distribution)

    @property
    @override
    def engine(self) -> str:
        return self.device.engine(self.choice, self.config.cell)

    @property
    @override
    def hints(self) -> list[str]:
        choice, lengths_vary = self.choice, self.config.vary_num_steps
        if choice.execution == "xla":
            what = "windows of each length, which takes long" if lengths_vary else "the first window"
            return [f"--execution xla compiles {what}; until then the run does not react to signals"]
        unrolls = (choice.execution, choice.unroll) == ("graph", "static")
        if lengths_vary and unrolls and issubclass(self._layer, SteppedLayer):
            return [
                "--unroll static traces every step of windows of each length: with --vary-num-steps that "
                "takes long; --unroll loop traces one step of each"
            ]
        return []

    @override
    @in_model_context
    def zero_state(self, batch_size: int) -> State:
        return self.network.stack.zero_state(batch_size)

    @override
    @in_model_context
    def to_device(self, rows_BL: Ids) -> tf.Tensor:
        return tf.constant(rows_BL)

    @override
    @in_model_context
    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        with self.distribution.collective():
            return self.training(x_BT, y_BT, state, learning_rate=learning_rate)

    @override
    @in_model_context
    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        return self.training.dropouts[0].preview(batch, steps)

    @override
    @in_model_context
    def evaluate_step(self, x_BT: TokenArray, y_BT: TokenArray, state: State) -> tuple[State, Loss]:
        """Score a window without dropout.

        One of the configuration's own shape is run as a training step is; all others share a graph.
        """
        own = x_BT.shape == (self.config.batch_size // self.ranks.size, self.config.num_steps)
        function = self.window_function if own else self.evaluate_function
        state, loss = function(tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state)
        return state, loss

    @override
    @in_model_context
    def log_probabilities(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, lengths_B: Ids | None = None
    ) -> tuple[State, NDArray[Any]]:
        """Return the state after a window and the log-probability of each target [B, T].

        Padding, too, is computed: a graph of one shape is worth more than what it saves.
        """
        state, log_p_BT = self.log_probabilities_function(
            tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state
        )
        return state, log_p_BT.numpy()

    @override
    @in_model_context
    def next_word_log_probabilities(self, x_BT: TokenArray, state: State) -> tuple[State, NDArray[Any]]:
        state, log_p_BV = self.next_word_function(tf.convert_to_tensor(x_BT), state)
        return state, log_p_BV.numpy()

    @override
    @in_model_context
    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        with self.distribution.collective():
            if not losses:
                self.distribution.wait()
                return []
            return [StepMetrics(*pair) for pair in tf.stack(losses).numpy().tolist()]

    @override
    def export_weights(self) -> Arrays:
        return self.network.canonical()

    @override
    @in_model_context
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self.network.load(weights)
        if "training" in vars(self):
            self.training.load_copies(weights)

    @override
    def device_memory(self) -> int | None:
        return self.device.peak_memory()

    @override
    def environment(self) -> dict[str, Any]:
        return {**self.device.environment(), **self.distribution.environment()}
