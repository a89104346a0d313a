"""What dropout keeps in a window: where it should be, what a model tells of it, what the reference takes."""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ptb_lm.bench.check.errors import WrongError
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config
from ptb_lm.model.dropout import Masks, Place, places

Kept: TypeAlias = Masks[NDArray[np.bool_]]  # what a window's masks keep

SHARE_DEVIATIONS = 7.0  # by how many standard deviations the share that a mask keeps may be off


def drops(task: LanguageTask) -> bool:
    """Return whether a task's training has dropout of any kind."""
    found = _places(task)
    return bool(found.weights or found.units)


def undropped(config: Config) -> Config:
    """Return the configuration without dropout of any kind."""
    return config.replace(keep_prob=1.0, embedding_keep_prob=1.0, recurrent_keep_prob=1.0)


def told_by(model: Any) -> bool:
    """Return whether a model tells its next masks, as every Backend does and few rivals do."""
    return getattr(model, "next_masks", None) is not None


def check(task: LanguageTask, told: Kept) -> None:
    """Check that masks are where the configuration wants them, and drop as much.

    Raises:
        WrongError: They do not.
    """
    place = _places(task)
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


def scaled(task: LanguageTask, kept: Kept) -> dict[str, Any]:
    """Return masks as the reference takes them: 1 / keep_prob where something is kept, else 0."""
    place = _places(task)
    units = [np.divide(mask, each.keep_prob) for mask, each in zip(kept.units, place.units, strict=True)]
    weights = {name: np.divide(kept.weights[name], each.keep_prob) for name, each in place.weights.items()}
    return {"masks": units or None, "weight_masks": weights}


def _places(task: LanguageTask) -> Masks[Place]:
    config = task.config
    return places(config, task.vocabulary_size, batch=config.batch_size, steps=config.num_steps)
