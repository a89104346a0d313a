"""The sequence classifier in TensorFlow: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, K = the stack's output width, C = classes, U = labels a
sequence.
"""

import ptb_lm.tf_backend  # noqa: F401  (TensorFlow, quietly, after Triton)

# isort: split
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays, in_model_context
from ptb_lm.model.choice import Choice
from ptb_lm.tf_backend.adam import Adam
from ptb_lm.tf_backend.cells import assign, layer_type
from ptb_lm.tf_backend.dropout import draw_mask, new_stream
from ptb_lm.tf_backend.runtime import DTYPES, apply_execution, choose_device
from ptb_lm.tf_backend.stack import RecurrentStack
from sequence_classifier import (
    Batch,
    Classifier,
    ClassifierConfig,
    LogProbabilities,
    check_labels,
    check_lengths,
    shapes,
)


class TensorFlowClassifier(Classifier):
    """An LSTM sequence classifier in TensorFlow, with Adam.

    In the methods that are traced, lengths_B holds the number of each sample's steps, or is None for all T. A
    loss is [], the mean over the batch.

    Attributes:
        train_function: Training step, traced once for each shape of batch if it is a graph.
        forward_function: Loss alone, traced like the training step.
        gradients_function: Loss and its gradients, traced like the training step.
        predict_function: Log-probabilities, traced once for all shapes, with a loop over time.

    Raises:
        UserError: There is no such device, or XLA cannot compile the model on it, or the loss.
    """

    def __init__(self, config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        if choice.execution == "xla" and config.loss == "ctc":
            raise UserError("XLA cannot compile TensorFlow's CTC; choose --execution graph or eager")
        host.keep_freed_memory()
        self.config, self.choice = config, choice
        self.device = choose_device(choice)
        self.dtype = DTYPES[choice.precision]
        with self.context():
            self.stack = RecurrentStack(
                layer_type(choice.model, gpu=self.device.gpu),
                config.input_size,
                config.hidden_sizes,
                bidirectional=config.bidirectional,
                unroll=choice.unroll,
                dtype=self.dtype,
            )
            self.kernel_KC = tf.Variable(tf.zeros(shapes(config)["dense.kernel"], self.dtype))
            self.bias_C = tf.Variable(tf.zeros([config.classes], self.dtype))
            self.trained = [*self.stack.variables, self.kernel_KC, self.bias_C]
            self.adam = Adam(self.trained)
            self.mask_stream = new_stream(choice.seed)
        signature = [
            tf.TensorSpec([None, None, config.input_size], self.dtype),
            tf.TensorSpec([None], tf.int32),
        ]
        self.train_function = apply_execution(self._train, choice.execution)
        self.forward_function = apply_execution(self._loss, choice.execution)
        self.gradients_function = apply_execution(self._loss_and_gradients, choice.execution)
        self.predict_function = apply_execution(self._log_probabilities, choice.execution, signature)
        self.load_weights(weights)

    def context(self) -> AbstractContextManager[None]:
        """Return a context with the model's device; see in_model_context."""
        return tf.device(self.device.name)

    def draw_masks(self, batch: int, steps: int) -> list[tf.Tensor]:
        """Return fresh masks of inverted dropout, of each layer's input and the features; none without it."""
        config = self.config
        if config.keep_prob == 1:
            return []
        directions = 2 if config.bidirectional else 1
        *widths, top = (config.input_size, *(directions * hidden for hidden in config.hidden_sizes))
        features = (batch, top) if config.loss == "cross_entropy" else (steps, batch, top)
        shapes = [*((steps, batch, width) for width in widths), features]
        return [draw_mask(self.mask_stream, shape, config.keep_prob, self.dtype) for shape in shapes]

    @property
    @override
    def engine(self) -> str:
        return self.device.engine(self.choice)

    @override
    @in_model_context
    def train_step(self, batch: Batch) -> tf.Tensor:
        return self.train_function(*self._tensors(batch))

    @override
    def reset_optimizer(self) -> None:
        self.adam.reset()

    @override
    @in_model_context
    def forward_step(self, batch: Batch) -> tf.Tensor:
        return self.forward_function(*self._tensors(batch))

    @override
    @in_model_context
    def loss_and_gradients(self, batch: Batch) -> tuple[float, Arrays]:
        loss, gradients = self.gradients_function(*self._tensors(batch))
        return float(loss), self._by_name([gradient.numpy() for gradient in gradients])

    @override
    @in_model_context
    def predict(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None = None
    ) -> LogProbabilities:
        batch, steps, _ = x_BTI.shape
        if lengths_B is None:  # so that one graph computes both
            lengths_B = np.full(batch, steps, np.int32)
        check_lengths(lengths_B, batch, steps)
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
        return self._by_name([variable.numpy() for variable in self.trained])

    @override
    @in_model_context
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        stack_arrays = self.stack.from_canonical(weights)
        assign(self.trained, [*stack_arrays, weights["dense.kernel"], weights["dense.bias"]])

    @override
    def device_memory(self) -> int | None:
        return self.device.peak_memory()

    @override
    def environment(self) -> dict[str, Any]:
        return self.device.environment()

    def _tensors(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        check_labels(batch.labels, self.config)
        if batch.lengths_B is not None:
            check_lengths(batch.lengths_B, *batch.x_BTI.shape[:2])
        return (
            tf.constant(batch.x_BTI, self.dtype),
            tf.constant(batch.labels, tf.int32),
            None if batch.lengths_B is None else tf.constant(batch.lengths_B, tf.int32),
        )

    def _by_name(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return arrays that belong to the trained variables, values or gradients, by canonical name."""
        *stack_arrays, kernel_KC, bias_C = arrays
        return {**self.stack.to_canonical(stack_arrays), "dense.kernel": kernel_KC, "dense.bias": bias_C}

    def _train(self, x_BTI: tf.Tensor, labels: tf.Tensor, lengths_B: tf.Tensor | None) -> tf.Tensor:
        """Do one step of Adam; return the loss before it."""
        masks = self.draw_masks(*x_BTI.shape[:2])
        loss, gradients = self._loss_and_gradients(x_BTI, labels, lengths_B, masks)
        clip = self.config.clip_value
        if clip is not None:
            gradients = [tf.clip_by_value(gradient, -clip, clip) for gradient in gradients]
        self.adam.step(gradients, tf.constant(self.config.learning_rate, tf.float64))
        return loss

    def _loss_and_gradients(
        self,
        x_BTI: tf.Tensor,
        labels: tf.Tensor,
        lengths_B: tf.Tensor | None,
        masks: Sequence[tf.Tensor] = (),
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and its gradients with respect to the trained variables."""
        with tf.GradientTape() as tape:
            loss = self._loss(x_BTI, labels, lengths_B, masks)
        return loss, tape.gradient(loss, self.trained)

    def _loss(
        self,
        x_BTI: tf.Tensor,
        labels: tf.Tensor,
        lengths_B: tf.Tensor | None,
        masks: Sequence[tf.Tensor] = (),
    ) -> tf.Tensor:
        logits = self._logits(x_BTI, lengths_B, masks)
        if self.config.loss == "ctc":
            nll_B = _ctc(logits, labels, lengths_B)
        else:
            nll_B = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(nll_B)

    def _log_probabilities(self, x_BTI: tf.Tensor, lengths_B: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities without dropout: [B, C], or [B, T, C] for CTC."""
        log_p = tf.nn.log_softmax(self._logits(x_BTI, lengths_B))
        return tf.transpose(log_p, [1, 0, 2]) if self.config.loss == "ctc" else log_p

    def _logits(
        self, x_BTI: tf.Tensor, lengths_B: tf.Tensor | None, masks: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return [B, C], or [T, B, C] for CTC."""
        x_TBI = tf.transpose(x_BTI, [1, 0, 2])
        zeros = self.stack.zero_state(tf.shape(x_TBI)[1])
        features, state = self.stack(x_TBI, zeros, masks=masks[:-1], lengths_B=lengths_B)
        if self.config.loss == "cross_entropy":
            directions = len(self.stack.layers[-1])
            features = tf.concat([h_BH for h_BH, _ in state[-directions:]], 1)
        if masks:
            features *= masks[-1]
        return tf.tensordot(features, self.kernel_KC, 1) + self.bias_C


def _ctc(logits_TBC: tf.Tensor, labels_BU: tf.Tensor, lengths_B: tf.Tensor | None) -> tf.Tensor:
    """Return the negative log likelihood of each sequence of labels [B] in nats, where class 0 is blank.

    TensorFlow refuses labels that do not fit into their steps, whose true loss is infinite.
    """
    steps, batch = tf.unstack(tf.shape(logits_TBC)[:2])
    nll_B = tf.nn.ctc_loss(
        # Sparse labels go to one operation; dense ones to a loop over elementary ones, many times slower.
        tf.sparse.from_dense(labels_BU),
        tf.cast(logits_TBC, tf.float32),  # it computes in no other precision
        label_length=None,
        logit_length=tf.fill([batch], steps) if lengths_B is None else lengths_B,
        logits_time_major=True,
        blank_index=0,
    )
    return tf.cast(nll_B, logits_TBC.dtype)
