"""Workloads: tasks with the work of a step, the variants that do them, and how they are measured.

FLOPs count the multiply-adds of recurrent, softmax and dense layers only: 2 a multiply-add forward, 6 for a
training step (the gradients with respect to inputs and weights cost as much as the forward pass, each). An
embedding has none: words pick its rows, and their gradients are added into rows. With tied weights it is the
softmax's kernel as well, whose multiply-adds are those of any other.

Shapes: B = batch, T = time steps, I = input width, H = hidden units, V = vocabulary.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ptb_lm.bench import roofline, variants
from ptb_lm.bench.rows import Work
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.data.text import Ids
from ptb_lm.model import parameters
from ptb_lm.model.cells import LSTM
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import Framework

ROUNDS_OF_A_PROCESS = 2  # the second in the reverse order of the first, so that drift cancels (run/runner.py)
FLOPS_PER_MULTIPLY_ADD = {"forward": 2, "train": 6}


class Task(Protocol):
    """The work of a step, whatever the model is.

    Four functions depend on the class of a task. A new class registers its own: run.timed_steps.prepare,
    run.machine.products, check.check and, if its models may hide dropout, check.check_unknown_dropout.
    """

    @property
    def config(self) -> Any:
        """The model's configuration."""

    @property
    def registry(self) -> Mapping[str, Framework]:
        """Frameworks and programs that can do it, by name."""

    @property
    def shapes(self) -> parameters.Shapes:
        """Shapes of the canonical parameters."""

    @property
    def unit(self) -> str:
        """Unit of the rates, in the plural: words, or sequences (rows of a window)."""

    @property
    def items(self) -> int:
        """Units of a step."""

    @property
    def clock(self) -> str:
        """Description of the parts of a step that are timed."""

    @property
    def size(self) -> str:
        """Description of the sizes."""

    @property
    def batch_size(self) -> int:
        """Rows of a batch, B."""

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a forward pass."""

    def flops(self, pass_name: str) -> int:
        """Return the floating-point operations of a step."""

    def traffic(self, pass_name: str, precision: str) -> roofline.Traffic | None:
        """Return the bytes that a step must move; None if they are not known."""

    def with_batch_size(self, batch_size: int) -> "Task":
        """Return the task with another number of rows."""


@dataclass(frozen=True, kw_only=True)
class LanguageTask:
    """A language model on windows of words, with carried state, SGD and clipping: Backend's steps.

    The words are drawn by Zipf's law: what text it is makes no difference to the speed.

    Raises:
        UserError: The configuration has windows of many lengths, or another optimiser.
    """

    config: Config
    vocabulary_size: int
    unit: str = "words"

    def __post_init__(self) -> None:
        if self.config.vary_num_steps:
            raise UserError("the benchmark's windows have one length; --vary-num-steps is not measured")
        if self.config.optimizer != "sgd":
            # It reads gradients off the change of the weights, to compare them with the reference's.
            raise UserError(f"the benchmark's steps are of SGD; --optimizer {self.config.optimizer} is not")

    @property
    def registry(self) -> Mapping[str, Framework]:
        """Frameworks and programs that can do it, by name."""
        return {**variants.REGISTRY, **variants.ADDED}

    @property
    def weight_decay(self) -> float:
        """Factor of the weights in the gradient of a window's loss, which is a sum over its steps."""
        return self.config.num_steps * self.config.weight_decay

    @property
    def shapes(self) -> parameters.Shapes:
        """Shapes of the canonical parameters."""
        return parameters.shapes(self.config, self.vocabulary_size)

    @property
    def items(self) -> int:
        """Units of a step."""
        return self.config.batch_size * (self.config.num_steps if self.unit == "words" else 1)

    @property
    def clock(self) -> str:
        """Description of the parts of a step that are timed."""
        cell = "LSTM" if self.config.cell == LSTM else self.config.cell
        return f"a window is cut out of the text; embedding, {cell}, softmax; train: gradients, clipping, SGD"

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a forward pass."""
        words = self.config.batch_size * self.config.num_steps
        softmax = self.config.hidden_sizes[-1] * self.vocabulary_size
        return words * (count_elements(self.shapes, (f"{self.config.cell}.",)) + softmax)

    def flops(self, pass_name: str) -> int:
        """Return the floating-point operations of a step."""
        return self.multiply_adds * FLOPS_PER_MULTIPLY_ADD[pass_name]

    def traffic(self, pass_name: str, precision: str) -> roofline.Traffic:
        """Return the bytes that a step must move."""
        weights = sum(math.prod(shape) for shape in self.shapes.values())
        if not (self.config.tie_weights or self.config.weight_decay):
            weights -= math.prod(self.shapes["embedding"])
        return roofline.traffic(weights, pass_name, precision)

    @property
    def batch_size(self) -> int:
        """Rows of a batch, B."""
        return self.config.batch_size

    @property
    def size(self) -> str:
        """Description of the sizes."""
        config = self.config
        cell = "" if config.cell == LSTM else f"{config.cell} "
        units = f"{config.num_layers} × {config.hidden_size}"
        if config.layer_sizes:
            units = " + ".join(map(str, config.layer_sizes))
        keep_probs = config.unit_keep_probs
        by_place = keep_probs if len({*keep_probs}) > 1 else keep_probs[:1]
        dropped = " / ".join(f"{1 - keep_prob:.2g}" for keep_prob in by_place)
        return (
            f"{units} {cell}units, embedding {config.embedding_width}, "
            f"vocabulary {self.vocabulary_size:,}, batch {config.batch_size} × {config.num_steps} steps, "
            f"dropout {dropped}{''.join(self._more_dropout())}"
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
        """Return the task with another number of rows."""
        return replace(self, config=self.config.replace(batch_size=batch_size))

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
class Workload:
    """A task, the variants that do it, and how it is measured."""

    name: str
    task: Task
    variants: tuple[variants.Variant, ...]
    baseline: str  # the variant that speeds are compared with
    measured_twice: str = "torch/cudnn"  # the variant of the A/A test, which a suite adds (suites.py)
    passes: tuple[str, ...] = ("train",)
    # Minutes of all processes together, by which their number is planned (run/runner.py). None: the number is
    # `processes`.
    minutes: float | None = 15.0
    rounds: int = 5  # of all processes together; a selection sets it by the options (selection.py)
    min_steps: int = 3  # timed in a round
    # Seconds of a round: the clock's own grain and the last synchronisation must not count. Longer
    # blocks resolve no more, as processes differ by more than the blocks of one.
    min_seconds: float = 0.5
    warm_up_steps: int = 3
    processes: int = 5  # of each variant, which share the rounds; the minimum if `minutes` plans them
    cut: str = ""  # how a selection changed its size: "batch 2 of 20"; "" if it did not (selection.py)
    needs_cuda: str = ""  # why it is not measured on a CPU; "" if it is
    # Whether a CPU skips bfloat16 if it does not multiply in it itself: a step would take minutes.
    needs_native_precision: bool = False

    @property
    def rounds_by_process(self) -> list[list[int]]:
        """The rounds of each process, counted from 0."""
        processes = itertools.groupby(range(self.rounds), lambda index: index * self.processes // self.rounds)
        return [list(rounds) for _, rounds in processes]

    @cached_property
    def rounds_by_need(self) -> list[int]:
        """The rounds, in the order in which a plan takes them where there is no time for all.

        They are the first of every process, then the second of every process: the process is the unit of
        intervals, and its second block says less than the first one of another process.
        """
        by_place = itertools.zip_longest(*self.rounds_by_process)
        return [index for rounds in by_place for index in rounds if index is not None]

    def work(self, pass_name: str, *, precision: str, device: str) -> Work:
        """Return the work of a step of a pass, which is the same for every variant of a precision."""
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
            bytes_per_step=task.traffic(pass_name, precision),
        )


def count_elements(shapes: Mapping[str, Sequence[int]], prefixes: tuple[str, ...]) -> int:
    """Return the number of elements of all matrices whose names have one of the prefixes."""
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if name.startswith(prefixes) and parameters.is_matrix(name, shape)
    )
