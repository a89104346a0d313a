"""The TensorFlow loop that people write, without this package: what the models' speed is compared with.

Keras's Embedding, LSTM and Dense, cross-entropy from logits, tf.clip_by_global_norm and Keras's SGD in one
tf.function; the carried state goes in as initial_state. The embedding's gradient is what a tape gives: a row
for each token (tf.IndexedSlices), of which SGD moves no other rows. In bf16 the layers have Keras's policy
mixed_bfloat16.

Shapes: B = batch, T = time steps, N = B * T tokens, E = embedding width, H = hidden units, V = vocabulary.
"""

import ptb_lm.tf_backend  # noqa: F401  (TensorFlow, quietly, after Triton)

# isort: split
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.bench.rivals import check_config
from ptb_lm.data.corpus import TokenArray
from ptb_lm.data.text import Ids
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays, StepMetrics
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.tf_backend.loss import sum_by_word
from ptb_lm.tf_backend.lstm import import_keras
from ptb_lm.tf_backend.runtime import choose_device

keras = import_keras()

State = Sequence[Sequence[tf.Tensor]]  # (h_BH, c_BH) of each layer
Loss: TypeAlias = tf.Tensor  # [2]: negative log likelihood, gradient norm
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}  # of Keras, by precision


class PlainModel:
    """A language model of Keras's own layers."""

    def __init__(self, config: Config, vocabulary_size: int, *, gpu: bool, policy: str) -> None:
        self.embedding = keras.layers.Embedding(vocabulary_size, config.embedding_width, dtype=policy)
        # Where there is a GPU, Keras would try cuDNN on the CPU too.
        cudnn = "auto" if gpu else False
        self.lstms = [
            keras.layers.LSTM(hidden, return_sequences=True, return_state=True, use_cudnn=cudnn, dtype=policy)
            for hidden in config.hidden_sizes
        ]
        self.dense = keras.layers.Dense(vocabulary_size, dtype=policy)
        self.dropout = keras.layers.Dropout(1 - config.keep_prob, dtype=policy)
        self.embedding.build((None, None))
        width = config.embedding_width
        for lstm, hidden in zip(self.lstms, config.hidden_sizes, strict=True):
            lstm.build((None, None, width))
            width = hidden
        self.dense.build((None, None, width))
        layers = [self.embedding, *self.lstms, self.dense]
        self.variables = [variable for layer in layers for variable in layer.trainable_variables]

    def __call__(self, x_BT: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """Return the logits [B, T, V] in training, and the state."""
        x_BTE, after = self.dropout(self.embedding(x_BT), training=True), []
        for lstm, before in zip(self.lstms, state, strict=True):
            x_BTE, h_BH, c_BH = lstm(x_BTE, initial_state=list(before), training=True)
            x_BTE = self.dropout(x_BTE, training=True)
            after.append((h_BH, c_BH))
        return self.dense(x_BTE), after


class PlainLoop:
    """Trains a PlainModel; as much of ptb_lm.model.backend.Backend as the benchmark asks for."""

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        keras.utils.set_random_seed(choice.seed)
        self.config, self.device = config, choose_device(choice)
        self.engine = f"Keras layers on {'cuda' if self.device.gpu else 'cpu'} (graph)"
        with tf.device(self.device.name):
            self.model = PlainModel(
                config, len(weights["embedding"]), gpu=self.device.gpu, policy=POLICIES[choice.precision]
            )
            self.optimizer = keras.optimizers.SGD(1.0)
            self.optimizer.build(self.model.variables)
        names = parameters.shapes(config, len(weights["embedding"]))
        self.variables = dict(zip(names, self.model.variables, strict=True))  # of a layer, in Keras's order
        self.train_function = tf.function(self._train)
        self.load_weights(weights)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        with tf.device(self.device.name):
            dtype = self.model.dense.compute_dtype
            return [
                (tf.zeros([batch_size, hidden], dtype), tf.zeros([batch_size, hidden], dtype))
                for hidden in self.config.hidden_sizes
            ]

    def to_device(self, rows_BL: Ids) -> tf.Tensor:
        """Return the rows on the device."""
        with tf.device(self.device.name):
            return tf.constant(rows_BL)

    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping."""
        with tf.device(self.device.name):
            self.optimizer.learning_rate = learning_rate
            state, loss = self.train_function(tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state)
        return state, loss

    def read(self, losses: Sequence[Loss]) -> list[StepMetrics]:
        """Wait for the device and return the numbers behind some losses."""
        if not losses:
            tf.test.experimental.sync_devices()
            return []
        return [StepMetrics(*pair) for pair in tf.stack(losses).numpy().tolist()]

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name."""
        return {name: variable.numpy() for name, variable in self.variables.items()}

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays; Keras keeps the gates in the same order."""
        with tf.device(self.device.name):
            for name, variable in self.variables.items():
                variable.assign(weights[name])

    def device_memory(self) -> int | None:
        """Return the peak of allocated bytes since the last call; None on a CPU."""
        return self.device.peak_memory()

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        return {**self.device.environment(), "keras": keras.__version__}

    def _train(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State) -> tuple[State, Loss]:
        with tf.GradientTape() as tape:
            logits_BTV, state = self.model(x_BT, state)
            mean = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(
                    y_BT, tf.cast(logits_BTV, tf.float32), from_logits=True
                )
            )
            # The mean over tokens is what people write; this factor makes it the tutorial's loss.
            loss = mean * x_BT.shape[1]
        gradients = tape.gradient(loss, [variable.value for variable in self.model.variables])
        # tf.clip_by_global_norm by itself would take a word's occurrences for rows of their own, which is
        # not the gradient's norm.
        vocabulary_size = self.model.embedding.embeddings.shape[0]
        d_embedding_NE = sum_by_word(gradients[0].values, gradients[0].indices, vocabulary_size)
        norm = tf.linalg.global_norm([d_embedding_NE, *gradients[1:]])
        gradients, _ = tf.clip_by_global_norm(gradients, self.config.max_grad_norm, use_norm=norm)
        self.optimizer.apply_gradients(zip(gradients, self.model.variables, strict=True))
        return state, tf.stack([mean * tf.cast(tf.size(y_BT), mean.dtype), norm])


def build(config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> PlainLoop:
    """Build the loop; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, or the configuration asks for what the loop lacks.
    """
    check_config(config, "Keras's layers")
    return PlainLoop(config, weights, choice)
