"""Programs to compare with: other people's frameworks, and this package earlier or without a part."""

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sequence_classifier import ClassifierConfig

from ptb_lm.common.errors import UserError


def replace(module: ModuleType, name: str, by: Any) -> None:
    """Replace a module's function or class for the rest of this process, which is one variant's."""
    setattr(module, name, by)


def check_classifier(config: ClassifierConfig, name: str) -> None:
    """Refuse a classifier that a rival does not have, which does what the suite acoustic asks of it.

    Args:
        config: The classifier.
        name: The rival, for people.

    Raises:
        UserError: The rival has no such classifier.
    """
    if config.loss != "cross_entropy":
        raise UserError(f"{name} trains with cross_entropy alone, not with {config.loss}")
    if config.bidirectional or config.keep_prob < 1 or config.clip_value is not None:
        raise UserError(f"{name} has layers of one direction alone, no dropout and no clipping")


def check_whole(lengths_B: NDArray[np.int32] | None, name: str) -> None:
    """Refuse sequences of different lengths, as `check_classifier` refuses a classifier."""
    if lengths_B is not None:
        raise UserError(f"{name} takes no sequences of different lengths")
