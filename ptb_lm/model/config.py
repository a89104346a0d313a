"""Hyper-parameters: one frozen dataclass, a line for each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ptb_lm.common.errors import UserError
from ptb_lm.model.cells import CELLS, LSTM, get
from ptb_lm.model.hyperparameter import LARGEST, hyperparameter, hyperparameters

if TYPE_CHECKING:  # --help wants no NumPy
    from ptb_lm.model.cells.cell import Cell

# What all keep probabilities have in common; 0 would keep nothing.
_KEEP_PROB: dict[str, Any] = {"above": 0, "maximum": 1, "resumable": True}
# And those of one kind of units, where 0 stands for --keep-prob's.
_PLACE_KEEP_PROB: dict[str, Any] = {"minimum": 0, "maximum": 1, "resumable": True, "optional": True}

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("exponential", "one-cycle", "cosine")
SHORTEST_WINDOW = 5  # time steps that a window of random length has at least, but at the end of the rows
# One-cycle has the defaults of torch.optim.lr_scheduler.OneCycleLR: the fraction of the run in which the rate
# rises, and the rates at both ends, as fractions of the largest.
WARM_UP, FIRST_RATE, LAST_RATE = 0.3, 1 / 25, 1 / 25e4


@dataclass(frozen=True, kw_only=True)
class Config:
    """The hyper-parameters of one language model and its training, one per line (hyperparameter.py).

    The defaults are the tutorial's small configuration (tensorflow/models, tutorials/rnn/ptb), after
    Zaremba et al., "Recurrent Neural Network Regularization", 2014.

    Raises:
        UserError: A value is impossible.
    """

    cell: str = hyperparameter(
        LSTM,
        f"recurrent cell (default: {LSTM}): {', '.join(CELLS)}",
        choices=CELLS.keys(),
        structural=True,
    )
    num_layers: int = hyperparameter(2, "recurrent layers", minimum=1, maximum=1000, structural=True)
    hidden_size: int = hyperparameter(200, "units of every layer", minimum=1, structural=True)
    # Merity et al., 2018: the top layer of AWD-LSTM is as wide as the embedding that it is tied to.
    layer_sizes: tuple[int, ...] = hyperparameter(
        (),
        "units of each layer, from the bottom to the top, instead of --hidden-size",
        minimum=1,
        optional=True,
        structural=True,
    )
    embedding_size: int = hyperparameter(
        0, "width of the embedding; 0: same as the top layer", minimum=0, structural=True
    )
    num_steps: int = hyperparameter(20, "time steps that the gradient flows back through", minimum=1)
    # Merity et al., 2018, section 4.1 (salesforce/awd-lstm-lm, main.py).
    vary_num_steps: bool = hyperparameter(
        False,
        "draw the length of each window around --num-steps (in 5 of 100 windows around half of it)",
        optional=True,
    )
    batch_size: int = hyperparameter(20, "rows that the training text is cut into", minimum=1)
    epochs: int = hyperparameter(
        13, "passes over the training text (the tutorial's max_max_epoch)", minimum=1, resumable=True
    )
    decay_after: int = hyperparameter(
        4, "epochs at the initial learning rate (the tutorial's max_epoch)", minimum=0, resumable=True
    )
    lr_decay: float = hyperparameter(
        0.5, "factor of the learning rate per epoch after --decay-after", above=0, resumable=True
    )
    learning_rate: float = hyperparameter(
        1.0,
        "(largest) learning rate, for a loss summed over time and averaged over rows",
        above=0,
        resumable=True,
    )
    # One-cycle: Smith, "A disciplined approach to neural network hyper-parameters", 2018. Cosine: Loshchilov
    # and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, without restarts.
    schedule: str = hyperparameter(
        "exponential",
        "course of the learning rate: exponential (by --decay-after and --lr-decay), one-cycle or cosine "
        "(which end with the last epoch)",
        choices=SCHEDULES,
        optional=True,
    )
    # Adam: Kingma and Ba, 2015.
    optimizer: str = hyperparameter("sgd", "sgd, or adam", choices=OPTIMIZERS, optional=True)
    max_grad_norm: float = hyperparameter(
        5.0, "upper bound on the global norm of the gradient", above=0, resumable=True
    )
    keep_prob: float = hyperparameter(
        1.0, "probability that dropout keeps a unit; 1: no dropout", **_KEEP_PROB
    )
    # Three places, as in Merity et al., 2018 (dropouti, dropouth and dropout of its code).
    input_keep_prob: float = hyperparameter(
        0.0, "keep probability of the bottom layer's input; 0: as --keep-prob", **_PLACE_KEEP_PROB
    )
    between_keep_prob: float = hyperparameter(
        0.0, "keep probability between the layers; 0: as --keep-prob", **_PLACE_KEEP_PROB
    )
    output_keep_prob: float = hyperparameter(
        0.0, "keep probability of the top layer's output; 0: as --keep-prob", **_PLACE_KEEP_PROB
    )
    init_scale: float = hyperparameter(
        0.1, "initial weights are uniform in [-init_scale, init_scale]", minimum=0
    )
    # As torch.nn.LSTM begins with 1, and so does AWD-LSTM.
    layer_init_scale: float = hyperparameter(
        0.0,
        "initial weights of a layer are uniform in [-X, X] / sqrt(its units); 0: as --init-scale",
        minimum=0,
        optional=True,
    )
    # Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017; Inan et al., 2017.
    tie_weights: bool = hyperparameter(
        False, "use the embedding, transposed, as the softmax's kernel", structural=True
    )
    # This and the next: Gal and Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent
    # Neural Networks", 2016.
    variational: bool = hyperparameter(
        False,
        "use one dropout mask for all time steps of a window, not one per step",
        resumable=True,
    )
    embedding_keep_prob: float = hyperparameter(
        1.0,
        "probability that dropout keeps a word's embedding in a window",
        **_KEEP_PROB,
    )
    # Merity et al., "Regularizing and Optimizing LSTM Language Models", 2018: the weight drop of AWD-LSTM.
    recurrent_keep_prob: float = hyperparameter(
        1.0,
        "probability that dropout keeps a recurrent weight in a window",
        **_KEEP_PROB,
    )
    average_epochs: float = hyperparameter(
        0.0,
        "score and keep a moving average of the weights over this many epochs; 0: no average",
        minimum=0,
    )
    # NT-ASGD of Merity et al., 2018: averaged SGD, triggered by a criterion that need not be monotone.
    average_after_stall: int = hyperparameter(
        0,
        "after the first epoch that is worse than the best of those more than N epochs earlier, score and "
        "keep the mean of the weights; 0: never",
        minimum=0,
        optional=True,
    )
    # Merity et al., "Revisiting Activation Regularization for Language RNNs", 2017: AR and TAR.
    activation_penalty: float = hyperparameter(
        0.0,
        "factor of the mean square of the top output, added to the mean loss of a word",
        minimum=0,
        resumable=True,
        optional=True,
    )
    slowness_penalty: float = hyperparameter(
        0.0,
        "factor of the mean square of the top output's change per step, added to the mean loss of a word",
        minimum=0,
        resumable=True,
        optional=True,
    )
    weight_decay: float = hyperparameter(
        0.0,
        "factor of half the sum of all squared weights, added to the mean loss of a word; it is not clipped",
        minimum=0,
        resumable=True,
        optional=True,
    )
    # Melis et al., "Mogrifier LSTM", 2020.
    mogrifier_rounds: int = hyperparameter(
        5,
        "times that input and state gate each other, in mogrifier_lstm (default: 5)",
        minimum=0,
        maximum=100,
        optional=True,
        structural=True,
    )
    mogrifier_rank: int = hyperparameter(
        0, "rank of the gates' kernels, in mogrifier_lstm; 0: full", minimum=0, optional=True, structural=True
    )

    def __post_init__(self) -> None:
        for each in hyperparameters(Config):
            each.check(getattr(self, each.name))
        if not self.learning_rate_at(self.epochs - 1) <= LARGEST[float]:
            raise UserError(
                f"--lr-decay {self.lr_decay:g} makes the learning rate of epoch {self.epochs} more than "
                f"{LARGEST[float]:g}"
            )
        if self.layer_sizes and len(self.layer_sizes) != self.num_layers:
            raise UserError(
                f"--num-layers {self.num_layers} contradicts --layer-sizes, which has {len(self.layer_sizes)}"
            )
        if self.tie_weights and self.embedding_width != self.hidden_sizes[-1]:
            raise UserError(
                "--tie-weights needs an embedding as wide as the top layer: give --embedding-size "
                f"{self.hidden_sizes[-1]}, not {self.embedding_width}"
            )
        if self.average_epochs and self.average_after_stall:
            raise UserError("give --average-epochs or --average-after-stall, not both")

    @property
    def cell_declaration(self) -> "Cell":
        """The declaration of the cell, with its options."""
        options = CELLS[self.cell].options
        return get(self.cell, **{name: getattr(self, field) for name, field in options.items()})

    @property
    def embedding_width(self) -> int:
        """The width of the embedding, which is the first layer's input width."""
        return self.embedding_size or self.hidden_sizes[-1]

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """The units of each layer, from the bottom to the top."""
        return self.layer_sizes or (self.hidden_size,) * self.num_layers

    @property
    def equivalent_sizes(self) -> dict[str, Any]:
        """The values by which each of the flags of widths may describe this model, by field."""
        return {
            "hidden_size": self.layer_sizes or self.hidden_size,
            "layer_sizes": self.hidden_sizes,
            "embedding_size": self.embedding_width,
        }

    @property
    def unit_keep_probs(self) -> tuple[float, ...]:
        """The keep probabilities of the units: of the bottom layer's input, and of each layer's output."""
        between = (self.between_keep_prob,) * (self.num_layers - 1)
        keep_probs = (self.input_keep_prob, *between, self.output_keep_prob)
        return tuple(keep_prob or self.keep_prob for keep_prob in keep_probs)

    @property
    def has_dropout(self) -> bool:
        """Whether training has dropout of any kind."""
        return min(*self.unit_keep_probs, self.embedding_keep_prob, self.recurrent_keep_prob) < 1

    @property
    def has_average(self) -> bool:
        """Whether an average of the weights is scored and kept."""
        return bool(self.average_epochs or self.average_after_stall)

    def learning_rate_at(self, epoch: int, step: int = 0, steps: int = 1) -> float:
        """Return the learning rate of a training step.

        By the exponential schedule it is constant for the first `decay_after` epochs, then multiplied by
        `lr_decay` once an epoch (TensorFlow's ptb_word_lm tutorial). The others move at every step, as
        torch.optim.lr_scheduler's do: one-cycle rises and falls as OneCycleLR's, cosine falls from the first
        step on as CosineAnnealingLR's.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the step in it, from 0.
            steps: Training steps of the epoch.
        """
        if self.schedule == "exponential":
            try:
                return self.learning_rate * self.lr_decay ** max(epoch + 1 - self.decay_after, 0)
            except OverflowError:
                return math.inf
        number, total = epoch * steps + step, self.epochs * steps
        if self.schedule == "cosine":
            return self.learning_rate * _cosine(1.0, 0.0, number / total)
        peak, last = WARM_UP * total - 1, total - 1
        if number <= peak:
            return self.learning_rate * _cosine(FIRST_RATE, 1.0, number / peak)
        return self.learning_rate * _cosine(1.0, LAST_RATE, (number - peak) / (last - peak))

    def relative_length(self, steps: int) -> float:
        """Return the length of a window relative to --num-steps; 1 without --vary-num-steps.

        The loss is a sum over the steps, so the bound on the gradient's norm is multiplied by this length: a
        long window is clipped as a short one. AWD-LSTM, whose loss is a mean over the steps, multiplies the
        learning rate by it instead. Adam's steps do not depend on the size of the loss, so Adam gets the
        gradients divided by this length, and the learning rate multiplied by it.

        Args:
            steps: Time steps of the window.
        """
        return steps / self.num_steps if self.vary_num_steps else 1.0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Config":
        """Return a configuration from the hyper-parameters' names and values as JSON has them.

        Raises:
            UserError: A name is unknown, or a value impossible.
        """
        known = {each.name: each for each in HYPERPARAMETERS}
        if unknown := values.keys() - known.keys():
            raise UserError(f"there is no hyper-parameter {min(unknown)!r}")
        found: dict[str, Any] = {name: known[name].from_json(value) for name, value in values.items()}
        return cls(**found)

    def to_json(self) -> dict[str, Any]:
        """Return the hyper-parameters' names and values as JSON has them, which `from_json` reads."""
        return {each.name: each.to_json(getattr(self, each.name)) for each in HYPERPARAMETERS}

    def replace(self, **changes: Any) -> "Config":
        """Return a copy with some values changed; the new values are checked."""
        return replace(self, **changes)


def _cosine(start: float, end: float, part: float) -> float:
    """Return the value after a part of the way from start to end, along half a period of a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


# All of them, in the order of the fields.
HYPERPARAMETERS = hyperparameters(Config)
