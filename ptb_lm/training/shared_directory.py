"""A run directory of several processes: the first one reads and writes, and all know what it read.

The others need not see the folder: they may be on other machines. An error of the first is one of all.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from typing_extensions import override

from ptb_lm.model.ranks import Ranks
from ptb_lm.training.run_directory import RunDirectory

P = ParamSpec("P")
T = TypeVar("T")


def _on_first(
    method: Callable[Concatenate[RunDirectory, P], T],
) -> Callable[Concatenate["SharedRunDirectory", P], T]:
    def on_all(self: "SharedRunDirectory", /, *args: P.args, **kwargs: P.kwargs) -> T:
        # The plain directory's, whose methods may call each other.
        return self.ranks.run_on_first(lambda: method(self.plain, *args, **kwargs))

    on_all.__doc__ = method.__doc__
    return on_all


class SharedRunDirectory(RunDirectory):
    """The files of a run that several processes train.

    Args:
        path: The folder, as the first process sees it.
        ranks: The processes.
    """

    def __init__(self, path: Path, ranks: Ranks) -> None:
        super().__init__(path)
        self.plain, self.ranks = RunDirectory(path), ranks

    create = _on_first(RunDirectory.create)
    remove_leftovers = _on_first(RunDirectory.remove_leftovers)
    write_config = _on_first(RunDirectory.write_config)
    read_config = _on_first(RunDirectory.read_config)
    read_vocabulary = _on_first(RunDirectory.read_vocabulary)
    write_metrics = _on_first(RunDirectory.write_metrics)
    restore_metrics = _on_first(RunDirectory.restore_metrics)
    write_result = _on_first(RunDirectory.write_result)
    read_result = _on_first(RunDirectory.read_result)
    remove_result = _on_first(RunDirectory.remove_result)
    read_weights = _on_first(RunDirectory.read_weights)
    read_best = _on_first(RunDirectory.read_best)
    write_weights = _on_first(RunDirectory.write_weights)
    read_state = _on_first(RunDirectory.read_state)
    write_state = _on_first(RunDirectory.write_state)

    @override
    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other trainings out of this folder; the first process holds the lock."""
        with contextlib.ExitStack() as stack:
            self.ranks.run_on_first(lambda: stack.enter_context(self.plain.lock()))
            yield
