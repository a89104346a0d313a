"""Processes that train together, by torch.distributed: gloo between CPUs, NCCL between GPUs.

torchrun starts them, or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. What is agreed upon
outside of a training step goes through gloo, on a GPU too: nothing there waits for the device.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from ptb_lm.common import signals
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.model.ranks import SeveralRanks
from ptb_lm.model.timeouts import ELSEWHERE, STEP, timeout
from ptb_lm.torch_backend import gpu
from ptb_lm.torch_backend.session import session

T = TypeVar("T")

NEARLY = 0.9  # of the timeout: an exchange in the background began a little before it is waited for
ROLL_CALL_SECONDS = 3.0  # how long the others have to say that they are still there
TOLD_SECONDS = 2.0  # how long the first rank has to say what went wrong, before others do


def join(*, device: str, reduce_precision: str) -> "TorchRanks":
    """Return the ranks that this process is one of, once all of them are there.

    Args:
        device: What --device says.
        reduce_precision: What --reduce-precision says.

    Raises:
        UserError: Some did not come; or there are fewer GPUs on this machine than processes.
    """
    if "RANK" not in os.environ:
        raise UserError("TF_CONFIG is for --framework tensorflow; torchrun starts the processes of torch")
    local = int(os.environ.get("LOCAL_RANK") or 0)
    if device != "cpu" and gpu.is_seen():
        check_gpus(local + 1)
        torch.cuda.set_device(local)
    wait = timeout(ELSEWHERE)
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        at = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        with signals.heard_in_libraries(f"rank {rank} of {size} waits for the others at {at}"):
            store: Any = _store(rank, wait)
            store = PrefixStore(session(store, rank, size, seconds=wait.total_seconds()), store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
        return TorchRanks(store, rank, size, reduce_precision=reduce_precision)
    except (RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(
            f"the {os.environ.get('WORLD_SIZE')} processes did not find each other: {first_line}"
        ) from None


def _store(rank: int, wait: timedelta) -> TCPStore:
    """Return the store where the ranks find each other, which the first rank or its launcher keeps.

    torch's own rendezvous waits within a call that lets no thread of Python run, so no signal is heard.

    Raises:
        RuntimeError: It cannot be opened, or nobody keeps it.
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


class TorchRanks(SeveralRanks):
    """The ranks of a process group.

    Args:
        store: Where each finds what others say, if they cannot be reached otherwise.
        rank: This one.
        size: How many there are.
        reduce_precision: What gradients are sent and summed in: "fp32", which means as the weights are kept,
            or "bf16".
    """

    def __init__(self, store: Any, rank: int, size: int, *, reduce_precision: str = "fp32") -> None:
        self.rank, self.size, self.reduce_precision = rank, size, reduce_precision
        self._store = PrefixStore("ptb_lm", store)
        self._in_step, self._elsewhere = timeout(STEP), timeout(ELSEWHERE)
        self._steps = dist.new_group(timeout=self._in_step)  # the default group waits as elsewhere

    def device_group(self, device: torch.device) -> Any:
        """Return the process group for tensors on a device; all ranks ask at the same place."""
        if device.type == "cpu":
            return self._steps
        return dist.new_group(backend="nccl", timeout=self._in_step)

    def broadcast(self, outcome: T) -> T:
        """Return what the first rank gives here."""
        box: list[Any] = [outcome]
        with self.heard():
            dist.broadcast_object_list(box, src=0)
        first: T = box[0]
        return first

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, in their order."""
        values: list[Any] = [None] * self.size
        with self.heard():
            dist.all_gather_object(values, value)
        return values

    def sum_over_ranks(self, number: float) -> float:
        """Return the sum of a number over the ranks."""
        return float(self._reduced(torch.tensor(number, dtype=torch.float64), dist.ReduceOp.SUM))

    def max_over_ranks(self, numbers: Sequence[int], *, after_step: bool = False) -> list[int]:
        """Return the greatest over the ranks, of each number."""
        found = self._reduced(torch.tensor(numbers), dist.ReduceOp.MAX, after_step=after_step)
        greatest: list[int] = found.tolist()
        return greatest

    def _reduced(self, numbers: Tensor, operation: Any, *, after_step: bool = False) -> Tensor:
        with self.heard(after_step=after_step):
            dist.all_reduce(numbers, op=operation, group=self._steps if after_step else None)
        return numbers

    @contextlib.contextmanager
    def heard(self, *, after_step: bool = False) -> Iterator[None]:
        """Return a context of a collective operation.

        Args:
            after_step: Whether it belongs to a training step, where ranks wait less long for each other.

        Raises:
            LostRankError: Another rank has ended, or is silent.
        """
        start = time.monotonic()
        try:
            with contextlib.nullcontext() if after_step else signals.heard_in_libraries():
                yield
        except RuntimeError as error:
            waited = time.monotonic() - start
            limit = (self._in_step if after_step else self._elsewhere).total_seconds()
            # Connections are closed, so that those who wait for this rank notice it, too.
            dist.destroy_process_group()
            silence = waited if waited > NEARLY * limit else 0.0
            raise self._lost(str(error).partition("\n")[0], silence) from error

    def _lost(self, problem: str, silence: float) -> LostRankError:
        """Return the error that names the ranks that do not answer, and what they said before they ended.

        Args:
            problem: What was noticed here.
            silence: Of the others, in seconds; 0 if the problem was noticed before their time was over.
        """
        here = range(self.size)
        try:
            self._store.set(f"here/{self.rank}", "")
            end = time.monotonic() + ROLL_CALL_SECONDS
            while missing := [rank for rank in here if not self._store.check([f"here/{rank}"])]:
                if time.monotonic() > end:
                    break
                time.sleep(0.1)
            if missing:
                said = [self._last_words(rank, silence) for rank in missing]
                return LostRankError("; ".join(said), speaker=self._speaks(missing))
        except RuntimeError:
            return self._lost_with_store()
        return LostRankError(
            f"the ranks lost a connection, though all {self.size} still answer: {problem}", speaker=self.first
        )

    def _lost_with_store(self) -> LostRankError:
        """Return the error for the end of the process that kept the store; nobody can be asked any more."""
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            where = os.environ.get("MASTER_ADDR", "the first machine")
            alone = os.environ.get("LOCAL_RANK", "0") == "0"
            return LostRankError(f"the launcher on {where} has ended or does not answer", speaker=alone)
        return LostRankError(
            f"rank 0 of {self.size} has ended or does not answer", speaker=self._speaks(missing=[0])
        )

    def _last_words(self, rank: int, silence: float) -> str:
        name = f"rank {rank} of {self.size}"
        if self._store.check([f"failed/{rank}"]):
            return f"{name} failed: {self._store.get(f'failed/{rank}').decode()}"
        if silence:
            return f"{name} did not answer for {silence:.0f} seconds"
        return f"{name} has ended or does not answer"

    def _speaks(self, missing: Sequence[int]) -> bool:
        return self.rank == min(set(range(self.size)) - set(missing))

    def failed(self, problem: str) -> bool:
        """Tell the others why this process ends; return whether it is the one that tells the user."""
        try:
            self._store.set(f"failed/{self.rank}", problem)
            if self.first:
                return True
            end = time.monotonic() + TOLD_SECONDS
            while time.monotonic() < end:
                if self._store.check(["failed/0"]):
                    time.sleep(1)  # for it to speak: torchrun ends it as soon as this process has ended
                    return False
                time.sleep(0.1)
        except RuntimeError:
            pass
        return True

    def leave(self) -> None:
        """Close the connections."""
        if dist.is_initialized():
            dist.destroy_process_group()
