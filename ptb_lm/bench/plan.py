"""How many steps a variant's pass is timed for, so that blocks are long enough and rows not too long."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptb_lm.bench.process import WarmUp
from ptb_lm.bench.rows import Row
from ptb_lm.bench.workloads import Workload

# How long a timed block is at least, so that the clock's own grain and the last synchronisation do not count.
BLOCK_SECONDS = 1.0


@dataclass
class Plan:
    """How a variant's pass is timed: alike in every round.

    Attributes:
        steps: Of a block.
        spent: Seconds, in blocks so far.
        limit: Seconds that the blocks may take together.
    """

    steps: int
    spent: float
    limit: float

    @property
    def is_spent(self) -> bool:
        """Whether one more block would exceed the limit; the first never does."""
        return self.spent > 0 and self.spent > 0.9 * self.limit

    def note(self, warm_up: WarmUp, workload: Workload) -> str | None:
        """Say what was cut to keep within the limit."""
        cuts = [
            f"{done} of {wanted} {what}"
            for done, wanted, what in (
                (self.steps, workload.steps, "steps a round"),
                (warm_up.warm_up_steps, workload.warm_up, "steps to warm up"),
            )
            if done < wanted
        ]
        return f"{', '.join(cuts)}, to keep within {self.limit:g} s" if cuts else None


def plan(workload: Workload, warm_up: WarmUp, *, limit: float, done: Sequence[Row]) -> Plan:
    """Plan the blocks of a variant's pass.

    Args:
        workload: Says how many rounds, and how many steps at least.
        warm_up: Tells how long a step takes.
        limit: Seconds that the blocks may take together.
        done: The rows of a run that was interrupted, whose number of steps is kept.
    """
    wanted = max(workload.steps, math.ceil(BLOCK_SECONDS / warm_up.step_seconds))
    affordable = int(limit / workload.rounds / warm_up.step_seconds)
    steps = done[-1].steps if done else max(1, min(wanted, affordable))
    return Plan(steps=steps, spent=sum(row.seconds for row in done), limit=limit)
