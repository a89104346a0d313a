"""How far a variant may be from the NumPy reference, by its precision, before it is timed.

The largest errors that were measured on a CPU: of this package's models, and of the loops of torch's and
Keras's own modules, on small, medium (by either recipe) and large (2 x 1500 units, 20 x 35 steps) and on the
classifiers:

| precision | loss | norm | gradient of a matrix | its length | of a bias | update | its size | by Adam |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| fp64 | 5e-16 | 2e-16 | 2e-14 | 1e-15 | 3e-14 | 2e-11 | 4e-13 | 2e-13 |
| fp32 | 5e-7 | 7e-6 | 2e-5 | 2e-5 | 2e-5 | 0.16 | 2e-2 | 2e-4 |
| fp16 | 4e-5 | 4e-4 | 1e-2 | 1e-2 | 1e-2 | | | |
| bf16 | 1e-3 | 1e-2 | 0.1 | 9e-3 | 0.2 | | | |

The norm that torch itself computes of a large gradient is off by more (NAIVE_SUM). Nothing else is allowed to
be off by more for it (language.py). In bfloat16 `basic`, which rounds after each operation, is off by 0.1,
and all others by 4e-2. Over 1000 steps, which are not in the table, four layers in float32 are off by 4e-6 in
the loss and by 3e-4 in the gradient, with CTC by 1e-3 in torch and by 2.5e-3 in TensorFlow.

A gradient with two gates swapped is off by 0.6 to 1 of its norm, and the loss by 0.006 (problem.py). In half
precision, the rounding errors of the products add up over layers and time steps. A bias's gradient is one
long sum over the batch and the time steps, which Keras adds up in bfloat16: it is too short by 16 %, and off
by 20 %.

TF32, which only a GPU has, has as many digits as fp16, and no loss scale that would keep them. Its bounds
are those of fp16, doubled, because a GPU may truncate factors instead of rounding them. In TF32 the check
therefore misses a step that moves the weights by 5 % too much, and a gradient that is 5 % too long. In every
other precision it finds them.

An update is the change of a tensor by a step of Adam. Adam moves each weight by about the same distance,
however small its gradient. So if rounding changes the sign of a small gradient, the error is as large as any
other. The bound on the update is therefore wide. The bound on its size is narrow: it finds a wrong learning
rate, a wrong count of steps and a wrong clip. Keras's updates have the largest errors, because Keras weighs
Adam's epsilon 32 times as much in the first step (benchmarks/rivals/keras/classifier.py).

If a gradient is large, rounding does not change its sign, and the update shows more. "By Adam" looks at the
half of a tensor where the gradients are larger. It is the difference between an update and what Adam makes of
the variant's own gradients, which are compared with the reference's separately.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays


class Bound(NamedTuple):
    """The largest relative errors that are allowed: a row of BOUNDS.

    Attributes:
        loss: Bound on each loss.
        norm: Bound on the gradient's norm.
        gradient: Bound on each matrix's gradient, relative to its norm.
        bias: Bound on the gradient of each bias and gain.
        length: Bound on the length of each matrix's gradient along the reference's.
        update: Bound on the change of each tensor by Adam's steps, relative to the norm of the change.
        size: Bound on that norm.
        adam: Bound on that change in the half of each tensor whose gradients are larger, beside the change
            that Adam makes of the variant's own gradients, relative to the learning rate.
        moved: Bound on the change of the loss by Adam's steps.
    """

    loss: float
    norm: float
    gradient: float
    bias: float
    length: float
    update: float
    size: float
    adam: float
    moved: float

    def for_steps(self, steps: int) -> "Bound":
        """Return the row for sequences of so many steps: of more than STEPS it is wider in proportion."""
        factor = max(1.0, steps / STEPS)
        kinds = ("loss", "norm", "gradient", "bias", "length")
        return self._replace(**{name: factor * getattr(self, name) for name in kinds})

    def for_targets(self, targets: int) -> "Bound":
        """Return the row for a mean over so many targets: of fewer than TARGETS less rounding cancels out.

        It is wider as the root of their number, within limits. A loss is one sum: its bound is at most WIDEST
        times as wide. A tensor's gradient is the norm of many: its bound is wider by the root of that. From
        MANY_TARGETS on its length is known better than the rest of it.
        """
        factor = min(max(1.0, math.sqrt(TARGETS / targets)), WIDEST)
        gradient = math.sqrt(factor) * self.gradient
        return self._replace(
            loss=factor * self.loss,
            norm=factor * self.norm,
            gradient=gradient,
            bias=math.sqrt(factor) * self.bias,
            length=self.length if targets >= MANY_TARGETS else gradient,
        )

    def with_naive_sum(self, elements: int) -> "Bound":
        """Return the row where a tensor of so many elements may be summed up naively into a norm."""
        naive = NAIVE_SUM * elements if self.norm > NAIVE_SUM else 0.0  # not in float64
        return self._replace(norm=self.norm + naive)


STEPS = 100
TARGETS = 40
MANY_TARGETS = 400
WIDEST = 2.5
# By how much wider the bound on gradients is for CTC: it adds logarithms of probabilities up to some
# thousand, whose rounding is a relative error of the probability (problem.LOGITS_OF_CTC). Over 1000 steps in
# float32 a right gradient of the dense layer is off by 3e-4 to 8e-4 in torch and by 1.1e-3 to 1.5e-3 in
# TensorFlow, and one below four layers by up to 1e-3 and 2.5e-3.
CTC = 3.0


_FLOAT64 = Bound(
    loss=1e-12,
    norm=1e-12,
    gradient=1e-11,
    bias=1e-11,
    length=1e-11,
    update=1e-6,
    size=1e-6,
    adam=1e-6,
    moved=1e-6,
)
_FLOAT32 = Bound(
    loss=2e-6,
    norm=5e-5,
    gradient=1e-4,
    bias=1e-4,
    length=1e-4,
    update=0.3,
    size=3e-2,
    adam=2e-3,
    moved=0.3,
)
# No classifier computes in what follows: Adam's bounds are those of float32.
BOUNDS = {
    "fp64": _FLOAT64,
    "fp32": _FLOAT32,
    "tf32": _FLOAT32._replace(loss=4e-4, norm=6e-3, gradient=6e-2, bias=6e-2, length=6e-2),
    "fp16": _FLOAT32._replace(loss=2e-4, norm=3e-3, gradient=3e-2, bias=3e-2, length=3e-2),
    "bf16": _FLOAT32._replace(loss=2e-3, norm=3e-2, gradient=0.2, bias=0.3, length=4e-2),
}

# What the norm may be off by besides, for each element of the largest tensor: torch sums up a norm's squares
# in float32, one after the other, on a CPU. Of 2, 15 and 52 million normal numbers it is low by 3e-5, 6e-4
# and 4e-3; that of large's gradient by 1.4e-3, where 3e-3 are allowed.
NAIVE_SUM = 2e-10


class WrongError(Exception):
    """A variant computes something else than the reference."""


def check_shapes(weights: Arrays, wanted: parameters.Shapes) -> None:
    """Check that a variant's tensors are the workload's.

    Args:
        weights: Tensors that the variant exports, by name.
        wanted: The shape of each tensor.

    Raises:
        WrongError: One is missing, too many, or of another shape; the message names it.
    """
    try:
        parameters.check({name: np.asarray(array) for name, array in weights.items()}, wanted)
    except UserError as error:
        raise WrongError(f"it exports other tensors: {error}") from None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of a comparison that a variant passed.

    Attributes:
        loss: First loss at the weights of the comparison, from the variant, in nats per word or sequence.
        errors: Largest relative error of each kind, and its bound: KIND_error and KIND_bound. And how many
            rows the batch had ("rows"), and how many of them differed ("distinct_rows").
        what: Description of what was compared: the shape, the precision, how dropout was met.
        first_step_seconds: Seconds of the first training step of the timed model, which traces and compiles.
    """

    loss: float
    errors: Mapping[str, float]
    what: Mapping[str, str]
    first_step_seconds: float


