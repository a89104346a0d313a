"""What comes of a fault, a thing that is done to a run again and again."""

import random
from collections.abc import Callable, Iterator

from faults.subject import Ended, Subject
from faults.table import AS_PROMISED

# Each try's outcome, in words; endless, or until everything was tried once.
Outcomes = Callable[[Subject, random.Random], Iterator[str]]


def flaw(ended: Ended, *statuses: int) -> str | None:
    """Return what is wrong with how a command ended; None if it is one of these statuses, and clean."""
    for sign in ("Traceback", "Exception ignored", "Fatal Python error"):
        if sign in ended.said:
            return "a traceback"
    return None if ended.status in statuses else f"status {ended.status}"


def refused_or_done(ended: Ended) -> str:
    """Return the outcome of a command that may do its work, or refuse it in one sentence."""
    found = flaw(ended, 0, 1, 2)
    if found is None and ended.status:
        *_, last = ended.said.rstrip("\n").split("\n")
        if not last.startswith("python -m ptb_lm.") or any(ord(c) < 32 for c in last):
            found = "refused, but not in a sentence"
    return found or AS_PROMISED
