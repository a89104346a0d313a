"""torchrun --max-restarts: processes that are started again with the same command go on with its run."""

import os
from pathlib import Path
from typing import Any

from ptb_lm.common.errors import UserError
from ptb_lm.model.ranks import Ranks
from ptb_lm.training.run_directory import RunDirectory


def goes_on(path: Path | None, command: str, ranks: Ranks) -> bool:
    """Return whether this process was started again for a run that the same command began.

    Args:
        path: What --run-dir says.
        command: The command line; a run that another one began is refused as ever.
        ranks: All processes, which were all started again.

    Raises:
        UserError: Such processes could not find their run.
    """
    if path is None:
        if _number("TORCHELASTIC_MAX_RESTARTS") > 0:
            raise UserError(
                "torchrun --max-restarts needs --run-dir DIR, so that restarted processes can find the run"
            )
        return False
    # An agent does not count a restart that another machine caused, so the numbers may differ.
    (again,) = ranks.max_over_ranks([_number("TORCHELASTIC_RESTART_COUNT")])
    return again > 0 and ranks.run_on_first(lambda: _began(path, command))


def job() -> dict[str, Any]:
    """Return what a run's record says of the torchrun that restarts its processes."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return {"torchrun_id": name} if name and _number("TORCHELASTIC_MAX_RESTARTS") else {}


def _began(path: Path, command: str) -> bool:
    """Return whether the same torchrun began the run; an earlier one may have run the same command."""
    directory = RunDirectory(path)
    if not directory.state.exists():
        return False
    progress = directory.read_state().progress
    began_by = progress.environments[-1].get("torchrun_id")
    return progress.commands[-1] == command and began_by == job().get("torchrun_id")


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else 0
