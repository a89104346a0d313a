"""The sequence classifier in TensorFlow: the contract of this package.

Shapes: B = batch, T = time steps, I = features, C = classes, U = labels a sequence.
"""

import ptb_lm.tf_backend  # noqa: F401  (TensorFlow, quietly, after Triton)

# isort: split
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.tf_backend.cells import layer_type
from ptb_lm.tf_backend.runtime import DTYPES, apply_execution, choose_device
from sequence_classifier import (
    Batch,
    Classifier,
    ClassifierConfig,
    LogProbabilities,
    check_labels,
    check_lengths,
)
from sequence_classifier.tensorflow_network import SequenceNetwork


def build(
    config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice
) -> "TensorFlowClassifier":
    """Build the classifier; see sequence_classifier.build.

    Raises:
        UserError: There is no such device, or XLA cannot compile the model on it, or the loss.
    """
    if choice.execution == "xla" and config.loss == "ctc":
        raise UserError("XLA cannot compile TensorFlow's CTC; choose --execution graph or eager")
    return TensorFlowClassifier(config, weights, choice)


class TensorFlowClassifier(Classifier):
    """An LSTM sequence classifier in TensorFlow, with Adam.

    Attributes:
        train_function: Training step, traced once for each shape of batch if it is a graph.
        forward_function: Loss alone, traced like the training step.
        gradients_function: Loss and its gradients, traced like the training step.
        predict_function: Log-probabilities, traced once for all shapes, with a loop over time.
    """

    def __init__(self, config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        host.keep_freed_memory()
        self.choice = choice
        self.device = choose_device(choice)
        self.dtype = DTYPES[choice.precision]
        with tf.device(self.device.name):
            self.network = SequenceNetwork(
                config,
                layer_type(choice.model, gpu=self.device.gpu),
                unroll=choice.unroll,
                dtype=self.dtype,
                seed=choice.seed,
            )
        signature = [
            tf.TensorSpec([None, None, config.input_size], self.dtype),
            tf.TensorSpec([None], tf.int32),
        ]
        self.train_function = apply_execution(self.network.train, choice.execution)
        self.forward_function = apply_execution(self.network.loss, choice.execution)
        self.gradients_function = apply_execution(self.network.loss_and_gradients, choice.execution)
        self.predict_function = apply_execution(self.network.predict, choice.execution, signature)
        self.load_weights(weights)

    @property
    @override
    def engine(self) -> str:
        return self.device.engine(self.choice)

    @override
    def train_step(self, batch: Batch) -> tf.Tensor:
        with tf.device(self.device.name):
            return self.train_function(*self._tensors(batch))

    @override
    def reset_optimizer(self) -> None:
        self.network.adam.reset()

    @override
    def forward_step(self, batch: Batch) -> tf.Tensor:
        with tf.device(self.device.name):
            return self.forward_function(*self._tensors(batch))

    @override
    def loss_and_gradients(self, batch: Batch) -> tuple[float, Arrays]:
        with tf.device(self.device.name):
            loss, gradients = self.gradients_function(*self._tensors(batch))
        return float(loss), self.network.by_name([gradient.numpy() for gradient in gradients])

    @override
    def predict(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None = None
    ) -> LogProbabilities:
        batch, steps, _ = x_BTI.shape
        if lengths_B is None:  # so that one graph computes both
            lengths_B = np.full(batch, steps, np.int32)
        check_lengths(lengths_B, batch, steps)
        with tf.device(self.device.name):
            scores = self.predict_function(tf.constant(x_BTI, self.dtype), tf.constant(lengths_B, tf.int32))
        return np.asarray(scores.numpy())

    @override
    def read(self, losses: Sequence[tf.Tensor]) -> list[float]:
        if not losses:
            tf.test.experimental.sync_devices()
            return []
        return [float(loss) for loss in tf.stack(losses).numpy()]

    @override
    def export_weights(self) -> Arrays:
        return self.network.canonical()

    @override
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        with tf.device(self.device.name):
            self.network.load(weights)

    @override
    def device_memory(self) -> int | None:
        return self.device.peak_memory()

    @override
    def environment(self) -> dict[str, Any]:
        return self.device.environment()

    def _tensors(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        check_labels(batch.labels, self.network.config)
        if batch.lengths_B is not None:
            check_lengths(batch.lengths_B, *batch.x_BTI.shape[:2])
        return (
            tf.constant(batch.x_BTI, self.dtype),
            tf.constant(batch.labels, tf.int32),
            None if batch.lengths_B is None else tf.constant(batch.lengths_B, tf.int32),
        )
