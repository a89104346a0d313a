"""Starts the processes of a training on this machine, as torchrun --standalone does, by the same library."""

import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Iterator, Sequence

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ptb_lm import host, streams
from ptb_lm.errors import UserError
from ptb_lm.torch_backend.ranks import check_gpus

# The signals that the library takes over, unless they are ignored.
HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


def start(command: Sequence[str], *, processes: int, device: str) -> int:
    """Run a command in several processes to their end; return the exit status of the first that failed.

    A signal that asks this process to stop is handed on to them.

    Args:
        command: What each runs.
        processes: How many.
        device: What --device says.

    Raises:
        UserError: They cannot be started, or this machine has fewer GPUs.
    """
    if device != "cpu" and torch.cuda.is_available():
        check_gpus(processes)
    # By default each would start a thread for every core.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(host.cores()) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle=",".join(_not_ignored()),
    )
    try:
        with _without_traces():
            elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        return _status({rank: failure.exitcode for rank, failure in error.failures.items()}, processes)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except (RendezvousError, RuntimeError) as error:  # RuntimeError: of the network
        first_line = str(error).partition("\n")[0]
        raise UserError(f"the {processes} processes could not be started: {first_line}") from None
    return 0


def _not_ignored() -> list[str]:
    """Return the names of signals that stop this process. nohup makes it and its ranks ignore SIGHUP."""
    present = [name for name in HANDLED if hasattr(signal, name)]
    return [name for name in present if signal.getsignal(getattr(signal, name)) != signal.SIG_IGN]


@contextlib.contextmanager
def _without_traces() -> Iterator[None]:
    """Return a context after which signals are handled as before; the library logs nothing in it."""
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in HANDLED if hasattr(signal, name)}
    logging.disable(logging.CRITICAL)  # the processes say it themselves
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name, handler in handlers.items():
            signal.signal(getattr(signal, name), handler)


def _status(exit_codes: dict[int, int], processes: int) -> int:
    """Return the exit status of some processes that failed; say which ones a signal ended."""
    for rank, code in exit_codes.items():
        if code < 0 and code != -signal.SIGTERM:  # with which the launcher ends the others
            streams.tell(f"rank {rank} of {processes} was ended by {signal.Signals(-code).name}")
    return next((code for code in exit_codes.values() if code > 0), 1)
