"""The classifier in PyTensor, and its optimiser: the contract of sequence_classifier.

Shapes: B = batch, T = time steps, I = features, H = hidden units, 4H = the gates in the order i, f, g, o,
C = classes.
"""

import functools
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.mode import get_default_mode
from sequence_classifier import Batch, Classifier, ClassifierConfig, LogProbabilities, shapes
from typing_extensions import override

from benchmarks.rivals import check_classifier, check_whole
from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice

Tensor: TypeAlias = Any  # a symbolic array

DTYPES: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam


def build(
    config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice
) -> "PyTensorClassifier":
    """Build the classifier; see sequence_classifier.build.

    Raises:
        UserError: PyTensor's classifier is not like that, or not on that device.
    """
    check_classifier(config, "pytensor")
    if choice.device == "cuda":
        raise UserError("--device cuda: pytensor compiles for the CPU")
    return PyTensorClassifier(config, weights, choice)


class PyTensorClassifier(Classifier):
    """A sequence classifier of layers in pytensor.scan: a compiled function for each thing it does.

    A function is compiled when it is first called, by what PyTensor is set to compile with; it keeps what was
    compiled in its own folder in the user's home. Its steps return when they are done.

    Attributes:
        variables: Shared variables by canonical name.
    """

    def __init__(self, config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        self.config = config
        self.dtype = DTYPES[choice.precision]
        self.variables = {
            name: pytensor.shared(np.zeros(shape, self.dtype), name) for name, shape in shapes(config).items()
        }
        self.adam = Adam(list(self.variables.values()), learning_rate=config.learning_rate)
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
        return float(loss), dict(zip(self.variables, gradients, strict=True))

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
        return {name: variable.get_value() for name, variable in self.variables.items()}

    @override
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        for name, variable in self.variables.items():
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
        """Run the function for a task."""
        check_whole(lengths_B, "pytensor")
        return self._compiled(task)(x_BTI.astype(self.dtype, copy=False), *labels)

    def _compile(self, task: str) -> Any:
        x_BTI, labels_B = pt.tensor3("x", dtype=self.dtype.name), pt.ivector("labels")
        log_p_BC = pt.special.log_softmax(self._logits(x_BTI), axis=-1)
        if task == "predict":
            return pytensor.function([x_BTI], [log_p_BC])
        loss = -pt.mean(log_p_BC[pt.arange(labels_B.shape[0]), labels_B])
        if task == "loss":
            return pytensor.function([x_BTI, labels_B], [loss])
        gradients = pt.grad(loss, list(self.variables.values()))
        if task == "gradients":
            return pytensor.function([x_BTI, labels_B], [loss, *gradients])
        return pytensor.function([x_BTI, labels_B], [loss], updates=self.adam.updates(gradients))

    def _logits(self, x_BTI: Tensor) -> Tensor:
        """Return the logits [B, C] of each sequence's final state."""
        values_TBI = x_BTI.transpose(1, 0, 2)
        for layer in range(len(self.config.hidden_sizes)):
            values_TBI = self._layer(layer, values_TBI)
        return values_TBI[-1] @ self.variables["dense.kernel"] + self.variables["dense.bias"]

    def _layer(self, layer: int, x_TBI: Tensor) -> Tensor:
        """Return a layer's outputs [T, B, H]."""
        kernel, recurrent_kernel, bias = (
            self.variables[f"lstm.{layer}.{name}"] for name in ("kernel", "recurrent_kernel", "bias")
        )
        hidden = recurrent_kernel.get_value(borrow=True).shape[0]

        def step(z_BG: Tensor, h_BH: Tensor, c_BH: Tensor, recurrent_kernel: Tensor) -> list[Tensor]:
            z_BG = z_BG + h_BH @ recurrent_kernel
            i, f, g, o = (z_BG[:, gate * hidden : (gate + 1) * hidden] for gate in range(4))
            c_BH = pt.sigmoid(f) * c_BH + pt.sigmoid(i) * pt.tanh(g)
            return [pt.sigmoid(o) * pt.tanh(c_BH), c_BH]

        zero_BH = pt.zeros((x_TBI.shape[1], hidden), dtype=self.dtype)
        h_TBH, _ = pytensor.scan(
            step,
            # The inputs' part of the gates needs no loop: it is one product.
            sequences=[x_TBI @ kernel + bias],
            outputs_info=[zero_BH, zero_BH],
            non_sequences=[recurrent_kernel],
            return_updates=False,
        )
        return h_TBH


class Adam:
    """Adam: algorithm 1 of Kingma & Ba, "Adam: A Method for Stochastic Optimization", 2015.

    Args:
        variables: The shared variables that it moves.
        learning_rate: Alpha, the step size.
    """

    def __init__(self, variables: Sequence[Any], *, learning_rate: float) -> None:
        self.variables = list(variables)
        self.learning_rate = learning_rate
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
