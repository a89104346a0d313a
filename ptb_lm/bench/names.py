"""What to say of a name or pattern that there is not: the nearest that there are."""

import difflib
from collections.abc import Sequence

SHOWN = 4  # of a list: more would hide the rest of the sentence


def instead_of(name: str, known: Sequence[str]) -> str:
    """Return what there is in place of a name: everything if that is little, else the nearest."""
    if len(known) <= SHOWN:
        return f"there is {', '.join(known)}"
    if near := difflib.get_close_matches(name, known, n=3):
        return f"the nearest of {len(known)}: {', '.join(near)}"
    return f"there is {', '.join(known[: SHOWN - 1])} and {len(known) - SHOWN + 1} more"
