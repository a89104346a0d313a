"""Sequence classifiers: the language model's LSTM stacks, used for other data than language.

A stack of LSTM layers over float features, a dense layer, and cross-entropy for one label a sequence, or CTC
for a sequence of labels; trained by Adam. The benchmark's acoustic workloads and the example that classifies
sequences use them. This file is the contract and builds a classifier. reference.py is the oracle; on_torch.py
and on_tensorflow.py compute a classifier with the language model's own layers. All arrays are NumPy's.

Shapes: B = batch, T = time steps, I = features, K = the stack's output width (H, or 2H if bidirectional),
C = classes, U = labels a sequence.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays, Model
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS, Framework

LogProbabilities = NDArray[np.floating]
Loss = Any  # opaque: a batch's loss, possibly still being computed

LOSSES = ("cross_entropy", "ctc")


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """The hyper-parameters of a sequence classifier and of its training.

    Raises:
        UserError: A value is impossible.
    """

    input_size: int  # I
    hidden_sizes: tuple[int, ...]  # H of each layer, from the bottom to the top; they may differ
    classes: int  # C; for CTC class 0 is the blank
    bidirectional: bool = False
    loss: str = "cross_entropy"
    learning_rate: float = 1e-3  # of Adam with betas 0.9 and 0.999
    clip_value: float | None = None  # bound on each element of the gradient; None: no clipping
    keep_prob: float = 1.0  # of dropout, in the language model's places: input, between layers, top output

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise UserError(f"unknown loss {self.loss!r}; choose from {', '.join(LOSSES)}")
        sizes = (self.input_size, *self.hidden_sizes, self.classes)
        if not self.hidden_sizes or min(sizes) < 1:
            raise UserError("input_size, hidden_sizes and classes must be at least 1")
        if not 0 < self.keep_prob <= 1:
            raise UserError(f"keep_prob must be greater than 0 and at most 1, not {self.keep_prob}")
        if not 0 < self.learning_rate <= 1:
            raise UserError(f"learning_rate must be greater than 0 and at most 1, not {self.learning_rate}")
        if self.clip_value is not None and not 0 < self.clip_value < math.inf:
            raise UserError(f"clip_value must be greater than 0 and finite, not {self.clip_value}")


class Batch(NamedTuple):
    """Labelled sequences."""

    x_BTI: NDArray[np.float32]
    labels: NDArray[np.int32]  # [B] for cross-entropy, of 0 to C - 1; [B, U] for CTC, of 1 to C - 1
    lengths_B: NDArray[np.int32] | None = None  # steps of each, the rest is padding; None: all T


class Classifier(Model):
    """A sequence classifier of one framework on one device, with its optimiser.

    Cross-entropy reads the top layer's final state: each direction's output after its last valid step. CTC
    reads the top layer's output at every valid step. The padding's content influences nothing.
    A loss is in nats, averaged over the batch.
    """

    @abstractmethod
    def train_step(self, batch: Batch) -> Loss:
        """Do one step of Adam with dropout and clipping; may return before the device is done."""

    @abstractmethod
    def reset_optimizer(self) -> None:
        """Reset Adam: its moments and its count of steps become zero."""

    @abstractmethod
    def forward_step(self, batch: Batch) -> Loss:
        """Compute only the loss, without dropout, with the execution of a training step; may return early."""

    @abstractmethod
    def loss_and_gradients(self, batch: Batch) -> tuple[float, Arrays]:
        """Return the loss and its gradients with respect to the canonical parameters.

        There is no dropout, no clipping and no step.
        """

    @abstractmethod
    def predict(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None = None
    ) -> LogProbabilities:
        """Return the log-probabilities without dropout: [B, C], or [B, T, C] for CTC."""

    @abstractmethod
    def read(self, losses: Sequence[Loss]) -> list[float]:
        """Wait for the device and return the numbers behind some losses: the only synchronisation."""


# The frameworks of the language model, with the builders of their classifiers.
CLASSIFIERS: dict[str, Framework] = {
    "torch": replace(
        FRAMEWORKS["torch"],
        build="sequence_classifier.on_torch:TorchClassifier",
        executions=("eager", "compile", "jit"),
        precisions=("fp32", "fp64"),
        needs_cuda=(),
    ),
    "tensorflow": replace(
        FRAMEWORKS["tensorflow"], build="sequence_classifier.on_tensorflow:TensorFlowClassifier"
    ),
}


def check_lengths(lengths_B: NDArray[np.int32], samples: int, steps: int) -> None:
    """Check that each sequence of a batch has a length that is possible.

    Raises:
        UserError: The number of lengths is not that of sequences, or a length is not from 1 to T.
    """
    if len(lengths_B) != samples or lengths_B.min() < 1 or lengths_B.max() > steps:
        raise UserError(f"there must be {samples} lengths, each from 1 to {steps}")


def check_labels(labels: NDArray[np.integer], config: ClassifierConfig) -> None:
    """Check that each label of a batch is a class, and for CTC not the blank.

    Raises:
        UserError: A label is no class, or is CTC's blank.
    """
    first = 1 if config.loss == "ctc" else 0
    if ((labels < first) | (labels >= config.classes)).any():
        raise UserError(f"each label must be from {first} to {config.classes - 1}")


def shapes(config: ClassifierConfig) -> parameters.Shapes:
    """Return the shape of every parameter by its canonical name: the stack's, dense.kernel, dense.bias."""
    width = config.hidden_sizes[-1] * (2 if config.bidirectional else 1)
    return {
        **parameters.stack_shapes(config.input_size, config.hidden_sizes, bidirectional=config.bidirectional),
        "dense.kernel": (width, config.classes),
        "dense.bias": (config.classes,),
    }


def initial(config: ClassifierConfig, *, seed: int, scale: float = 0.1) -> parameters.Weights:
    """Draw initial weights: uniform in [-scale, scale], float32, with LSTM biases zero."""
    return parameters.draw_uniform(shapes(config), scale=scale, seed=seed)


def build(config: ClassifierConfig, weights: Mapping[str, NDArray[Any]], choice: Choice) -> Classifier:
    """Build a framework's classifier; only that framework is imported.

    Args:
        config: The hyper-parameters.
        weights: Canonical parameters to start from; see `shapes`.
        choice: Framework, model and execution: Choice.create(CLASSIFIERS, ...).

    Raises:
        UserError: The choice has no classifier, the framework is not installed, or there is no such device.
    """
    choice = replace(choice, registry=CLASSIFIERS)
    return choice.builder()(config, weights, choice)
