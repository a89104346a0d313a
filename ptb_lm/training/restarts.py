"""torchrun --max-restarts: processes that are started again with the same command go on with its run."""

import os
from pathlib import Path

from ptb_lm.errors import UserError
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
                "torchrun --max-restarts needs --run-dir DIR: who is started again finds the run there"
            )
        return False
    return _number("TORCHELASTIC_RESTART_COUNT") > 0 and ranks.from_first(lambda: _began(path, command))


def _began(path: Path, command: str) -> bool:
    directory = RunDirectory(path)
    return directory.state.exists() and directory.read_state().progress.commands[-1] == command


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else 0
