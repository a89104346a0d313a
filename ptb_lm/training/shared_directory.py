"""A run directory of several processes: the first one reads and writes, and all know what it read.

The others need not see the folder: they may be on other machines. An error of the first is one of all.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ptb_lm.model.ranks import Ranks
from ptb_lm.training.run_directory import RunDirectory

if TYPE_CHECKING:
    from ptb_lm.training.scalars import Scalars

P = ParamSpec("P")
T = TypeVar("T")


def _by_the_first(
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

    create = _by_the_first(RunDirectory.create)
    remove_leftovers = _by_the_first(RunDirectory.remove_leftovers)
    write_config = _by_the_first(RunDirectory.write_config)
    read_config = _by_the_first(RunDirectory.read_config)
    read_vocabulary = _by_the_first(RunDirectory.read_vocabulary)
    write_metrics = _by_the_first(RunDirectory.write_metrics)
    restore_metrics = _by_the_first(RunDirectory.restore_metrics)
    write_result = _by_the_first(RunDirectory.write_result)
    read_result = _by_the_first(RunDirectory.read_result)
    remove_result = _by_the_first(RunDirectory.remove_result)
    read_weights = _by_the_first(RunDirectory.read_weights)
    read_best = _by_the_first(RunDirectory.read_best)
    write_weights = _by_the_first(RunDirectory.write_weights)
    read_state = _by_the_first(RunDirectory.read_state)
    write_state = _by_the_first(RunDirectory.write_state)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainings out of this folder; the first process holds the lock."""
        with contextlib.ExitStack() as stack:
            self.ranks.run_on_first(lambda: stack.enter_context(self.plain.locked()))
            yield

    def scalars(self, *, purge_step: int | None = None) -> "Scalars | NoScalars":  # type: ignore[override]
        """Return a new file of scalars for TensorBoard; of the others nothing is written."""
        return self.plain.scalars(purge_step=purge_step) if self.ranks.is_first else NoScalars()


class NoScalars:
    """What does nothing where Scalars writes."""

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write nothing."""

    def begin(self, config: Mapping[str, Any], step: int) -> None:
        """Write nothing."""

    def end(self, step: int) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Close nothing."""
