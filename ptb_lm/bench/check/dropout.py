"""Dropout, seen from outside: the masks that a model reports, or the losses of a model that reports none.

Masks that are reported must be where the configuration wants them, and the reference takes the same.

A model that does not report its masks is judged by its training losses and one step. Without dropout on the
top output, the loss at the weights of a comparison is lower by 28 % (keep probability 0.5, as in medium) to
35 % (0.35, as in large), which is 25 standard deviations of one window's and more. Dropout that is left out
further down moves a mean over one window by no more than chance does, and is not seen here. The losses of the
same window differ, unless the same masks are used again. A step moves the weights by as much as its gradient
is long after clipping: that it has the right direction, too, is not seen here.

Shapes: B = batch, T = time steps, H = hidden units of a layer.
"""

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ptb_lm.bench.check import expected, problem
from ptb_lm.bench.check.bounds import Errors, WrongError
from ptb_lm.bench.check.update import check_update
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model import reference
from ptb_lm.model.backend import Backend
from ptb_lm.model.dropout_places import Masks, MaskSpec, mask_specs

KeepMasks: TypeAlias = Masks[NDArray[np.bool_]]  # the entries of a window's masks that are kept

SHARE_DEVIATIONS = 7.0  # by how many standard deviations a share of a mask's entries may be off
WINDOWS = 4  # with masks of their own, of the variant and of the reference
MORE_WINDOWS = 8  # of the reference, where chance shows less in each
DEVIATIONS = 7.0  # standard deviations of chance that are believed


def hides_masks(task: LanguageTask, model: Any) -> bool:
    """Return whether a model has dropout and does not report its next masks, as every Backend does."""
    return task.config.has_dropout and getattr(model, "next_masks", None) is None


def without_dropout(task: LanguageTask) -> LanguageTask:
    """Return the task without dropout of any kind."""
    everywhere = dict.fromkeys(("keep_prob", "embedding_keep_prob", "recurrent_keep_prob"), 1.0)
    as_everywhere = dict.fromkeys(("input_keep_prob", "between_keep_prob", "output_keep_prob"), 0.0)
    return replace(task, config=task.config.replace(**everywhere, **as_everywhere))


def check_masks(task: LanguageTask, windows: Sequence[KeepMasks]) -> None:
    """Check that the masks of consecutive windows are where the configuration wants them, and drop as much.

    And that each of them is drawn by itself: two that are the same, of two windows or layers, or for all rows
    or time steps, would be an easier problem, with the same answer as the reference's.

    Raises:
        WrongError: A mask is missing, has another shape or share, or repeats another.
    """
    for masks in windows:
        _check_specs(task, masks)
        _check_each_is_drawn(_with_specs(task, masks))
    for before, after in itertools.pairwise(windows):
        for (one, spec), (other, _) in zip(
            *(_with_specs(task, each) for each in (before, after)), strict=True
        ):
            _check_apart("the next window", one, other, (spec.keep_prob, spec.keep_prob))


def _check_specs(task: LanguageTask, reported: KeepMasks) -> None:
    """Check that masks have the right shapes, and keep the right share."""
    specs = _specs(task)
    if reported.weights.keys() != specs.weights.keys() or len(reported.units) != len(specs.units):
        raise WrongError(
            "its dropout is missing in one of its places, or is in a place where there should be none"
        )
    for kept, (shape, keep_prob) in _with_specs(task, reported):
        if kept.shape != shape:
            raise WrongError(f"a mask of its dropout has the shape {kept.shape}, not {shape}")
        share = float(kept.mean())
        if abs(share - keep_prob) > SHARE_DEVIATIONS * math.sqrt(keep_prob * (1 - keep_prob) / kept.size):
            raise WrongError(
                f"a mask of its dropout, of shape {shape}, keeps a share of {share:.3f}, not {keep_prob:g}"
            )


def _check_each_is_drawn(masks: Sequence[tuple[NDArray[np.bool_], MaskSpec]]) -> None:
    """Check that a window's masks differ from each other, and in time and from row to row."""
    for (one, spec), (other, other_spec) in itertools.combinations(masks, 2):
        if one.ndim == other.ndim:
            _check_apart("another layer", one, other, (spec.keep_prob, other_spec.keep_prob))
    for mask, spec in masks:
        if mask.ndim == 3:  # of units: [T or 1, B, H]
            for axis, what in enumerate(("the later time steps", "the other rows")):
                half = mask.shape[axis] // 2
                first, second, *_ = np.split(mask, [half, 2 * half], axis=axis)
                _check_apart(what, first, second, (spec.keep_prob, spec.keep_prob))


def _check_apart(
    what: str, one: NDArray[np.bool_], other: NDArray[np.bool_], keep_probs: tuple[float, float]
) -> None:
    """Check that two masks differ in as many entries as two that were drawn differ, where both have some."""
    common = tuple(map(slice, np.minimum(one.shape, other.shape)))
    differs = one[common] != other[common]
    if not differs.size:
        return
    share = float(differs.mean())
    drawn = sum(keep_probs) - 2 * math.prod(keep_probs)
    if abs(share - drawn) > SHARE_DEVIATIONS * math.sqrt(drawn * (1 - drawn) / differs.size):
        raise WrongError(
            f"its dropout does not draw a new mask for {what}: a share of {share:.3f} of the entries "
            f"differs, not {drawn:.3f}"
        )


def scaled_masks(task: LanguageTask, masks: KeepMasks) -> dict[str, Any]:
    """Return masks as the reference takes them: 1 / keep_prob where something is kept, else 0."""
    specs = _specs(task)
    units = [np.divide(mask, spec.keep_prob) for mask, spec in zip(masks.units, specs.units, strict=True)]
    weights = {name: np.divide(masks.weights[name], spec.keep_prob) for name, spec in specs.weights.items()}
    return {"masks": units or None, "weight_masks": weights}


