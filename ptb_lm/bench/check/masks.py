"""What dropout keeps in a window: where it should be, what a model tells of it, what the reference takes."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ptb_lm.bench.check.errors import WrongError
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, Place, places

Kept: TypeAlias = Masks[NDArray[np.bool_]]  # what a window's masks keep

SHARE_DEVIATIONS = 7.0  # by how many standard deviations a share of a mask's entries may be off


class _Mask(NamedTuple):
    """A mask, and with which probability each of its entries is kept."""

    kept: NDArray[np.bool_]
    keep_prob: float


def undropped(config: Config) -> Config:
    """Return the configuration without dropout of any kind."""
    return config.replace(keep_prob=1.0, embedding_keep_prob=1.0, recurrent_keep_prob=1.0)


def told_by(model: Any) -> bool:
    """Return whether a model tells its next masks, as every Backend does and few rivals do."""
    return getattr(model, "next_masks", None) is not None


def check(task: LanguageTask, windows: Sequence[Kept]) -> None:
    """Check that the masks of consecutive windows are where the configuration wants them, and drop as much.

    And that each of them is drawn by itself: two that are the same, of two windows or layers, or for all rows
    or time steps, would be an easier problem, with the same answer as the reference's.

    Raises:
        WrongError: They do not, or are not.
    """
    for told in windows:
        _check_places(_places(task), told)
        _check_each_is_drawn(_masks(task, told))
    for before, after in itertools.pairwise(windows):
        for one, other in zip(_masks(task, before), _masks(task, after), strict=True):
            _check_apart("the next window", one, other)


def _check_places(place: Masks[Place], told: Kept) -> None:
    """Check that masks have the right shapes, and keep the right share."""
    if told.weights.keys() != place.weights.keys() or len(told.units) != len(place.units):
        raise WrongError("there is no dropout where there should be, or there is where there should not")
    pairs = [*zip(told.units, place.units, strict=True)]
    pairs += [(told.weights[name], place.weights[name]) for name in place.weights]
    for kept, (shape, keep_prob) in pairs:
        if kept.shape != shape:
            raise WrongError(f"there is no dropout of the shape {shape}, but of {kept.shape}")
        share = float(kept.mean())
        if abs(share - keep_prob) > SHARE_DEVIATIONS * math.sqrt(keep_prob * (1 - keep_prob) / kept.size):
            raise WrongError(f"its dropout keeps {share:.3f} of {shape}, not {keep_prob:g}")


def _check_each_is_drawn(masks: Sequence[_Mask]) -> None:
    """Check that a window's masks differ from each other, and in time and from row to row."""
    for one, other in itertools.combinations(masks, 2):
        if one.kept.ndim == other.kept.ndim:
            _check_apart("another layer", one, other)
    for mask in masks:
        if mask.kept.ndim == 3:  # of units: [T or 1, B, H]
            for axis, what in enumerate(("the later time steps", "the other rows")):
                half = mask.kept.shape[axis] // 2
                first, second, *_ = np.split(mask.kept, [half, 2 * half], axis=axis)
                _check_apart(what, mask._replace(kept=first), mask._replace(kept=second))


def _check_apart(what: str, one: _Mask, other: _Mask) -> None:
    """Check that two masks differ in as many entries as two that were drawn differ, where both have some."""
    common = tuple(map(slice, np.minimum(one.kept.shape, other.kept.shape)))
    differs = one.kept[common] != other.kept[common]
    if not differs.size:
        return
    share = float(differs.mean())
    drawn = one.keep_prob + other.keep_prob - 2 * one.keep_prob * other.keep_prob
    if abs(share - drawn) > SHARE_DEVIATIONS * math.sqrt(drawn * (1 - drawn) / differs.size):
        raise WrongError(
            f"its dropout draws no masks of its own for {what}: {share:.3f} of the entries differ, not "
            f"{drawn:.3f}"
        )


def scaled(task: LanguageTask, kept: Kept) -> dict[str, Any]:
    """Return masks as the reference takes them: 1 / keep_prob where something is kept, else 0."""
    place = _places(task)
    units = [np.divide(mask, each.keep_prob) for mask, each in zip(kept.units, place.units, strict=True)]
    weights = {name: np.divide(kept.weights[name], each.keep_prob) for name, each in place.weights.items()}
    return {"masks": units or None, "weight_masks": weights}


def _masks(task: LanguageTask, kept: Kept) -> list[_Mask]:
    """Return all masks of a window."""
    place = _places(task)
    weights = [_Mask(kept.weights[name], each.keep_prob) for name, each in place.weights.items()]
    units = [_Mask(mask, each.keep_prob) for mask, each in zip(kept.units, place.units, strict=True)]
    return weights + units


def _places(task: LanguageTask) -> Masks[Place]:
    config = task.config
    return places(config, task.vocabulary_size, batch=config.batch_size, steps=config.num_steps)
