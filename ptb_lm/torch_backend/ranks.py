"""Processes that train together, by torch.distributed: gloo between CPUs, NCCL between GPUs.

torchrun starts them, or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Agreements outside
of a training step go through gloo, on a GPU too: nothing there waits for the device.
"""

import atexit
import contextlib
import os
import socket
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, _abort_process_group
from typing_extensions import override

from ptb_lm.common import signals
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.model.ranks import (
    RANK_TIMEOUT,
    SILENCE_SHARE,
    STEP_TIMEOUT,
    TORCHRUN_VARIABLES,
    Ranks,
    timeout,
)
from ptb_lm.torch_backend import gpu

T = TypeVar("T")

ROLL_CALL_SECONDS = 3.0  # in which the others must say that they are still there
REPORT_SECONDS = 2.0  # in which the first rank must say what went wrong, before others do


def join(*, device: str, reduce_precision: str) -> "TorchRanks":
    """Return the ranks that this process is one of, once all of them are there.

    Args:
        device: The value of --device.
        reduce_precision: The value of --reduce-precision.

    Raises:
        UserError: Some did not come; or there are fewer GPUs on this machine than processes.
    """
    if not all(os.environ.get(name) for name in TORCHRUN_VARIABLES):
        raise UserError("TF_CONFIG is for --framework tensorflow; torchrun starts the processes of torch")
    if device != "cpu" and gpu.is_seen():
        local = int(os.environ.get("LOCAL_RANK") or 0)
        check_gpus(local + 1)
        torch.cuda.set_device(local)
    wait = timeout(RANK_TIMEOUT)
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        at = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        with signals.handle_in_libraries(f"rank {rank} of {size} waits for the others at {at}"):
            store: Any = _open_store(rank, wait)
            store = PrefixStore(_agree_on_session(store, rank, size, seconds=wait.total_seconds()), store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
        return TorchRanks(store, rank, size, reduce_precision=reduce_precision)
    except (RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(
            f"the {os.environ.get('WORLD_SIZE')} processes did not find each other: {first_line}"
        ) from None


def _open_store(rank: int, wait: timedelta) -> TCPStore:
    """Return the store where the ranks find each other, which the first rank or its launcher keeps.

    torch's own rendezvous waits within a call that lets no thread of Python run, so no signal is heard.

    Raises:
        RuntimeError: The store cannot be opened, or nobody keeps it.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    end = time.monotonic() + wait.total_seconds()
    while not keeps:
        with contextlib.suppress(OSError):
            socket.create_connection((address, port), timeout=1).close()
            break
        if time.monotonic() > end:
            raise RuntimeError(f"nobody answers at {address}:{port}")
        time.sleep(0.1)
    host = "127.0.0.1" if keeps else address
    return TCPStore(host, port, None, keeps, wait, wait_for_workers=False)


def _agree_on_session(store: Any, rank: int, size: int, *, seconds: float) -> str:
    """Return a name that these processes share with each other, and with none that was started before them.

    torchrun keeps its store when it starts processes again. It still holds the addresses of the first ones,
    to which nobody listens any more. So each rank greets the first one by a name of its own. The first one
    answers each name, until it has heard from all ranks that took its answer.

    Args:
        store: The store that the processes share.
        rank: Rank of this process.
        size: The number of processes.
        seconds: The time for which the first rank waits for the others.

    Raises:
        RuntimeError: Some did not come, or were told of another number.
    """
    name, end = uuid.uuid4().hex, time.monotonic() + seconds
    if rank > 0:
        store.set(f"hello/{rank}", name)
        session: str = store.get(f"welcome/{name}").decode()
        size_of_first = int(store.get(f"size/{session}"))
        store.set(f"joined/{session}/{rank}", str(size))
        _check_size(rank, size, size_of_first)
        return session
    store.set(f"size/{name}", str(size))
    while missing := [other for other in range(1, size) if not _has_joined(store, name, other, size)]:
        if time.monotonic() > end:
            raise RuntimeError(f"rank {missing[0]} did not come")
        for other in missing:
            if store.check([f"hello/{other}"]):
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", name)
        time.sleep(0.02)
    return name


def _has_joined(store: Any, session: str, rank: int, size: int) -> bool:
    if not store.check([f"joined/{session}/{rank}"]):
        return False
    _check_size(rank, int(store.get(f"joined/{session}/{rank}")), size)
    return True


def _check_size(rank: int, size: int, size_of_first: int) -> None:
    if size != size_of_first:
        raise RuntimeError(f"rank {rank} was told of {size} processes, rank 0 of {size_of_first}")


def check_gpus(processes: int) -> None:
    """Check that this machine has a GPU for each of at least so many processes.

    Raises:
        UserError: It has fewer.
    """
    if processes > (gpus := torch.cuda.device_count()):
        raise UserError(
            f"this machine has {gpus} GPU{'s' * (gpus > 1)}, but at least {processes} processes were started "
            f"on it; start at most {gpus}, or use --device cpu"
        )


class TorchRanks(Ranks):
    """The ranks of a process group.

    Args:
        store: The store where the ranks report, if they cannot reach each other otherwise.
        rank: Rank of this process.
        size: The number of ranks.
        reduce_precision: Precision in which gradients are sent and summed: "fp32", which means the precision
            of the weights, or "bf16".
    """

    def __init__(self, store: Any, rank: int, size: int, *, reduce_precision: str = "fp32") -> None:
        super().__init__(reduce_precision=reduce_precision)
        self._step_groups: dict[str, Any] = {}  # by the type of a device; the default group has _rank_timeout
        self.pending: Any = None  # the operation of a step that is under way: one exchange makes them
        atexit.register(self.leave)  # a thread of gloo that outlives the interpreter aborts the process
        self.rank, self.size = rank, size
        self._store = PrefixStore("ptb_lm", store)
        self._step_timeout, self._rank_timeout = timeout(STEP_TIMEOUT), timeout(RANK_TIMEOUT)
        self._step_groups["cpu"] = dist.new_group(timeout=self._step_timeout)

    def step_group(self, device: torch.device) -> Any:
        """Return the process group for a step's tensors on a device.

        All ranks make their first call at the same place. No caller may keep the group: its connections would
        stay open.
        """
        if device.type not in self._step_groups:
            # NCCL ends the process when its time is over. So it has more than gloo, by which the ranks agree
            # after each step: what gloo finds is ours to tell.
            both = self._step_timeout + self._rank_timeout
            self._step_groups[device.type] = dist.new_group(backend="nccl", timeout=both)
        return self._step_groups[device.type]

    @override
    def broadcast(self, outcome: T) -> T:
        box: list[Any] = [outcome]
        with self.collective():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    @override
    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self.collective():
            dist.all_gather_object(values, value)
        return values

    @override
    def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> list[int]:
        found = torch.tensor(numbers)
        group = self._step_groups["cpu"] if after_step else None
        with self.collective(after_step=after_step):
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
        return found.tolist()

    @contextlib.contextmanager
    def collective(self, *, after_step: bool = False) -> Iterator[None]:
        """Return the context of a collective operation.

        Args:
            after_step: True for one of a training step, where ranks wait less long for each other.

        Raises:
            LostRankError: Another rank has ended, or is silent.
        """
        start = time.monotonic()
        try:
            with contextlib.nullcontext() if after_step else signals.handle_in_libraries():
                yield
        except RuntimeError as error:
            seconds = time.monotonic() - start
            limit = (self._step_timeout if after_step else self._rank_timeout).total_seconds()
            # Those who wait for this rank notice that it leaves, too. The frames of the error hold groups.
            traceback.clear_frames(error.__traceback__)
            self.leave(failed=True)
            silence = seconds if seconds > SILENCE_SHARE * limit else 0.0
            raise self._find_lost(str(error).partition("\n")[0], silence) from error

    def _find_lost(self, problem: str, silence: float) -> LostRankError:
        """Return the error that names the ranks that do not answer, and the reasons that they left.

        Args:
            problem: The error that this rank noticed.
            silence: Seconds of waiting for the others; 0 if the error came before their time was over.
        """
        try:
            missing = self._call_roll()
            reasons = [self._read_reason(rank, silence) for rank in missing]
        except RuntimeError:  # the process that kept the store has ended; nobody can be asked any more
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                where = os.environ.get("MASTER_ADDR", "the first machine")
                speaks = os.environ.get("LOCAL_RANK", "0") == "0"
                return LostRankError(f"the launcher on {where} has ended or does not answer", speaker=speaks)
            missing, reasons = [0], [f"rank 0 of {self.size} has ended or does not answer"]
        if not missing:
            reasons = [f"the ranks lost a connection, though all {self.size} still answer: {problem}"]
        first_left = min(set(range(self.size)) - set(missing))
        return LostRankError("; ".join(reasons), speaker=self.rank == first_left)

    def _call_roll(self) -> list[int]:
        """Return the ranks that do not answer within ROLL_CALL_SECONDS.

        Raises:
            RuntimeError: The store does not answer.
        """
        self._store.set(f"here/{self.rank}", "")
        end = time.monotonic() + ROLL_CALL_SECONDS
        while missing := [r for r in range(self.size) if not self._store.check([f"here/{r}"])]:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return missing

    def _read_reason(self, rank: int, silence: float) -> str:
        """Return why a rank left, in its own words if it reported a failure."""
        name = f"rank {rank} of {self.size}"
        if self._store.check([f"failed/{rank}"]):
            return f"{name} failed: {self._store.get(f'failed/{rank}').decode()}"
        if silence:
            return f"{name} did not answer for {silence:.0f} seconds"
        return f"{name} has ended or does not answer"

    def report_failure(self, problem: str) -> bool:
        """Tell the others why this process ends; return whether it is the one that tells the user."""
        try:
            self._store.set(f"failed/{self.rank}", problem)
            if self.is_first:
                return True
            end = time.monotonic() + REPORT_SECONDS
            while time.monotonic() < end:
                if self._store.check(["failed/0"]):
                    # For the first to speak: torchrun ends it as soon as this process has ended.
                    time.sleep(1)
                    return False
                time.sleep(0.1)
        except RuntimeError:
            pass
        return True

    def leave(self, *, failed: bool = False) -> None:
        """Close the connections. Gloo's stay open as long as anything refers to a group.

        Args:
            failed: True if an operation may be under way that a rank will never finish: NCCL would wait.
        """
        self._step_groups.clear()
        self.pending = None
        if dist.is_initialized():
            (_abort_process_group if failed else dist.destroy_process_group)()
