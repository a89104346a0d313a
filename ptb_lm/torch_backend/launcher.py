"""Starts the processes of a training on this machine, as torchrun --standalone does, by the same library."""

import logging
import os
import signal
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ptb_lm import streams


def start(command: Sequence[str], *, processes: int) -> int:
    """Run a command in several processes to their end; return the exit status of the first that failed.

    A signal that asks this process to stop is handed on to them.

    Args:
        command: What each runs.
        processes: How many.
    """
    # By default each would start a thread for every core.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    logging.disable(logging.CRITICAL)  # what the library logs, the processes say themselves
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        return _status({rank: failure.exitcode for rank, failure in error.failures.items()}, processes)
    except SignalException as stopped:
        return 128 + stopped.sigval
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _status(exit_codes: dict[int, int], processes: int) -> int:
    """Return the exit status of some processes that failed; say which ones a signal ended."""
    for rank, code in exit_codes.items():
        if code < 0 and code != -signal.SIGTERM:  # with which the launcher ends the others
            streams.tell(f"rank {rank} of {processes} was ended by {signal.Signals(-code).name}")
    return next((code for code in exit_codes.values() if code > 0), 1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
