"""Starts the processes of a training on this machine, as torchrun --standalone does, by the same library.

Unlike torchrun it shares the cores out among them, hands on no signal that this process ignores, and logs
nothing. A signal that is repeated, more than a second later, ends all processes at once. If a process has
ended, and no other could say so, the launcher does.
"""

import contextlib
import logging
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from typing_extensions import override

from ptb_lm.common import host, signals, streams
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.common.program import CONTINUATION, LAUNCHER
from ptb_lm.torch_backend import gpu
from ptb_lm.torch_backend.ranks import check_gpus

# The signals that the library takes over, unless they are ignored.
HANDLED_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]


def start(command: Sequence[str], *, processes: int, device: str) -> int:
    """Run a command in several processes to their end; return the exit status of the first that failed.

    A signal that asks this process to stop is handed on to them.

    Args:
        command: The command of each process.
        processes: The number of processes.
        device: The value of --device.

    Raises:
        UserError: They cannot be started, or this machine has fewer GPUs.
        LostRankError: A process ended, and no other could say so.
    """
    if device != "cpu" and gpu.is_seen():
        check_gpus(processes)
    # The signals that stop this process: nohup makes it and its ranks ignore SIGHUP.
    heeded = signals.handled_signals(HANDLED_SIGNALS)
    variables = {
        # By default each would start a thread for every core.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, host.usable_cores() // processes))),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(each.name for each in heeded),
        LAUNCHER: str(os.getpid()),
    }
    try:
        with _silence_library(heeded), tempfile.NamedTemporaryFile() as continuation:
            with host.set_variables({**variables, CONTINUATION: continuation.name}):
                exit_codes, ended = _run(command, processes)
            advice = os.fsdecode(continuation.read())
    except SignalException as stop:
        return 128 + stop.sigval
    except (RendezvousError, RuntimeError) as error:  # RuntimeError: of the network
        first_line = str(error).partition("\n")[0]
        raise UserError(f"the {processes} processes could not be started: {first_line}") from None
    return _report_failures(exit_codes, ended, processes, advice=advice) if exit_codes else 0


class _Agent(LocalElasticAgent):
    """The library's agent, which starts the processes and waits for them.

    Attributes:
        ended: Ranks that had ended by themselves, before the others were told to end.
    """

    ended: Sequence[int] = ()

    @override
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look whether processes have ended; if one failed, the library ends the others before it returns."""
        processes: Any = self._pcontext
        handlers = processes.subprocess_handlers.items()
        self.ended = [rank for rank, handler in handlers if handler.proc.poll() is not None]
        return super()._monitor_workers(worker_group) if self.ended else RunResult(state=WorkerState.HEALTHY)

    @override
    def _shutdown(self, death_sig: signal.Signals | None = None, *arguments: Any, **keywords: Any) -> None:
        """Send the processes a signal and wait for them; end them at once if it is repeated on purpose.

        Args:
            death_sig: The signal that came; None if they end because one of them failed.
            arguments: Further arguments of the library's method.
            keywords: Further arguments of the library's method.
        """
        sent = death_sig or signal.SIGTERM
        first_times = {death_sig.value: time.monotonic()} if death_sig else {}
        while True:
            try:
                return super()._shutdown(sent, *arguments, **keywords)
            except SignalException as again:
                if signals.add_signal(again.sigval, first_times):
                    sent = signal.SIGKILL


def _run(command: Sequence[str], processes: int) -> tuple[dict[int, int], Sequence[int]]:
    """Run a command in several processes to their end.

    Returns:
        The exit codes of those that failed, by rank; and the ranks that had ended by themselves.

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
        with tempfile.TemporaryDirectory() as logs:  # by default, a folder that nobody removes
            agent = _Agent(spec, logs_specs=DefaultLogsSpecs(logs))
            result = agent.run()
    finally:
        rendezvous.shutdown()
    return {rank: failure.exitcode for rank, failure in result.failures.items()}, agent.ended


@contextlib.contextmanager
def _silence_library(heeded: Sequence[signal.Signals]) -> Iterator[None]:
    """Return a context in which the library logs nothing, and after which handlers are as before.

    Args:
        heeded: The signals that the library takes over.
    """
    handlers, level = {each: signal.getsignal(each) for each in heeded}, logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the processes say it themselves
    try:
        yield
    finally:
        logging.disable(level)
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _report_failures(exit_codes: dict[int, int], ended: Sequence[int], processes: int, *, advice: str) -> int:
    """Return the exit status of processes that failed; say which ones a signal ended.

    Raises:
        LostRankError: No process could say why it ends. Now and then a killed process leaves others in gloo
            that do not notice it, and wait until they are killed, too.
    """
    for rank, code in exit_codes.items():
        if code < 0 and (rank in ended or code != -signal.SIGTERM):  # by which the launcher ends the others
            streams.print_to_stderr(f"rank {rank} of {processes} was {signals.describe_signal(-code)}")
    if advice and all(code < 0 for code in exit_codes.values()):
        names = (
            f"rank {rank} of {processes} has ended or does not answer" for rank in ended if rank in exit_codes
        )
        raise LostRankError("; ".join([*names, advice]), speaker=True)
    # Others may have ended by the launcher's SIGTERM before they trained, and say so by 128 + 15.
    return next((code for rank, code in exit_codes.items() if code > 0 and rank in ended), 1)