def _with_specs(task: LanguageTask, masks: KeepMasks) -> list[tuple[NDArray[np.bool_], MaskSpec]]:
    """Return all masks of a window, each with its specification."""
    specs = _specs(task)
    weights = [(masks.weights[name], spec) for name, spec in specs.weights.items()]
    return [*weights, *zip(masks.units, specs.units, strict=True)]


def _specs(task: LanguageTask) -> Masks[MaskSpec]:
    config = task.config
    return mask_specs(config, task.vocabulary_size, batch=config.batch_size, steps=config.num_steps)


@dataclass(frozen=True)
class Losses(expected.Question):
    """The question: the loss of a window of the workload's size, with dropout, by the reference's own masks.

    Attributes:
        task: The language model.
        seed: Seed of weights, words and masks.
    """

    task: LanguageTask
    seed: int

    @property
    def windows(self) -> int:
        """The number of windows: more of them if all rows share masks of weights, or if there is one row."""
        return MORE_WINDOWS if _specs(self.task).weights or self.task.batch_size == 1 else WINDOWS

    @property
    @override
    def multiply_adds(self) -> float:
        return float(self.task.multiply_adds * self.windows)  # of all forward passes

    @cached_property
    def weights(self) -> problem.Weights:
        """The weights."""
        return problem.language_weights(self.task, seed=self.seed)

    @override
    def arrays(self) -> Iterable[NDArray[Any]]:
        return (*self.weights.values(), *self.task.window(seed=self.seed))

    @override
    def answer(self) -> expected.Answer:
        """Compute the mean of the losses, and the standard deviation that chance gives one of them."""
        config, weights, rng = self.task.config, self.weights, np.random.default_rng(self.seed)
        x_BT, y_BT = self.task.window(seed=self.seed)
        specs, batch, losses = _specs(self.task), len(x_BT), []
        for _ in range(self.windows):
            dropped = {name: weights[name] * _drawn_mask(spec, rng) for name, spec in specs.weights.items()}
            x_TBE = (weights | dropped)["embedding"][x_BT.T]
            zero = reference.zero_state(weights, batch)
            masks = [_drawn_mask(spec, rng) for spec in specs.units] or None
            output_TBH, _, _ = reference.stack_forward(
                weights | dropped, x_TBE, zero, masks=masks, cell=config.cell_declaration
            )
            losses.append(self._row_losses(weights, output_TBH, y_BT))
        losses_WB = np.array(losses)
        # The rows' masks of units are independent, so that the variances of their losses add up.
        deviation = np.sqrt(losses_WB.var(axis=0, ddof=1).sum()) / batch
        if specs.weights:  # whose masks are the same for all rows, so that their part is not divided by these
            deviation = max(deviation, losses_WB.mean(axis=1).std(ddof=1))
        return {"mean": losses_WB.mean(), "deviation": deviation}

    def _row_losses(
        self, weights: problem.Weights, output_TBH: NDArray[np.floating], y_BT: NDArray[np.integer]
    ) -> NDArray[np.floating]:
        """Return each row's loss [B], summed over time."""
        kernel_HV = weights["softmax.kernel"] if "softmax.kernel" in weights else weights["embedding"].T
        losses_B = np.zeros(len(y_BT))
        for output_BH, y_B in zip(
            output_TBH, y_BT.T, strict=True
        ):  # all logits at once would take a gigabyte
            log_p_BV = reference.log_softmax(output_BH @ kernel_HV + weights["softmax.bias"])
            losses_B -= np.take_along_axis(log_p_BV, y_B[:, None], axis=1)[:, 0]
        return losses_B


def check_losses(task: LanguageTask, model: Backend, errors: Errors, *, seed: int) -> tuple[float, float]:
    """Compare the mean loss of training steps that move nothing with the reference's, and do one that moves.

    Args:
        task: Task of the model.
        model: Model of the task's configuration, with dropout.
        errors: Errors to add to.
        seed: Seed of weights and words.

    Returns:
        (deviations, seconds): by how many standard deviations they differ; and what the first step took.

    Raises:
        WrongError: They differ by more than chance explains, or not at all from each other; or the step does
            not move what it should.
    """
    question = Losses(task, seed)
    answer = expected.answer(question)
    model.load_weights(question.weights)
    x_BT, y_BT = task.window(seed=seed)
    losses, seconds = [], []
    for _ in range(WINDOWS):
        start = time.perf_counter()
        _, loss = model.train_step(x_BT, y_BT, model.zero_state(task.batch_size), learning_rate=0.0)
        losses.append(model.read([loss])[0].nll / task.batch_size)
        seconds.append(time.perf_counter() - start)
    if len(set(losses)) < WINDOWS:
        raise WrongError("its dropout repeats its masks: two losses of the same window are equal")
    chance = float(answer["deviation"]) * np.sqrt(1 / WINDOWS + 1 / question.windows)
    deviations = float(abs(np.mean(losses) - answer["mean"]) / chance)
    if not deviations <= DEVIATIONS:
        raise WrongError(
            f"the mean of its losses with dropout is off by {deviations:.0f} standard deviations from the "
            f"NumPy reference's: is there dropout on the top output, at the keep probability "
            f"{task.config.unit_keep_probs[-1]:g}?"
        )
    check_update(task, model, errors, x_BT, y_BT, what="with dropout")
    return deviations, seconds[0]


def _drawn_mask(spec: MaskSpec, rng: np.random.Generator) -> NDArray[np.floating]:
    return np.asarray((rng.random(spec.shape) < spec.keep_prob) / spec.keep_prob)
