"""The processes that train one model together, a rank each; by default one process alone.

Each rank trains on its share of the batch's rows. What the ranks must agree on (numbers, decisions, what is
in the run directory) goes through these methods, which every rank calls at the same place of its program.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from ptb_lm.common import cli
from ptb_lm.common.errors import DivergenceError, UserError

T = TypeVar("T")

# Values that must be the same on all processes: name -> value, in words; one that a process lacks is "none".
# None: the process cannot tell, and is not compared.
Facts = Mapping[str, str | None]

# How long processes that train together wait for one that is silent: variables of the environment, and the
# seconds where they are not set. An ended process is noticed at once.
STEP_TIMEOUT = "PTB_LM_STEP_TIMEOUT"  # in a training step, after the first of its window's length
RANK_TIMEOUT = "PTB_LM_RANK_TIMEOUT"  # while a process imports, reads, compiles, or writes to a slow disk
DEFAULT_TIMEOUTS = {STEP_TIMEOUT: 45.0, RANK_TIMEOUT: 300.0}
# The part of a timeout that counts as silence. An exchange in the background begins before it is waited for.
SILENCE_SHARE = 0.9
MAX_TIMEOUT = 1e6  # timeouts of torch overflow with many more

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by any launcher of torch
TRAINING_JOBS = ("chief", "worker")  # of TensorFlow's processes; the others serve or watch


class Ranks:
    """One process alone, on one device or several; a framework's own class connects it to others.

    That class overrides `broadcast`, `gather` and `max_over_ranks`.

    Attributes:
        rank: The number of this process, counted from 0. The first one writes the files and speaks.
        size: The number of processes.
        devices: The number of devices that each of them trains on.
        reduce_precision: The precision that gradients are sent and summed in, as --reduce-precision says.
    """

    rank = 0
    size = 1

    def __init__(self, devices: int = 1, *, reduce_precision: str = "fp32") -> None:
        self.devices, self.reduce_precision = devices, reduce_precision

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and speaks for all."""
        return self.rank == 0

    def check_divisible(self, rows: int) -> None:
        """Check that all ranks, or devices, get equal parts of a batch.

        Raises:
            UserError: They do not.
        """
        check_divisible(rows, self.size * self.devices, what="processes" if self.devices == 1 else "devices")

    def can_share(self, rows: int) -> bool:
        """Return whether so many rows can be divided among the ranks; if not, each takes all of them."""
        return rows % self.size == 0

    def share(self, rows: int) -> slice:
        """Return this rank's share of some rows: as many as any other's, side by side."""
        if not self.can_share(rows):
            return slice(0, rows)
        each = rows // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def run_on_first(self, make: Callable[[], T]) -> T:
        """Return what `make` returns on the first rank; it is not called on the others.

        Raises:
            UserError, DivergenceError, OSError: It was raised there, and is raised on all.
        """
        if self.size == 1:
            return make()
        outcome: Any = None
        if self.is_first:
            try:
                outcome = make(), None
            except (UserError, DivergenceError, OSError) as error:
                outcome = None, error
        value, failure = self.broadcast(outcome)
        if failure is not None:
            raise failure
        return value

    def same_on_all(self, make: Callable[[], T], facts: Callable[[T], Facts]) -> T:
        """Return what `make` returns on each rank, where that is the same on all.

        Args:
            make: A function that each rank calls for itself.
            facts: A function that returns the facts about its result that must be the same.

        Raises:
            UserError: It was raised on a rank, which is named; or the facts differ, and which.
        """
        if self.size == 1:
            return make()
        problem, found = "", dict[str, str | None]()
        try:
            result = make()
            found = dict(facts(result))
        except (UserError, OSError) as error:
            problem = str(error)
        answers = self.gather((problem, found, socket.gethostname()))
        if problem and answers[0][0] == problem:  # of all, or of the first
            raise UserError(problem)
        names = dict.fromkeys(name for _, facts_there, _ in answers for name in facts_there)
        known: dict[str, tuple[int, str, str]] = {}  # of the first rank that can tell
        for rank, (problem_there, facts_there, host) in enumerate(answers):
            if problem_there:
                raise UserError(f"rank {rank} of {self.size} (on {host}): {problem_there}")
            for name in names:
                if (there := facts_there.get(name, "none")) is None:
                    continue
                first, here, first_host = known.setdefault(name, (rank, there, host))
                if there != here:
                    raise UserError(
                        f"rank {rank} of {self.size} (on {host}) has another {name} than rank {first} (on "
                        f"{first_host}): {there}, not {here}"
                    )
        return result

    def broadcast(self, outcome: T) -> T:
        """Return the outcome of the first rank, on all ranks."""
        return outcome

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, in their order."""
        return [value]

    def sum_over_ranks(self, number: float) -> float:
        """Return the sum of a number over the ranks, in float64; equal on all to the bit."""
        return sum(self.gather(number), 0.0)

    def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> Sequence[int]:
        """Return the greatest value over the ranks, of each number.

        Args:
            numbers: The numbers of this rank.
            after_step: Use the short step timeout: all ranks finished a step.
        """
        return numbers

    def barrier(self) -> None:
        """Wait for all ranks to come here, as long as in the first step: one of them may have compiled."""
        self.max_over_ranks([0])


def check_divisible(rows: int, among: int, *, what: str = "processes") -> None:
    """Check that so many processes or devices get equal parts of a batch.

    Args:
        rows: The rows of the batch.
        among: The number of processes or devices.
        what: The word for them, "processes" or "devices".

    Raises:
        UserError: They do not.
    """
    if among > rows:
        raise UserError(f"--batch-size {rows} is too small for {among} {what}; use at most {rows} of them")
    if rows % among:
        less = rows - rows % among
        fewer, more = (
            next(n for n in numbers if rows % n == 0)
            for numbers in (range(among, 0, -1), range(among, rows + 1))
        )
        raise UserError(
            f"--batch-size {rows} is not divisible by {among} {what} ({rows} = {among} x {rows // among} + "
            f"{rows % among}); use {fewer} or {more} {what}, or {less} or {less + among} rows (a resumed run "
            "keeps its rows)"
        )


SINGLE_PROCESS = Ranks()


def timeout(variable: str) -> timedelta:
    """Return how long to wait for a silent process, as the environment says or by default.

    Args:
        variable: The name STEP_TIMEOUT or RANK_TIMEOUT.

    Raises:
        UserError: The environment says something else than a number of seconds.
    """
    seconds = cli.from_environment(variable, cli.positive_number, DEFAULT_TIMEOUTS[variable])
    return timedelta(seconds=min(seconds, MAX_TIMEOUT))


def tf_config() -> tuple[int, str]:
    """Read TF_CONFIG, which tells a process of TensorFlow the addresses of all, and its own place.

    Returns:
        (processes, job): the number of processes that train together, 0 if it lists none; and the job of this
        process, one of TRAINING_JOBS or another, "" if it does not say.

    Raises:
        UserError: It is malformed.
    """
    try:
        whole = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster, task = _part(whole, "cluster", dict), _part(whole, "task", dict)
        job, index = task.get("type"), int(task["index"]) if "type" in task else 0
        processes = sum(len(_part(cluster, job, list)) for job in TRAINING_JOBS)
        if processes and job in TRAINING_JOBS and not 0 <= index < len(_part(cluster, job, list)):
            raise UserError(f"TF_CONFIG lists no {job} of the index {index}")
    except (ValueError, TypeError, AttributeError, KeyError):
        raise UserError(
            'TF_CONFIG is malformed; it should look like {"cluster": {"worker": ["HOST:PORT", ...]}, "task": '
            '{"type": "worker", "index": 0}}'
        ) from None
    return processes, str(task.get("type", ""))


def _part(whole: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """Return a part of an object of JSON, empty if it is missing or null.

    Raises:
        AttributeError, TypeError: The object or its part is of another kind.
    """
    part = whole.get(name)
    if part is None:
        return kind()
    if not isinstance(part, kind):
        raise TypeError(name)
    return part
