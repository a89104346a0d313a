"""The classifier in PyTensor, and its optimiser: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, H = hidden units, 4H = the gates in the order i, f, g, o,
C = classes.
"""

import functools
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.mode import get_default_mode
from sequence_classifier import Batch, Classifier, ClassifierConfig, LogProbabilities, check_lengths, shapes
from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice

Tensor: TypeAlias = Any  # a symbolic array
Dropout: TypeAlias = Callable[[Tensor], Tensor]

DTYPES: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam


def build(
    config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice
) -> "PyTensorClassifier":
    """Build the classifier; see sequence_classifier.build.

    Raises:
        UserError: PyTensor's classifier is not like that, or not on that device.
    """
    if config.loss != "cross_entropy":
        raise UserError(f"pytensor trains with cross_entropy alone, not with {config.loss}")
    if config.bidirectional:
        raise UserError("pytensor has layers of one direction alone")
    if choice.device == "cuda":
        raise UserError("--device cuda: pytensor compiles for the CPU")
    return PyTensorClassifier(config, weights, choice)


class PyTensorClassifier(Classifier):
    """A sequence classifier in PyTensor: a compiled function for each thing it does.

    A function is compiled when it is first called, by what PyTensor is set to compile with; it keeps what was
    compiled in its own folder in the user's home. Its steps return when they are done.
    """

    def __init__(self, config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        self.config = config
        self.dtype = DTYPES[choice.precision]
        self.network = Network(config, self.dtype)
        self.generator = pytensor.shared(np.random.default_rng(choice.seed))
        self.adam = Adam(
            list(self.network.variables.values()),
            learning_rate=config.learning_rate,
            clip_value=config.clip_value,
        )
        self._compiled = functools.cache(self._compile)
        self.load_weights(weights)

    @property
    @override
    def engine(self) -> str:
        compiler = type(get_default_mode().linker).__name__.removesuffix("Linker").lower()
        return f"pytensor.scan on cpu ({compiler})"

    @override
    def train_step(self, batch: Batch) -> float:
        (loss,) = self._call("train", batch.x_BTI, batch.lengths_B, batch.labels)
        return float(loss)

    @override
    def reset_optimizer(self) -> None:
        self.adam.reset()

    @override
    def forward_step(self, batch: Batch) -> float:
        (loss,) = self._call("loss", batch.x_BTI, batch.lengths_B, batch.labels)
        return float(loss)

    @override
    def loss_and_gradients(self, batch: Batch) -> tuple[float, Arrays]:
        loss, *gradients = self._call("gradients", batch.x_BTI, batch.lengths_B, batch.labels)
        return float(loss), dict(zip(self.network.variables, gradients, strict=True))

    @override
    def predict(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None = None
    ) -> LogProbabilities:
        (scores,) = self._call("predict", x_BTI, lengths_B)
        return np.asarray(scores)

    @override
    def read(self, losses: Sequence[float]) -> list[float]:
        """Return the losses: PyTensor has waited for them."""
        return list(losses)

    @override
    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name, in the precision of the model."""
        return {name: variable.get_value() for name, variable in self.network.variables.items()}

    @override
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        for name, variable in self.network.variables.items():
            variable.set_value(weights[name].astype(self.dtype))

    @override
    def device_memory(self) -> int | None:
        return None

    @override
    def environment(self) -> dict[str, Any]:
        return {
            "pytensor": pytensor.__version__,
            "device": f"cpu ({platform.machine()})",
            "threads": os.environ.get("OMP_NUM_THREADS") or "one a core, in products alone",
        }

    def _call(
        self, task: str, x_BTI: NDArray[Any], lengths_B: NDArray[np.int32] | None, *labels: NDArray[np.int32]
    ) -> list[NDArray[Any]]:
        """Run the function for a task, with a mask if the sequences have lengths."""
        x_BTI = x_BTI.astype(self.dtype, copy=False)
        if lengths_B is None:
            inputs = [x_BTI]
        else:
            check_lengths(lengths_B, *x_BTI.shape[:2])
            valid_BT = np.arange(x_BTI.shape[1]) < lengths_B[:, None]
            # Masked steps are computed too, and dropped: of NaN the gradient would be NaN.
            inputs = [np.where(valid_BT[..., None], x_BTI, self.dtype.type(0)), valid_BT]
        function = self._compiled(task, masked=lengths_B is not None)
        outputs: list[NDArray[Any]] = function(*inputs, *labels)
        return outputs

    def _compile(self, task: str, *, masked: bool) -> Any:
        x_BTI, labels_B = pt.tensor3("x", dtype=self.dtype.name), pt.ivector("labels")
        valid_BT = pt.matrix("valid", dtype="bool") if masked else None
        inputs = [x_BTI] if valid_BT is None else [x_BTI, valid_BT]
        dropout = InvertedDropout(self.config.keep_prob if task == "train" else 1.0, self.generator)
        log_p_BC = pt.special.log_softmax(self.network.logits(x_BTI, valid_BT, dropout), axis=-1)
        if task == "predict":
            return pytensor.function(inputs, [log_p_BC])
        loss = -pt.mean(log_p_BC[pt.arange(labels_B.shape[0]), labels_B])
        if task == "loss":
            return pytensor.function([*inputs, labels_B], [loss])
        gradients = pt.grad(loss, list(self.network.variables.values()))
        if task == "gradients":
            return pytensor.function([*inputs, labels_B], [loss, *gradients])
        return pytensor.function(
            [*inputs, labels_B], [loss], updates={**dropout.updates, **self.adam.updates(gradients)}
        )


class Network:
    """LSTM layers in pytensor.scan, and a dense layer.

    Attributes:
        variables: Shared variables by canonical name.
    """

    def __init__(self, config: ClassifierConfig, dtype: np.dtype[Any]) -> None:
        self.layers = range(len(config.hidden_sizes))
        self.dtype = dtype
        self.variables = {
            name: pytensor.shared(np.zeros(shape, dtype), name) for name, shape in shapes(config).items()
        }

    def logits(self, x_BTI: Tensor, valid_BT: Tensor | None, dropout: Dropout) -> Tensor:
        """Return the logits [B, C] of each sequence's final state.

        Args:
            x_BTI: The sequences.
            valid_BT: True for steps that are no padding; None if none is.
            dropout: The dropout of the input, between the layers, and of the top one's output.
        """
        values_TBI = dropout(x_BTI.transpose(1, 0, 2))
        valid_TB1 = None if valid_BT is None else valid_BT.T[:, :, None]
        for layer in self.layers:
            h_TBH = self._layer(layer, values_TBI, valid_TB1)
            # Only the last step of the top layer is read.
            values_TBI = dropout(h_TBH if layer < self.layers[-1] else h_TBH[-1])
        return values_TBI @ self.variables["dense.kernel"] + self.variables["dense.bias"]

    def _layer(self, layer: int, x_TBI: Tensor, valid_TB1: Tensor | None) -> Tensor:
        """Return a layer's outputs [T, B, H]; where a step is padding, that of the step before."""
        kernel, recurrent_kernel, bias = (
            self.variables[f"lstm.{layer}.{name}"] for name in ("kernel", "recurrent_kernel", "bias")
        )
        hidden = recurrent_kernel.get_value(borrow=True).shape[0]

        def step(z_BG: Tensor, h_BH: Tensor, c_BH: Tensor, recurrent_kernel: Tensor) -> list[Tensor]:
            z_BG = z_BG + h_BH @ recurrent_kernel
            i, f, g, o = (z_BG[:, gate * hidden : (gate + 1) * hidden] for gate in range(4))
            c_BH = pt.sigmoid(f) * c_BH + pt.sigmoid(i) * pt.tanh(g)
            return [pt.sigmoid(o) * pt.tanh(c_BH), c_BH]

        def step_if_valid(
            z_BG: Tensor, valid_B1: Tensor, h_BH: Tensor, c_BH: Tensor, recurrent_kernel: Tensor
        ) -> list[Tensor]:
            new_h_BH, new_c_BH = step(z_BG, h_BH, c_BH, recurrent_kernel)
            return [pt.switch(valid_B1, new_h_BH, h_BH), pt.switch(valid_B1, new_c_BH, c_BH)]

        # The inputs' part of the gates needs no loop: it is one product.
        z_TBG = x_TBI @ kernel + bias
        zero_BH = pt.zeros((x_TBI.shape[1], hidden), dtype=self.dtype)
        h_TBH, _ = pytensor.scan(
            step if valid_TB1 is None else step_if_valid,
            sequences=[z_TBG] if valid_TB1 is None else [z_TBG, valid_TB1],
            outputs_info=[zero_BH, zero_BH],
            non_sequences=[recurrent_kernel],
            return_updates=False,
        )
        return h_TBH


class InvertedDropout:
    """Zeroes values at random, and scales up the others, so that the mean stays.

    Args:
        keep_prob: The probability of each value to be kept; 1 changes nothing.
        generator: A shared variable with a random generator.

    Attributes:
        updates: The generator's next states after all masks so far, for pytensor.function.
    """

    def __init__(self, keep_prob: float, generator: Any) -> None:
        self.keep_prob = keep_prob
        self.generator = generator
        self.updates: dict[Any, Any] = {}

    def __call__(self, values: Any) -> Any:
        """Return values of any shape, some of them dropped."""
        if self.keep_prob == 1:
            return values
        generator = self.updates.get(self.generator, self.generator)
        self.updates[self.generator], kept = pt.random.bernoulli(
            self.keep_prob, size=values.shape, rng=generator, return_next_rng=True
        )
        # In the precision of the values, where PyTensor's own choice could be another.
        return values * pt.cast(kept, values.dtype) * np.dtype(values.dtype).type(1 / self.keep_prob)


class Adam:
    """Adam: algorithm 1 of Kingma & Ba, "Adam: A Method for Stochastic Optimization", 2015.

    Args:
        variables: The shared variables that it moves.
        learning_rate: Alpha, the step size.
        clip_value: Bound on each element of the gradient, before anything else. None: no clipping.
    """

    def __init__(self, variables: Sequence[Any], *, learning_rate: float, clip_value: float | None) -> None:
        self.variables = list(variables)
        self.learning_rate = learning_rate
        self.clip_value = clip_value
        self.steps = pytensor.shared(np.int64(0))
        self.moments = [tuple(_zeros(variable) for _ in range(2)) for variable in self.variables]

    def reset(self) -> None:
        """Begin anew."""
        for variable in (self.steps, *(moment for pair in self.moments for moment in pair)):
            variable.set_value(np.zeros_like(variable.get_value()))

    def updates(self, gradients: Sequence[Any]) -> Mapping[Any, Any]:
        """Return what a step makes of each shared variable."""
        steps = self.steps + 1
        # In float64: in float32, 1 - 0.999 is wrong in the fifth digit.
        correction_1 = 1 - pt.constant(BETA_1, dtype="float64") ** steps
        correction_2 = 1 - pt.constant(BETA_2, dtype="float64") ** steps
        updates: dict[Any, Any] = {self.steps: steps}
        for variable, gradient, (m, v) in zip(self.variables, gradients, self.moments, strict=True):
            if self.clip_value is not None:
                gradient = pt.clip(gradient, *_like(variable, -self.clip_value, self.clip_value))
            beta_1, beta_2, epsilon = _like(variable, BETA_1, BETA_2, EPSILON)
            new_m = m * beta_1 + gradient * (1 - beta_1)
            new_v = v * beta_2 + pt.sqr(gradient) * (1 - beta_2)
            rate = pt.cast(self.learning_rate / correction_1, variable.dtype)
            scale = pt.cast(1 / pt.sqrt(correction_2), variable.dtype)
            updates[variable] = variable - rate * new_m / (pt.sqrt(new_v) * scale + epsilon)
            updates |= {m: new_m, v: new_v}
        return updates


def _zeros(variable: Any) -> Any:
    return pytensor.shared(np.zeros_like(variable.get_value(borrow=True)))


def _like(variable: Any, *numbers: float) -> list[Any]:
    """Return numbers in a variable's precision, where PyTensor's own choice could be another."""
    return [np.dtype(variable.dtype).type(number) for number in numbers]
