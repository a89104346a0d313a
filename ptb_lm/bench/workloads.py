"""What is computed: the tasks of the benchmark, with the work that each declares.

FLOPs count the multiply-adds of recurrent, softmax and dense layers only: 2 a multiply-add forward, 6 for a
training step (the gradients by inputs and by weights cost as much as the forward pass, each). A classifier's
features have no gradient, so their kernels take 4. An embedding has none: words pick its rows, and their
gradients are added into rows. With tied weights it is the softmax's kernel as well, whose multiply-adds are
those of any other.

Shapes: B = batch, T = time steps, I = input width, H = hidden units, V = vocabulary, U = labels a sequence.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptb_lm import classifier
from ptb_lm.bench import roofline, variants
from ptb_lm.bench.rows import Work
from ptb_lm.bench.variants import Variant
from ptb_lm.classifier import Batch, ClassifierConfig
from ptb_lm.data import corpus
from ptb_lm.data.text import Ids
from ptb_lm.model import parameters
from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import Framework

# Forward and in a training step; and in one for the gradient by the inputs alone.
FLOPS_A_MULTIPLY_ADD = {"forward": 2, "train": 6}
FLOPS_OF_A_GRADIENT = 2


@dataclass(frozen=True, kw_only=True)
class LanguageTask:
    """A language model on windows of words, with carried state, SGD and clipping: Backend's steps.

    The words are drawn by Zipf's law: what text it is makes no difference to the speed.
    """

    config: Config
    vocabulary_size: int
    unit: str = "words"  # what is counted a second: words, or sequences (rows of a window)
    clock: str = "a window is cut out of the text; embedding, LSTM, softmax; train: gradients, clipping, SGD"

    @property
    def registry(self) -> Mapping[str, Framework]:
        """Who can do it."""
        return variants.LANGUAGE_MODELS

    @property
    def shapes(self) -> parameters.Shapes:
        """The canonical parameters' shapes."""
        return parameters.shapes(self.config, self.vocabulary_size)

    @property
    def items(self) -> int:
        """What a step does, counted in units."""
        return self.config.batch_size * (self.config.num_steps if self.unit == "words" else 1)

    @property
    def multiply_adds(self) -> int:
        """Of a forward pass."""
        words = self.config.batch_size * self.config.num_steps
        softmax = self.config.layer_sizes[-1] * self.vocabulary_size
        return words * (_matrix_elements(self.shapes, (f"{self.config.cell}.",)) + softmax)

    def flops(self, pass_name: str) -> int:
        """Return the floating-point operations of a step."""
        return self.multiply_adds * FLOPS_A_MULTIPLY_ADD[pass_name]

    def traffic(self, pass_name: str, precision: str) -> roofline.Traffic:
        """Return what a step must move between the device and its memory."""
        weights = sum(math.prod(shape) for shape in self.shapes.values())
        if not self.config.tie_weights:
            weights -= math.prod(self.shapes["embedding"])
        return roofline.traffic(weights, pass_name, precision)

    @property
    def batch_size(self) -> int:
        """B."""
        return self.config.batch_size

    @property
    def size(self) -> str:
        """The sizes, for people."""
        config = self.config
        cell = "" if config.cell == LSTM else f"{config.cell} "
        return (
            f"{config.num_layers} × {config.hidden_size} {cell}units, embedding {config.embedding_width}, "
            f"vocabulary {self.vocabulary_size:,}, batch {config.batch_size} × {config.num_steps} steps, "
            f"dropout {1 - config.keep_prob:.2g}{''.join(self._more_dropout())}"
        )

    def _more_dropout(self) -> Iterator[str]:
        config = self.config
        if config.variational:
            yield " with one mask a window"
        for what, keep_prob in (
            ("words", config.embedding_keep_prob),
            ("recurrent weights", config.recurrent_keep_prob),
        ):
            if keep_prob < 1:
                yield f", {1 - keep_prob:.2g} of the {what}"

    def with_batch_size(self, batch_size: int) -> "LanguageTask":
        """Return the task with other rows."""
        return dataclasses.replace(self, config=self.config.replace(batch_size=batch_size))

    def rows(self, windows: int, *, seed: int) -> Ids:
        """Return rows of random words [B, L], long enough for some windows."""
        rng = np.random.default_rng(seed)
        probability_V = 1 / np.arange(1, self.vocabulary_size + 1)
        length = windows * self.config.num_steps + 1
        ids_BL = rng.choice(
            self.vocabulary_size,
            (self.config.batch_size, length),
            p=probability_V / probability_V.sum(),
        )
        return ids_BL.astype(np.int32)

    def window(self, *, seed: int) -> tuple[Ids, Ids]:
        """Return a window (x_BT, y_BT) of random words."""
        return next(corpus.windows(self.rows(1, seed=seed), self.config.num_steps))


