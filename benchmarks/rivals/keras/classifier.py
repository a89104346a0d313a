"""The classifier in Keras: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, C = classes.
"""

import dataclasses
import functools
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray
from sequence_classifier import Batch, Classifier, ClassifierConfig, LogProbabilities
from typing_extensions import override

from benchmarks.rivals.keras.network import Network
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice


class Library:
    """JAX, torch or TensorFlow.

    Attributes:
        name: Name in programs.
        unroll: Form in which Keras's loop over time enters the graph.
        cudnn_masks: True if Keras uses cuDNN for sequences of different lengths.
        hoists_on_cpu: True if Keras, where it would use cuDNN, multiplies all inputs before its loop.
    """

    name: str
    unroll = "loop"
    cudnn_masks = False
    hoists_on_cpu = False

    def has_gpu(self) -> bool:
        """Return whether there is a CUDA device."""
        raise NotImplementedError

    def compute_in_ieee_float32(self) -> None:
        """Have a GPU multiply in float32, where its default is to round to TF32."""
        raise NotImplementedError

    def peak_memory(self) -> int:
        """Return the peak of the bytes taken on the GPU since it was last asked for, if it can be told."""
        raise NotImplementedError

    def environment(self, *, gpu: bool) -> dict[str, Any]:
        """Return the version, the threads, and of a GPU its name and libraries."""
        raise NotImplementedError


def build(
    config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice, *, library: Library
) -> "KerasClassifier":
    """Build the classifier; see sequence_classifier.build.

    Raises:
        UserError: There is no such device, or Keras has no such classifier on it.
    """
    assert choice.unroll == library.unroll
    if config.loss != "cross_entropy":
        raise UserError(f"keras-{library.name} trains with cross_entropy alone, not with {config.loss}")
    if choice.device == "cuda" and not library.has_gpu():
        raise UserError(f"--device cuda: Keras on {library.name} finds no CUDA device here")
    gpu = choice.device == "cuda" or (choice.device == "auto" and library.has_gpu())
    if choice.model == "cudnn" and not gpu and not library.hoists_on_cpu:
        raise UserError(f"keras-{library.name} has no cudnn on a CPU: there it would run the loop of lstm")
    return KerasClassifier(config, weights, choice, library=library, gpu=gpu)


class KerasClassifier(Classifier):
    """A sequence classifier in Keras, compiled with its Adam and its cross-entropy.

    Keras's steps wait for the device and return a number. Its Adam is the efficient form at the end of
    section 2 of Kingma & Ba, with epsilon for their epsilon hat: beside the second moment before its bias is
    corrected, so that in the first step it weighs 32 times as much as in algorithm 1.
    """

    def __init__(
        self,
        config: ClassifierConfig,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        *,
        library: Library,
        gpu: bool,
    ) -> None:
        library.compute_in_ieee_float32()
        keras.config.set_floatx("float32")  # a user's keras.json may have set another
        self.choice = choice
        self.library = library
        self.gpu = gpu
        cudnn = choice.model == "cudnn"
        self.knows_lengths = library.cudnn_masks or not cudnn
        self.adam = keras.optimizers.Adam(config.learning_rate, epsilon=1e-8, clipvalue=config.clip_value)
        network = functools.partial(
            Network, cudnn=cudnn, jit_compile=choice.execution == "xla", seed=choice.seed
        )
        with self._device():
            self.network = network(config, self.adam)
            # A training step is where Keras takes gradients, whatever it computes with.
            without_dropout = dataclasses.replace(config, keep_prob=1.0)
            self.gradient_network = network(without_dropout, GradientForWeight(1.0))
        self.load_weights(weights)

    @property
    @override
    def engine(self) -> str:
        how = "a loop"
        if self.choice.model == "cudnn":
            how = "cuDNN" if self.gpu else "a loop after one product"
        where = "cuda" if self.gpu else "cpu"
        return f"keras.layers.LSTM of {self.library.name} on {where} ({how}, {self.choice.execution})"

    @override
    def train_step(self, batch: Batch) -> float:
        return self._on_batch("train_on_batch", self.network, batch)

    @override
    def reset_optimizer(self) -> None:
        with self._device():
            for variable in self.adam.variables:
                if variable.name != "learning_rate":
                    variable.assign(keras.ops.zeros(variable.shape, variable.dtype))

    @override
    def forward_step(self, batch: Batch) -> float:
        return self._on_batch("test_on_batch", self.network, batch)

    @override
    def loss_and_gradients(self, batch: Batch) -> tuple[float, Arrays]:
        self._load(self.gradient_network, self.export_weights())
        loss = self._on_batch("train_on_batch", self.gradient_network, batch)
        return loss, self._export(self.gradient_network)

    @override
    def predict(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None = None
    ) -> LogProbabilities:
        self._check(lengths_B)
        with self._device():
            model, inputs = self.network.model_and_inputs(x_BTI, lengths_B)
            log_p_BC = keras.ops.log_softmax(keras.ops.convert_to_tensor(model.predict_on_batch(inputs)))
            scores: LogProbabilities = keras.ops.convert_to_numpy(log_p_BC)
        return scores

    @override
    def read(self, losses: Sequence[float]) -> list[float]:
        """Return the losses: Keras has waited for them."""
        return list(losses)

    @override
    def export_weights(self) -> Arrays:
        return self._export(self.network)

    @override
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self._load(self.network, weights)

    @override
    def device_memory(self) -> int | None:
        return self.library.peak_memory() if self.gpu else None

    @override
    def environment(self) -> dict[str, Any]:
        facts = {"keras": keras.__version__, "device": f"cpu ({platform.machine()})"}
        return facts | self.library.environment(gpu=self.gpu)

    def _on_batch(self, method: str, network: Network, batch: Batch) -> float:
        self._check(batch.lengths_B)
        with self._device():
            model, inputs = network.model_and_inputs(batch.x_BTI, batch.lengths_B)
            return float(getattr(model, method)(inputs, batch.labels))

    def _check(self, lengths_B: NDArray[np.int32] | None) -> None:
        if lengths_B is not None and not self.knows_lengths:
            raise UserError(
                f"keras-{self.library.name} has no cudnn for sequences of different lengths; choose lstm"
            )

    def _device(self) -> Any:
        return keras.device("gpu" if self.gpu else "cpu")

    def _export(self, network: Network) -> Arrays:
        # A copy, for the library may hand out its own memory.
        return {
            name: np.array(keras.ops.convert_to_numpy(variable.value))
            for name, variable in network.variables.items()
        }

    def _load(self, network: Network, weights: Mapping[str, NDArray[Any]]) -> None:
        with self._device():
            for name, variable in network.variables.items():
                variable.assign(weights[name].astype(np.float32))


class GradientForWeight(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras has no types
    """Puts the gradient in the place of the weight, where it is read without rounding."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Set a variable to its gradient."""
        self.assign(variable, gradient)
