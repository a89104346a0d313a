"""How many steps and rounds a variant's pass is timed for: long enough blocks, and not too long a time.

Both are fixed before the first block, by the time of a step in the warm-up. What a block then takes changes
neither, so that no variant is measured more often because it came out slow or fast.
"""

import math
from dataclasses import dataclass

from ptb_lm.bench.process import WarmUp
from ptb_lm.bench.workloads import Workload

# About how long a timed block is at least, so that the clock's own grain and the last synchronisation do not
# count.
BLOCK_SECONDS = 1.0
# Longer than that is planned by this factor: a processor that speeds up after the warm-up makes a block
# shorter than planned, at times by half.
ROOM = 1.5


@dataclass(frozen=True)
class Plan:
    """How a variant's pass is timed.

    Attributes:
        steps: Of a block.
        wanted: How many steps would fill a block.
        rounds: How many blocks.
        limit: Seconds that the blocks may take together.
    """

    steps: int
    wanted: int
    rounds: int
    limit: float

    def note(self, warm_up: WarmUp, workload: Workload) -> str | None:
        """Say what was cut to keep within the limit."""
        cuts = [
            f"{done} of {wanted} {what}"
            for done, wanted, what in (
                (self.rounds, workload.rounds, "rounds"),
                (self.steps, self.wanted, "steps a round"),
                (warm_up.warm_up_steps, workload.warm_up, "steps to warm up"),
            )
            if done < wanted
        ]
        return f"{', '.join(cuts)}, to keep within {self.limit:g} s" if cuts else None


def plan(workload: Workload, *, step_seconds: float, limit: float, steps: int | None = None) -> Plan:
    """Plan the blocks of a variant's pass.

    Args:
        workload: Says how many rounds, and how many steps at least.
        step_seconds: How long a step took in the warm-up of the first process.
        limit: Seconds that the blocks may take together; one step of one round is done whatever it takes.
        steps: Of the blocks that an interrupted run has measured; None: there are none.
    """
    affordable = int(limit / step_seconds)  # steps, in all rounds
    wanted = max(workload.steps, math.ceil(ROOM * BLOCK_SECONDS / step_seconds))
    return Plan(
        steps=steps or max(1, min(wanted, affordable // workload.rounds)),
        wanted=wanted,
        rounds=max(1, min(workload.rounds, affordable)),
        limit=limit,
    )