@dataclass(frozen=True, kw_only=True)
class ClassifierTask:
    """A sequence classifier on random features: Classifier's steps."""

    config: ClassifierConfig
    batch_size: int
    steps: int  # T
    shortest: int | None = None  # sequences have lengths from this to T; None: all T
    labels: int = 1  # U, for CTC
    unit: str = "sequences"
    clock: str = "the NumPy batch in; LSTM, dense layer, loss; train: gradients, Adam"

    @property
    def registry(self) -> Mapping[str, Framework]:
        """Who can do it."""
        return variants.CLASSIFIERS

    @property
    def shapes(self) -> parameters.Shapes:
        """The canonical parameters' shapes."""
        return classifier.shapes(self.config)

    @property
    def items(self) -> int:
        """What a step does, counted in units."""
        return self.batch_size

    @property
    def multiply_adds(self) -> int:
        """Of a forward pass; padding is no work."""
        dense = _matrix_elements(self.shapes, ("dense.",))
        outputs = self._frames if self.config.loss == "ctc" else self.batch_size
        return self._frames * _matrix_elements(self.shapes, (f"{LSTM}.",)) + outputs * dense

    def flops(self, pass_name: str) -> int:
        """Return the floating-point operations of a step."""
        flops = self.multiply_adds * FLOPS_A_MULTIPLY_ADD[pass_name]
        if pass_name == "train":
            reading = sum(math.prod(self.shapes[name]) for name in self.kernels_of_features)
            flops -= self._frames * reading * FLOPS_OF_A_GRADIENT
        return flops

    @property
    def kernels_of_features(self) -> list[str]:
        """The canonical names of the kernels that read the features, which need no gradient."""
        bottom = parameters.directions(0, bidirectional=self.config.bidirectional)
        return [f"{prefix}kernel" for prefix in bottom]

    @property
    def _frames(self) -> int:
        lengths_B = self.batch(seed=0).lengths_B
        return self.batch_size * self.steps if lengths_B is None else int(lengths_B.sum())

    @property
    def size(self) -> str:
        """The sizes, for people."""
        config = self.config
        layers = " + ".join(map(str, config.hidden_sizes))
        if len(set(config.hidden_sizes)) == 1:
            layers = f"{len(config.hidden_sizes)} × {config.hidden_sizes[0]}"
        steps = f"{self.steps}" if self.shortest is None else f"{self.shortest} to {self.steps}"
        return (
            f"{layers} {'bidirectional ' * config.bidirectional}units, {config.classes} classes, "
            f"batch {self.batch_size} × {steps} steps × {config.input_size} features"
        )

    def with_batch_size(self, batch_size: int) -> "ClassifierTask":
        """Return the task with another number of sequences."""
        return dataclasses.replace(self, batch_size=batch_size)

    def batch(self, *, seed: int) -> Batch:
        """Return a batch of random features and labels."""
        config, rng = self.config, np.random.default_rng(seed)
        lengths_B = None
        if self.shortest is not None:
            # Spread evenly, so that the work does not hang on the seed; the longest is T.
            spread = np.linspace(self.shortest, self.steps, self.batch_size).round()
            lengths_B = rng.permutation(spread).astype(np.int32)
        x_BTI = rng.standard_normal((self.batch_size, self.steps, config.input_size), np.float32)
        if config.loss == "ctc":
            labels = rng.integers(1, config.classes, (self.batch_size, self.labels), np.int32)
        else:
            labels = rng.integers(config.classes, size=self.batch_size, dtype=np.int32)
        return Batch(x_BTI, labels, lengths_B)


Task = LanguageTask | ClassifierTask


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A task, the variants that do it, and how it is measured."""

    name: str
    task: Task
    variants: tuple[Variant, ...]
    baseline: str  # the variant that speeds are compared with
    measured_twice: str = "torch/cudnn"  # the variant of the A/A test, which a suite adds (suites.py)
    passes: tuple[str, ...] = ("train",)
    rounds: int = 5
    steps: int = 5  # timed in a round, at least
    warm_up: int = 3  # steps before
    processes: int = 5  # a variant, which share the rounds
    needs_cuda: str = ""  # why it is not measured on a CPU; "" if it is

    def process_ends(self, index: int) -> bool:
        """Return whether a round, counted from 0, is the last of a process."""
        return (index + 1) * self.processes // self.rounds > index * self.processes // self.rounds

    def work(self, pass_name: str, *, precision: str, device: str) -> Work:
        """Return what a step of a pass does: the same for every variant of a precision."""
        task = self.task
        return Work(
            parameters=sum(math.prod(shape) for shape in task.shapes.values()),
            flops_per_step=task.flops(pass_name),
            items_per_step=task.items,
            unit=task.unit,
            precision=precision,
            device=device,
            description=task.size,
            clock=task.clock,
            bytes_per_step=task.traffic(pass_name, precision) if isinstance(task, LanguageTask) else None,
        )


def _matrix_elements(shapes: Mapping[str, Sequence[int]], prefixes: tuple[str, ...]) -> int:
    return sum(
        math.prod(shape) for name, shape in shapes.items() if name.startswith(prefixes) and len(shape) == 2
    )