class Errors:
    """Relative errors, held to a bound one by one.

    Args:
        bound: Bounds for the variant's precision and the sizes of the task.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.largest: dict[str, float] = {}

    def add(self, kind: str, what: str, error: float, *, beside: str = "the NumPy reference's") -> None:
        """Add an error to the largest of its kind.

        Args:
            kind: A field of Bound.
            what: Name of the quantity, for people.
            error: Relative error.
            beside: Name of the value that it should be, for people.

        Raises:
            WrongError: It exceeds the bound of its kind.
        """
        bound = getattr(self.bound, kind)
        if not error <= bound:  # NaN is wrong, too
            raise WrongError(f"its {what} is off by {error:.1e} from {beside}, more than {bound:.0e}")
        self.largest[kind] = max(error, self.largest.get(kind, 0.0))

    def compare(self, kind: str, what: str, found: Any, wanted: Any) -> None:
        """Add the error of a number, relative to the reference's.

        Args:
            kind: A field of Bound.
            what: Name of the number, for people.
            found: The variant's number.
            wanted: The reference's.

        Raises:
            WrongError: The error exceeds the bound of its kind.
        """
        self.add(kind, what, float(abs(found - wanted) / abs(wanted)))

    def numbers(self) -> dict[str, float]:
        """Return the largest error of each kind and its bound, as a row records them."""
        found = {f"{kind}_error": error for kind, error in self.largest.items()}
        bounds = {f"{kind}_bound": getattr(self.bound, kind) for kind in self.largest}
        return {**found, **bounds}
