"""The errors that a comparison found, and the sentence that refuses a variant for one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptb_lm.bench.check.bounds import Bound
from ptb_lm.model.backend import Arrays


class WrongError(Exception):
    """A variant computes something else than the reference."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a comparison compared, and what it found.

    Attributes:
        loss: The first loss at the weights of the comparison, as the variant gave it, in nats: of a word, or
            of a sequence.
        errors: The largest relative error of each kind, and the bound that holds for it: numbers alone.
        what: What was compared, for people: the shape, the precision, how dropout was met.
        first_step_seconds: Of the first training step of what is timed, in which it is traced and compiled.
        begun: Where what is timed tells its masks: its training state before the comparison. With it the same
            masks come again, and the reference has answered already.
    """

    loss: float
    errors: Mapping[str, float]
    what: Mapping[str, str]
    first_step_seconds: float
    begun: Arrays = field(default_factory=dict)


class Errors:
    """Relative errors, held to a bound one by one.

    Args:
        bound: Of the variant's precision, for the sizes of the task.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.largest: dict[str, float] = {}

    def add(self, kind: str, what: str, error: float, *, beside: str = "the NumPy reference's") -> None:
        """Note an error.

        Args:
            kind: A field of Bound.
            what: The quantity, for people.
            error: Relative.
            beside: What it should have been, for people.

        Raises:
            WrongError: It exceeds the bound of its kind.
        """
        bound = getattr(self.bound, kind)
        if not error <= bound:  # NaN is wrong, too
            raise WrongError(f"its {what} is off by {error:.1e} from {beside}, more than {bound:.0e}")
        self.largest[kind] = max(error, self.largest.get(kind, 0.0))

    def numbers(self) -> dict[str, float]:
        """Return what a row records: each kind's largest error, and its bound."""
        found = {f"{kind}_error": error for kind, error in self.largest.items()}
        bounds = {f"{kind}_bound": getattr(self.bound, kind) for kind in self.largest}
        return {**found, **bounds, "bound": self.bound.gradient}
