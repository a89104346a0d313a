"""Where a trained model stands in a text."""

from dataclasses import dataclass, field
from typing import Any

from ptb_lm.common.errors import UserError


@dataclass(frozen=True, eq=False)
class Position:
    """A position in a text: the state before its last word, and that word."""

    state: Any = field(repr=False)  # the backend's
    last: int


def checked(state: object) -> Position | None:
    """Return the state that a user set.

    Raises:
        UserError: It is neither a position nor None.
    """
    if state is not None and not isinstance(state, Position):
        raise UserError(f"the state must be None or an earlier model.state, not {state!r}")
    return state
