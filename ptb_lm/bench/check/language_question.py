"""The question about a language model: training steps from given weights, window after window.

Shapes: B = batch, T = time steps, L = length of a row.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.bench.check import dropout, expected, problem
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.data import corpus
from ptb_lm.data.text import Ids
from ptb_lm.model import reference, reference_updates

Window: TypeAlias = tuple[Ids, Ids]  # x_BT, y_BT

# The step of a finite difference: by this part of itself the first update is made longer.
DIFFERENCE_STEP = 1e-3
_DERIVATIVE = "derivative by the length of the first update: "


@dataclass(frozen=True)
class LanguageQuestion(expected.Question):
    """The question: training steps from given weights, window after window.

    Attributes:
        task: The language model.
        distinct: Number of distinct rows of the batch.
        masks: Masks of each step's dropout; empty for none.
        forward: True if the same windows are scored, too.
        seed: Seed of weights and words.
    """

    task: LanguageTask
    distinct: int
    masks: tuple[dropout.KeepMasks, ...] = field(repr=False)
    forward: bool
    seed: int

    @property
    @override
    def multiply_adds(self) -> float:
        return self.task.multiply_adds * self.distinct / self.task.batch_size

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of each step: it is an argument of a step, and the bound on the norm is not."""
        config = self.task.config
        return tuple(update / config.max_grad_norm for update in problem.updates(config.num_steps))

    @cached_property
    def weights(self) -> problem.Weights:
        """The weights to begin with."""
        return problem.language_weights(self.task, seed=self.seed)

    @cached_property
    def text(self) -> Ids:
        """The words of the batch's rows [B, L], as many rows of them distinct as `distinct` says."""
        rows_BL = self.task.rows(problem.STEPS, seed=self.seed)
        return rows_BL[problem.copy_indices(self.task, self.distinct)]

    def additions(self, step: int) -> dict[str, NDArray[np.integer]]:
        """Return how often a step adds to a weight, where that is not once: to a word's row as it occurs.

        Returns:
            By name; [V, 1] for the embedding.
        """
        steps = self.task.config.num_steps
        words = self.text[:, step * steps : (step + 1) * steps]
        counts_V = np.bincount(words.ravel(), minlength=self.task.vocabulary_size)
        return {"embedding": np.maximum(counts_V, 1)[:, None]}

    @override
    def arrays(self) -> Iterable[NDArray[Any]]:
        yield from self.weights.values()
        yield self.text
        for window in self.masks:
            for kept in (*window.weights.values(), *window.units):
                yield np.packbits(kept)

    @override
    def answer(self) -> expected.Answer:
        # Rows that are copies of each other add nothing to a mean.
        rows_BL = self.text[:: self.task.batch_size // self.distinct]
        windows = list(corpus.windows(rows_BL, self.task.config.num_steps))
        zero = reference.zero_state(self.weights, self.distinct)
        answer = self._train(windows, zero)
        if self.forward:
            state = zero
            for step, (x_BT, y_BT) in enumerate(windows):
                loss, _, state = reference.loss_and_gradients(
                    self.weights, x_BT, y_BT, state, cell=self.task.config.cell_declaration
                )
                answer[f"{step}.loss scored"] = np.array(loss)
        return answer

    def _train(self, windows: Sequence[Window], state: reference.State) -> expected.Answer:
        """Train on two windows; differentiate the second step by the length of the first update."""
        weights = self.weights
        answer, gradients, state = self._step(0, weights, windows[0], state)
        after, _ = reference_updates.sgd_update(
            weights,
            gradients,
            learning_rate=self.rates[0],
            max_grad_norm=self.task.config.max_grad_norm,
            weight_decay=self.task.weight_decay,
        )
        del gradients  # which fill a gigabyte
        second, _, _ = self._step(1, after, windows[1], state)
        further = {name: array + DIFFERENCE_STEP * (array - weights[name]) for name, array in after.items()}
        beside, _, _ = self._step(1, further, windows[1], state)
        derivative = {_DERIVATIVE + name: (beside[name] - second[name]) / DIFFERENCE_STEP for name in second}
        return answer | second | derivative

    def _step(
        self,
        index: int,
        weights: Mapping[str, NDArray[np.floating]],
        window: Window,
        state: reference.State,
    ) -> tuple[expected.Answer, Mapping[str, NDArray[np.floating]], reference.State]:
        """Return what is kept of a step, its gradients, and the state after it."""
        dropped = dropout.scaled_masks(self.task, self.masks[index]) if self.masks else {}
        x_BT, y_BT = window
        settings = reference.settings(self.task.config) | dropped
        loss, gradients, state = reference.loss_and_gradients(weights, x_BT, y_BT, state, **settings)
        kept = expected.gradients(f"{index}", gradients)
        norm = math.sqrt(sum(float(kept[f"{index}.norm of {name}"]) ** 2 for name in gradients))
        kept |= {f"{index}.loss": np.array(loss), f"{index}.norm": np.array(norm)}
        return kept, gradients, state


def extrapolate(answer: expected.Answer, excess: float) -> expected.Answer:
    """Return an answer as it is where the first update is longer by a part of itself, to first order.

    A variant whose norm is off by its rounding clips as much otherwise, and its second step computes with
    what follows from that. What is left out is of the order of the part's square.

    Args:
        answer: Result of `LanguageQuestion.answer`.
        excess: The part; negative if the update is shorter.
    """
    return {
        name: array + excess * answer[_DERIVATIVE + name] if _DERIVATIVE + name in answer else array
        for name, array in answer.items()
    }
