"""What a fault is: a thing that is done to a run again and again, and what came of it each time."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from faults.subject import AS_PROMISED, Ended, Subject

REFUSED = "refused in a sentence, or without effect on any number; no traceback"

# Each try's outcome, in words; endless, or until everything was tried once.
Outcomes = Callable[[Subject, random.Random], Iterator[str]]


class Fault(NamedTuple):
    """A kind of fault."""

    what: str  # is done, for people
    promise: str  # what should come of it
    outcomes: Outcomes
    before: str  # what came of it at commit 7c1d749, before anything was mended
    frameworks: tuple[str, ...] = (
        "torch",
        "tensorflow",
    )  # that it has to do with; the first, where with none


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
