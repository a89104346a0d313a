"""The classifier in Keras: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, C = classes.
"""

import dataclasses
import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray
from sequence_classifier import Batch, Classifier, ClassifierConfig, LogProbabilities, check_lengths
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.common.host import hold_back_stderr
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice


@dataclass(frozen=True, kw_only=True)
class Library:
    """JAX, torch or TensorFlow.

    Attributes:
        name: Name in programs.
        unroll: Form in which Keras's loop over time enters the graph.
        cudnn_masks: True if Keras uses cuDNN for sequences of different lengths.
        hoists_on_cpu: True if Keras, where it would use cuDNN, multiplies all inputs before its loop.
        has_gpu: Function that returns whether there is a CUDA device.
        compute_in_ieee_float32: Function that has a GPU multiply in float32, where its default is to round to
            TF32.
        peak_memory: Function that returns the peak of the bytes taken on the GPU since it was last asked for,
            if it can be told.
        environment: Function that returns the version, the threads, and, asked with True, of a GPU its name
            and libraries.
    """

    name: str
    unroll: str = "loop"
    cudnn_masks: bool = False
    hoists_on_cpu: bool = False
    has_gpu: Callable[[], bool]
    compute_in_ieee_float32: Callable[[], None]
    peak_memory: Callable[[], int]
    environment: Callable[[bool], dict[str, Any]]


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


class Network:
    """keras.layers.LSTM in a stack with dropout, and keras.layers.Dense, compiled with an optimiser.

    Args:
        config: The sizes, and how much is dropped.
        optimizer: One of Keras's.
        cudnn: True for layers that use cuDNN, False for Keras's own loop.
        jit_compile: True for steps that XLA compiles.
        seed: The seed of dropout.

    Attributes:
        variables: Keras's variables by canonical name: its gates stand in the canonical order, and its
            layers have one bias.
    """

    def __init__(
        self, config: ClassifierConfig, optimizer: Any, *, cudnn: bool, jit_compile: bool, seed: int
    ) -> None:
        self.config = config
        self.optimizer = optimizer
        self.jit_compile = jit_compile
        count = len(config.hidden_sizes)
        self.layers = [_layer(config, index, cudnn=cudnn) for index in range(count)]
        self.dense = keras.layers.Dense(config.classes)
        places = range(count + 1) if config.keep_prob < 1 else ()
        self.dropouts = [keras.layers.Dropout(1 - config.keep_prob, seed=seed + place) for place in places]
        x_BTI = keras.Input((None, config.input_size))
        self.whole = self._model(x_BTI, x_BTI, None)
        self.variables = self._variables()

    @functools.cached_property
    def model_with_mask(self) -> Any:
        """The model of [x_BTI, valid_BT]: the same layers and optimiser, another graph."""
        x_BTI, valid_BT = keras.Input((None, self.config.input_size)), keras.Input((None,), dtype="bool")
        return self._model([x_BTI, valid_BT], x_BTI, valid_BT)

    def model_and_inputs(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None
    ) -> tuple[Any, Any]:
        """Return the model for some sequences, and what it is called with."""
        if lengths_B is None:
            return self.whole, x_BTI
        check_lengths(lengths_B, *x_BTI.shape[:2])
        valid_BT = np.arange(x_BTI.shape[1]) < lengths_B[:, None]
        # Keras computes on masked steps too, and drops the result: of NaN the gradient would be NaN.
        return self.model_with_mask, [np.where(valid_BT[..., None], x_BTI, np.float32(0)), valid_BT]

    def _model(self, inputs: Any, x_BTI: Any, valid_BT: Any) -> Any:
        output = self._drop(0, x_BTI)
        for index, layer in enumerate(self.layers):
            output = self._drop(index + 1, layer(output, mask=valid_BT))
        model = keras.Model(inputs, self.dense(output))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=self.optimizer, loss=loss, jit_compile=self.jit_compile)
        return model

    def _drop(self, place: int, values: Any) -> Any:
        return self.dropouts[place](values) if self.dropouts else values

    def _variables(self) -> dict[str, Any]:
        variables = {}
        bidirectional = self.config.bidirectional
        for index, layer in enumerate(self.layers):
            layers = (layer.forward_layer, layer.backward_layer) if bidirectional else (layer,)
            prefixes = parameters.directions(index, bidirectional=bidirectional)
            for prefix, lstm in zip(prefixes, layers, strict=True):
                variables[prefix + "kernel"] = lstm.cell.kernel
                variables[prefix + "recurrent_kernel"] = lstm.cell.recurrent_kernel
                variables[prefix + "bias"] = lstm.cell.bias
        return variables | {"dense.kernel": self.dense.kernel, "dense.bias": self.dense.bias}


def _layer(config: ClassifierConfig, index: int, *, cudnn: bool) -> Any:
    """Return a layer of the stack; the output of the top one is its final state alone."""
    lstm = keras.layers.LSTM(
        config.hidden_sizes[index],
        return_sequences=index + 1 < len(config.hidden_sizes),
        use_cudnn=cudnn,  # not "auto", Keras's default, which takes the loop where cuDNN fails
    )
    if not config.bidirectional:
        return lstm
    # It saves and restores the layer, for which Keras loads TensorFlow where there is one, and its notices.
    with hold_back_stderr():
        return keras.layers.Bidirectional(lstm)


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
        return facts | self.library.environment(self.gpu)

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
