"""A hyper-parameter, as its line in a configuration declares it."""

import argparse
import contextlib
import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from typing_extensions import override

from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import flag_name, parse_number

# The greatest numbers that 32 bits hold.
LARGEST: dict[type, float] = {int: 2**31 - 1, float: 3.4e38}

KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
}


def format_value(value: Any) -> str:
    """Return a value as a person writes it: 1.0 as 1, a switch as yes or no, a sequence as its values."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """A field of a configuration.

    Attributes:
        name: The name of the field.
        kind: int, float, bool or str; of each of them if the value is a sequence.
        is_sequence: True if the value is a tuple of any number of values, each within the bounds.
        help: The meaning, for people.
        minimum: The least value.
        above: A bound that the value must be greater than.
        maximum: The greatest value. Without one it is the greatest that 32 bits hold.
        choices: The values that a text may have; empty: any.
        resumable: True if the value may change when a run is resumed.
        optional: True if a run's config.json may lack it. The run then has the default.
        structural: True if the value defines the model, not its training.
    """

    name: str
    kind: type
    is_sequence: bool = False
    help: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: Collection[str] = ()
    resumable: bool = False
    optional: bool = False
    structural: bool = False

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return flag_name(self.name)

    @property
    def argument(self) -> dict[str, Any]:
        """The arguments of `add_argument` for the flag, whose value is None if it is not given."""
        if self.kind is bool:
            return {"action": argparse.BooleanOptionalAction, "default": None}
        if self.kind is str:
            return {"choices": self.choices or None, "metavar": "NAME"}
        several = {"nargs": "+", "action": _StoreTuple} if self.is_sequence else {}
        return {"type": self.parse, "metavar": "X" if self.kind is float else "N", **several}

    def parse(self, text: str) -> Any:
        """Return the value of the flag, or one of its values, as argparse calls it."""
        value: Any = text
        with contextlib.suppress(ValueError):
            value = parse_number(self.kind, text)
        if problem := self.problem(value):
            raise argparse.ArgumentTypeError(problem)
        return value

    def to_json(self, value: Any) -> Any:
        """Return the value as JSON has it, in which a sequence is a list."""
        return list(value) if self.is_sequence else value

    def from_json(self, value: Any) -> Any:
        """Return the value that `to_json` was given, or, if it is no such value, the value as it is."""
        return tuple(value) if self.is_sequence and isinstance(value, list) else value

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            UserError: It is of another kind, or out of bounds.
        """
        if self.is_sequence and not isinstance(value, tuple):
            raise UserError(f"{self.flag} must be a tuple (in JSON a list), not {value!r}")
        for each in value if self.is_sequence else (value,):
            if problem := self.problem(each):
                raise UserError(f"{self.flag} {problem}")

    def problem(self, value: Any) -> str:
        """Return what is wrong with a value, or with one of several, for people; "" if nothing is."""
        # bool is an int, too.
        is_of_kind = (isinstance(value, bool) == (self.kind is bool)) and isinstance(
            value, int | float if self.kind is float else self.kind
        )
        is_finite = value == value and value not in (math.inf, -math.inf)  # math.isfinite fails on a huge int
        if not (is_of_kind and is_finite) or (self.choices and value not in self.choices):
            names = f"one of {', '.join(self.choices)}" if self.choices else KINDS[self.kind]
            return f"must be {names}, not {value!r}"
        if self.kind in LARGEST and value > LARGEST[self.kind]:
            most = LARGEST[self.kind] if self.maximum is None else self.maximum
            return f"must be at most {most}"  # and the value is long
        if (
            (self.minimum is not None and value < self.minimum)
            or (self.above is not None and value <= self.above)
            or (self.maximum is not None and value > self.maximum)
        ):
            return f"must be {self._bounds()}, not {value}"
        return ""

    def _bounds(self) -> str:
        bounds = (("at least", self.minimum), ("greater than", self.above), ("at most", self.maximum))
        return " and ".join(f"{what} {bound}" for what, bound in bounds if bound is not None)


class _StoreTuple(argparse.Action):
    """Stores several values of a flag as a tuple, which a configuration can compare with its own."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Sequence[Any] | str | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, tuple(values or ()))


def hyperparameter(default: Any, help_text: str, **facts: Any) -> Any:
    """Return a dataclass's field that is a hyper-parameter; the facts are attributes of Hyperparameter."""
    return field(default=default, metadata={"help": help_text, **facts})


@functools.cache
def hyperparameters(config: type) -> tuple[Hyperparameter, ...]:
    """Return the hyper-parameters of a configuration's class, in the order of its fields."""
    found = []
    for each in fields(config):
        element_types = get_args(each.type)  # of tuple[int, ...]
        kind: Any = element_types[0] if element_types else each.type
        found.append(
            Hyperparameter(name=each.name, kind=kind, is_sequence=bool(element_types), **each.metadata)
        )
    return tuple(found)
