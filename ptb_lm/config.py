"""Hyper-parameters: one frozen dataclass, and the presets, each only its differences."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ptb_lm.errors import UserError

# Sizes count things, so the least is 1; where 0 is allowed the help says what it means. All others: greater
# than 0.
_MINIMUM = {
    "embedding_size": 0,
    "num_layers": 1,
    "hidden_size": 1,
    "num_steps": 1,
    "batch_size": 1,
    "epochs": 1,
    "decay_after": 0,
    "init_scale": 0,
}
# What a 32-bit integer and a float32 hold.
_MAXIMUM: dict[Any, float] = {int: 2**31 - 1, float: 3.4e38}


def flag_name(field: str) -> str:
    """Return the command-line flag that sets a field: `hidden_size` -> `--hidden-size`."""
    return "--" + field.replace("_", "-")


def _setting(default: float, help_text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The hyper-parameters of one language model and its training.

    The defaults are the tutorial's small configuration (tensorflow/models, tutorials/rnn/ptb), after
    Zaremba et al., "Recurrent Neural Network Regularization", 2014.

    Raises:
        UserError: A value is impossible.
    """

    num_layers: int = _setting(2, "LSTM layers")
    hidden_size: int = _setting(200, "units of every layer")
    embedding_size: int = _setting(0, "width of the embedding; 0: as the layers")
    num_steps: int = _setting(20, "time steps that the gradient flows back through")
    batch_size: int = _setting(20, "rows that the training text is cut into")
    epochs: int = _setting(13, "passes over the training text (the tutorial's max_max_epoch)")
    decay_after: int = _setting(4, "epochs at the initial learning rate (the tutorial's max_epoch)")
    lr_decay: float = _setting(0.5, "the learning rate's factor an epoch from then on")
    learning_rate: float = _setting(1.0, "of SGD, for a loss summed over time and averaged over the batch")
    max_grad_norm: float = _setting(5.0, "bound on the global norm of the gradient of that loss")
    keep_prob: float = _setting(1.0, "probability that dropout keeps a unit; 1: no dropout")
    init_scale: float = _setting(0.1, "initial weights are uniform in [-init_scale, init_scale]")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, flag = getattr(self, field.name), flag_name(field.name)
            if field.type is int and (isinstance(value, bool) or not isinstance(value, int)):
                raise UserError(f"{flag} must be a whole number, not {value!r}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
                raise UserError(f"{flag} must be a finite number, not {value!r}")
            if value > _MAXIMUM[field.type]:
                raise UserError(f"{flag} must be at most {_MAXIMUM[field.type]}")
            minimum = _MINIMUM.get(field.name)
            if minimum is not None and value < minimum:
                raise UserError(f"{flag} must be at least {minimum}, not {value}")
            if minimum is None and value <= 0:
                raise UserError(f"{flag} must be greater than 0, not {value}")
        if self.keep_prob > 1:
            raise UserError(f"--keep-prob must be greater than 0 and at most 1, not {self.keep_prob}")

    @property
    def embedding_width(self) -> int:
        """The width of the embedding, which is the first layer's input width."""
        return self.embedding_size or self.hidden_size

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The units of each layer, from the bottom to the top."""
        return (self.hidden_size,) * self.num_layers

    def replace(self, **changes: Any) -> "Config":
        """Return a copy with some values changed; the new values are checked."""
        return dataclasses.replace(self, **changes)


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # math.isfinite fails on an int beyond a float


SMALL = Config()

PRESETS: dict[str, Config] = {
    # The tutorial's configuration for trying out the program.
    "test": SMALL.replace(
        num_layers=1, hidden_size=2, num_steps=2, epochs=1, decay_after=1, max_grad_norm=1.0
    ),
    "small": SMALL,
    # Half of the units dropped: the network may be wider, learns longer, and decays more gently.
    "medium": SMALL.replace(
        hidden_size=650,
        num_steps=35,
        epochs=39,
        decay_after=6,
        lr_decay=0.8,
        keep_prob=0.5,
        init_scale=0.05,
    ),
    # Wider still, so more dropout, smaller initial weights and a looser bound on the gradient.
    "large": SMALL.replace(
        hidden_size=1500,
        num_steps=35,
        epochs=55,
        decay_after=14,
        lr_decay=1 / 1.15,
        keep_prob=0.35,
        init_scale=0.04,
        max_grad_norm=10.0,
    ),
    # For the embedded corpus: one layer is enough for its grammar, and ends within two minutes on two cores.
    # A tighter bound on the gradient lets so short a run use the full learning rate for an epoch.
    "demo": SMALL.replace(num_layers=1, hidden_size=128, epochs=4, decay_after=1, max_grad_norm=2.0),
}
