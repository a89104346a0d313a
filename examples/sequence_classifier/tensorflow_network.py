"""The sequence classifier's TensorFlow variables, and its steps as functions to trace, compile or run.

Shapes: B = batch, T = time steps, I = features, K = the stack's output width, C = classes, U = labels a
sequence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.backend import Arrays
from ptb_lm.model.dropout_places import Dropout, no_dropout
from ptb_lm.tf_backend.adam import Adam
from ptb_lm.tf_backend.cells import Layer, assign
from ptb_lm.tf_backend.dropout import draw_mask, new_stream
from ptb_lm.tf_backend.stack import RecurrentStack
from sequence_classifier import ClassifierConfig, shapes


class InvertedDropout:
    """Dropout with a fresh mask at each call.

    Args:
        keep_prob: Probability that a unit is kept; kept units are divided by it.
        seed: Seed of the stream.
    """

    def __init__(self, keep_prob: float, *, seed: int) -> None:
        self.keep_prob = keep_prob
        self.generator = new_stream(seed)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return x with a fresh mask applied."""
        if self.keep_prob == 1:
            return x
        return x * draw_mask(self.generator, tf.shape(x), self.keep_prob, x.dtype)


class SequenceNetwork:
    """LSTM layers with dropout and a dense layer, for cross-entropy or CTC; trained by Adam.

    In its methods, lengths_B holds the number of each sample's steps, or is None for all T. A loss is [], the
    mean over the batch.

    Args:
        config: The hyper-parameters.
        layer: The implementation of a layer.
        unroll: The form of the loop over time; see ptb_lm.tf_backend.cells.run_over_time.
        dtype: The type of all variables.
        seed: The seed of dropout.
    """

    def __init__(
        self, config: ClassifierConfig, layer: type[Layer], *, unroll: str, dtype: tf.DType, seed: int
    ) -> None:
        self.config = config
        self.stack = RecurrentStack(
            layer,
            config.input_size,
            config.hidden_sizes,
            bidirectional=config.bidirectional,
            unroll=unroll,
            dtype=dtype,
        )
        self.kernel_KC = tf.Variable(tf.zeros(shapes(config)["dense.kernel"], dtype))
        self.bias_C = tf.Variable(tf.zeros([config.classes], dtype))
        self.trained = [*self.stack.variables, self.kernel_KC, self.bias_C]
        self.adam = Adam(self.trained)
        self.dropout = InvertedDropout(config.keep_prob, seed=seed)

    def train(self, x_BTI: tf.Tensor, labels: tf.Tensor, lengths_B: tf.Tensor | None) -> tf.Tensor:
        """Do one step of Adam; return the loss before it."""
        loss, gradients = self._loss_and_gradients(x_BTI, labels, lengths_B, self.dropout)
        clip = self.config.clip_value
        if clip is not None:
            gradients = [tf.clip_by_value(gradient, -clip, clip) for gradient in gradients]
        self.adam.step(gradients, tf.constant(self.config.learning_rate, tf.float64))
        return loss

    def loss(self, x_BTI: tf.Tensor, labels: tf.Tensor, lengths_B: tf.Tensor | None) -> tf.Tensor:
        """Return the loss without dropout."""
        return self._loss(x_BTI, labels, lengths_B, no_dropout)

    def loss_and_gradients(
        self, x_BTI: tf.Tensor, labels: tf.Tensor, lengths_B: tf.Tensor | None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and its gradients with respect to the trained variables, without dropout."""
        return self._loss_and_gradients(x_BTI, labels, lengths_B, no_dropout)

    def predict(self, x_BTI: tf.Tensor, lengths_B: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities without dropout: [B, C], or [B, T, C] for CTC."""
        log_p = tf.nn.log_softmax(self._logits(x_BTI, lengths_B, no_dropout))
        return tf.transpose(log_p, [1, 0, 2]) if self.config.loss == "ctc" else log_p

    def canonical(self) -> Arrays:
        """Return the parameters by canonical name (sequence_classifier.shapes)."""
        return self.by_name([variable.numpy() for variable in self.trained])

    def by_name(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return arrays that belong to the trained variables, values or gradients, by canonical name."""
        *stack_arrays, kernel_KC, bias_C = arrays
        return {**self.stack.to_canonical(stack_arrays), "dense.kernel": kernel_KC, "dense.bias": bias_C}

    def load(self, canonical: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        stack_arrays = self.stack.from_canonical(canonical)
        assign(self.trained, [*stack_arrays, canonical["dense.kernel"], canonical["dense.bias"]])

    def _loss_and_gradients(
        self, x_BTI: tf.Tensor, labels: tf.Tensor, lengths_B: tf.Tensor | None, dropout: Dropout
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = self._loss(x_BTI, labels, lengths_B, dropout)
        return loss, tape.gradient(loss, self.trained)

    def _loss(
        self, x_BTI: tf.Tensor, labels: tf.Tensor, lengths_B: tf.Tensor | None, dropout: Dropout
    ) -> tf.Tensor:
        logits = self._logits(x_BTI, lengths_B, dropout)
        if self.config.loss == "ctc":
            nll_B = _ctc(logits, labels, lengths_B)
        else:
            nll_B = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(nll_B)

    def _logits(self, x_BTI: tf.Tensor, lengths_B: tf.Tensor | None, dropout: Dropout) -> tf.Tensor:
        """Return [B, C], or [T, B, C] for CTC."""
        x_TBI = tf.transpose(x_BTI, [1, 0, 2])
        zeros = self.stack.zero_state(tf.shape(x_TBI)[1])
        features, state = self.stack(x_TBI, zeros, dropout=dropout, lengths_B=lengths_B)
        if self.config.loss == "cross_entropy":
            directions = len(self.stack.layers[-1])
            features = tf.concat([h_BH for h_BH, _ in state[-directions:]], 1)
        return tf.tensordot(dropout(features), self.kernel_KC, 1) + self.bias_C


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
