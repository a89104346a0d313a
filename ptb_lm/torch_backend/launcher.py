"""Starts the processes of a training on this machine, as torchrun --standalone does, by the same library.

It differs in one thing: a repeated signal ends all processes at once.
"""

import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from typing_extensions import override

from ptb_lm.common import host, streams
from ptb_lm.common.errors import UserError
from ptb_lm.torch_backend import gpu
from ptb_lm.torch_backend.ranks import check_gpus

# The signals that the library takes over, unless they are ignored.
HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


def start(command: Sequence[str], *, processes: int, device: str) -> int:
    """Run a command in several processes to their end; return the exit status of the first that failed.

    A signal that asks this process to stop is handed on to them.

    Args:
        command: The command of each process.
        processes: The number of processes.
        device: The value of --device.

    Raises:
        UserError: They cannot be started, or this machine has fewer GPUs.
    """
    if device != "cpu" and gpu.is_seen():
        check_gpus(processes)
    # By default each would start a thread for every core.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(host.cores()) // processes)))
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(_list_heeded())
    try:
        with _without_traces():
            exit_codes = _run(command, processes)
    except SignalException as stop:
        return 128 + stop.sigval
    except (RendezvousError, RuntimeError) as error:  # RuntimeError: of the network
        first_line = str(error).partition("\n")[0]
        raise UserError(f"the {processes} processes could not be started: {first_line}") from None
    return _report_failures(exit_codes, processes) if exit_codes else 0


class _Agent(LocalElasticAgent):
    """The library's agent, which starts the processes and waits for them."""

    @override
    def _shutdown(self, death_sig: signal.Signals | None = None, *arguments: Any, **keywords: Any) -> None:
        """Send the processes a signal and wait for them; end them at once if a signal comes that came before.

        Args:
            death_sig: The signal that came; None if they end because one of them failed.
            arguments: Further arguments of the library's method.
            keywords: Further arguments of the library's method.
        """
        received, sent = {death_sig}, death_sig or signal.SIGTERM
        while True:
            try:
                return super()._shutdown(sent, *arguments, **keywords)
            except SignalException as again:
                if again.sigval in received:
                    sent = signal.SIGKILL
                received.add(again.sigval)


def _run(command: Sequence[str], processes: int) -> dict[int, int]:
    """Run a command in several processes to their end; return the exit codes of those that failed, by rank.

    Raises:
        SignalException: A signal ended them.
        RendezvousError, RuntimeError: They cannot be started.
    """
    rendezvous = get_rendezvous_handler(
        RendezvousParameters("c10d", "localhost:0", uuid.uuid4().hex, min_nodes=1, max_nodes=1)
    )
    spec = WorkerSpec(
        role="default",
        local_world_size=processes,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=rendezvous,
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        result = _Agent(spec, logs_specs=DefaultLogsSpecs()).run()
    finally:
        rendezvous.shutdown()
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


def _list_heeded() -> list[str]:
    """Return the names of the signals that stop this process: nohup makes it and its ranks ignore SIGHUP."""
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


def _report_failures(exit_codes: dict[int, int], processes: int) -> int:
    """Return the exit status of some processes that failed; say which ones a signal ended."""
    for rank, code in exit_codes.items():
        if code < 0 and code != -signal.SIGTERM:  # by SIGTERM the launcher ends the others
            streams.tell(f"rank {rank} of {processes} was ended by {signal.Signals(-code).name}")
    return next((code for code in exit_codes.values() if code > 0), 1)
