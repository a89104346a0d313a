"""A task of the benchmark: sequences of random features are classified.

FLOPs count as those of a language model (ptb_lm.bench.workloads). Features have no gradient, so the kernels
that read them take 4 FLOPs a multiply-add in a training step.

Shapes: B = batch, T = time steps, I = input width, U = labels a sequence.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sequence_classifier
from numpy.typing import NDArray
from sequence_classifier import Batch, Classifier, ClassifierConfig
from typing_extensions import override

from ptb_lm.bench import variants
from ptb_lm.bench.run.machine import Product, layer_products, products, with_gradients
from ptb_lm.bench.run.timed_steps import TimedSteps, prepare
from ptb_lm.bench.workloads import FLOPS_PER_MULTIPLY_ADD, count_elements
from ptb_lm.model import parameters
from ptb_lm.model.cells import LSTM
from ptb_lm.model.frameworks import Framework

FLOPS_PER_GRADIENT = 2  # per multiply-add, for the gradient with respect to the inputs


@dataclass(frozen=True, kw_only=True)
class ClassifierTask:
    """A sequence classifier without dropout on random features: Classifier's steps."""

    config: ClassifierConfig
    batch_size: int
    steps: int  # T
    shortest: int | None = None  # sequences have lengths from this to T; None: all T
    labels: int = 1  # U, for CTC
    unit: str = "sequences"
    clock: str = "the NumPy batch in; LSTM, dense layer, loss; train: gradients, Adam"

    @property
    def registry(self) -> Mapping[str, Framework]:
        """Frameworks and programs that can do it, by name."""
        return {**variants.REGISTRY, **sequence_classifier.CLASSIFIERS, **variants.ADDED}

    @property
    def shapes(self) -> parameters.Shapes:
        """Shapes of the canonical parameters."""
        return sequence_classifier.shapes(self.config)

    @property
    def items(self) -> int:
        """Units of a step."""
        return self.batch_size

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a forward pass; padding is no work."""
        dense = count_elements(self.shapes, ("dense.",))
        outputs = self._frames if self.config.loss == "ctc" else self.batch_size
        return self._frames * count_elements(self.shapes, (f"{LSTM}.",)) + outputs * dense

    def flops(self, pass_name: str) -> int:
        """Return the floating-point operations of a step."""
        flops = self.multiply_adds * FLOPS_PER_MULTIPLY_ADD[pass_name]
        if pass_name == "train":
            reading = sum(math.prod(self.shapes[name]) for name in self.kernels_of_features)
            flops -= self._frames * reading * FLOPS_PER_GRADIENT
        return flops

    @property
    def kernels_of_features(self) -> list[str]:
        """The canonical names of the kernels that read the features, which need no gradient."""
        bottom = parameters.direction_prefixes(0, bidirectional=self.config.bidirectional)
        return [f"{prefix}kernel" for prefix in bottom]

    @property
    def _frames(self) -> int:
        return self.batch_size * self.steps if self.shortest is None else int(self._spread_lengths().sum())

    def _spread_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of a batch's sequences, the shortest first."""
        assert self.shortest is not None
        return np.linspace(self.shortest, self.steps, self.batch_size).round().astype(np.int32)

    @property
    def size(self) -> str:
        """Description of the sizes."""
        config = self.config
        layers = " + ".join(map(str, config.hidden_sizes))
        if len(set(config.hidden_sizes)) == 1:
            layers = f"{len(config.hidden_sizes)} × {config.hidden_sizes[0]}"
        steps = f"{self.steps}" if self.shortest is None else f"{self.shortest} to {self.steps}"
        return (
            f"{layers} {'bidirectional ' * config.bidirectional}units, {config.classes} classes, "
            f"batch {self.batch_size} × {steps} steps × {config.input_size} features"
        )

    def traffic(self, pass_name: str, precision: str) -> None:
        """Return None: how many bytes a step must move is not known."""

    def with_batch_size(self, batch_size: int) -> "ClassifierTask":
        """Return the task with another number of rows."""
        return replace(self, batch_size=batch_size)

    def batch(self, *, seed: int) -> Batch:
        """Return a batch of random features and labels."""
        config, rng = self.config, np.random.default_rng(seed)
        lengths_B = None
        if self.shortest is not None:
            # Spread evenly, so that the work does not hang on the seed; the longest is T.
            lengths_B = rng.permutation(self._spread_lengths())
        x_BTI = rng.standard_normal((self.batch_size, self.steps, config.input_size), np.float32)
        if config.loss == "ctc":
            labels = rng.integers(1, config.classes, (self.batch_size, self.labels), np.int32)
        else:
            labels = rng.integers(config.classes, size=self.batch_size, dtype=np.int32)
        return Batch(x_BTI, labels, lengths_B)


class ClassifierSteps(TimedSteps):
    """A sequence classifier's training or forward steps, on one batch."""

    def __init__(self, task: ClassifierTask, build: Callable[..., Any], *, seed: int) -> None:
        super().__init__(build(task.config, sequence_classifier.initial(task.config, seed=seed)))
        self.task, self.seed, self.batch = task, seed, task.batch(seed=seed)

    @override
    def restart(self) -> None:
        self.model.load_weights(sequence_classifier.initial(self.task.config, seed=self.seed))
        self.model.reset_optimizer()

    @override
    def do(self, pass_name: str, steps: int) -> list[float]:
        model: Classifier = self.model
        step = model.train_step if pass_name == "train" else model.forward_step
        return model.read([step(self.batch) for _ in range(steps)])


prepare.register(ClassifierTask)(ClassifierSteps)


@products.register(ClassifierTask)
def classifier_products(task: ClassifierTask) -> list[Product]:
    """Return the distinct products of a training step; see ptb_lm.bench.run.machine.products."""
    inputs = task.batch_size * task.steps
    outputs = inputs if task.config.loss == "ctc" else task.batch_size
    width, classes = task.shapes["dense.kernel"]
    dense = Product("dense layer", outputs, width, classes)
    return with_gradients(
        {"dense.kernel": dense, **layer_products(task, inputs=inputs)}, frozen_inputs=task.kernels_of_features
    )
