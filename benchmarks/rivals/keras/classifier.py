"""The classifier in Keras: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, C = classes.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray
from sequence_classifier import Batch, Classifier, ClassifierConfig, LogProbabilities
from typing_extensions import override

from benchmarks.rivals import check_classifier, check_whole
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice


@dataclass(frozen=True, kw_only=True)
class Library:
    """JAX, torch or TensorFlow.

    Attributes:
        name: Name in programs.
        unroll: Form in which Keras's loop over time enters the graph.
        hoists_on_cpu: True if Keras, where it would use cuDNN, multiplies all inputs before its loop.
        has_gpu: Function that returns whether there is a CUDA device.
        compute_in_ieee_float32: Function that has a GPU multiply in float32, where its default is to round to
            TF32.
        peak_memory: Function that returns the peak of the bytes taken on the GPU since it was last asked for,
            if it can be told.
        environment: Function that returns the version, the threads and the device; asked with True, those of
            a GPU.
    """

    name: str
    unroll: str = "loop"
    hoists_on_cpu: bool = False
    has_gpu: Callable[[], bool]
    compute_in_ieee_float32: Callable[[], None]
    peak_memory: Callable[[], int | None]
    environment: Callable[[bool], dict[str, Any]]


def build(
    config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice, *, library: Library
) -> "KerasClassifier":
    """Build the classifier; see sequence_classifier.build.

    Raises:
        UserError: There is no such device, or Keras has no such classifier on it.
    """
    assert choice.unroll == library.unroll
    check_classifier(config, f"keras-{library.name}")
    if choice.device == "cuda" and not library.has_gpu():
        raise UserError(f"--device cuda: Keras on {library.name} finds no CUDA device here")
    gpu = choice.device == "cuda" or (choice.device == "auto" and library.has_gpu())
    if choice.model == "cudnn" and not gpu and not library.hoists_on_cpu:
        raise UserError(f"keras-{library.name} has no cudnn on a CPU: there it would run the loop of lstm")
    return KerasClassifier(config, weights, choice, library=library, gpu=gpu)


class Network:
    """keras.layers.LSTM in a stack, and keras.layers.Dense, compiled with an optimiser.

    Args:
        config: The sizes.
        optimizer: One of Keras's.
        cudnn: True for layers that use cuDNN, False for Keras's own loop.
        jit_compile: True for steps that XLA compiles.

    Attributes:
        model: Keras's model, of sequences [B, T, I].
        variables: Keras's variables by canonical name: its gates stand in the canonical order, and its
            layers have one bias.
    """

    def __init__(self, config: ClassifierConfig, optimizer: Any, *, cudnn: bool, jit_compile: bool) -> None:
        x_BTI = values = keras.Input((None, config.input_size))
        self.variables: dict[str, Any] = {}
        for index, hidden in enumerate(config.hidden_sizes):
            lstm = keras.layers.LSTM(
                hidden,
                return_sequences=index + 1 < len(config.hidden_sizes),  # of the top one, the final state
                use_cudnn=cudnn,  # not "auto", Keras's default, which takes the loop where cuDNN fails
            )
            values = lstm(values)
            for name in ("kernel", "recurrent_kernel", "bias"):
                self.variables[f"lstm.{index}.{name}"] = getattr(lstm.cell, name)
        dense = keras.layers.Dense(config.classes)
        self.model = keras.Model(x_BTI, dense(values))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile)
        self.variables |= {"dense.kernel": dense.kernel, "dense.bias": dense.bias}


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
        self.adam = keras.optimizers.Adam(config.learning_rate, epsilon=1e-8)
        network = functools.partial(
            Network, config, cudnn=choice.model == "cudnn", jit_compile=choice.execution == "xla"
        )
        with self._device():
            self.network = network(self.adam)
            # A training step is where Keras takes gradients, whatever it computes with.
            self.gradient_network = network(GradientForWeight(1.0))
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
        check_whole(lengths_B, f"keras-{self.library.name}")
        with self._device():
            logits_BC = keras.ops.convert_to_tensor(self.network.model.predict_on_batch(x_BTI))
            scores: LogProbabilities = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits_BC))
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
        return {"keras": keras.__version__, **self.library.environment(self.gpu)}

    def _on_batch(self, method: str, network: Network, batch: Batch) -> float:
        check_whole(batch.lengths_B, f"keras-{self.library.name}")
        with self._device():
            return float(getattr(network.model, method)(batch.x_BTI, batch.labels))

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
