"""torch's ranks name a rank that does not answer: it ended, or it was silent for as long as they wait."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ptb_lm.common.errors import LostRankError
from ptb_lm.model.ranks import RANK_TIMEOUT, STEP_TIMEOUT
from ptb_lm.torch_backend import ranks as torch_ranks
from ptb_lm.torch_backend.exchange import GradientExchange
from ptb_lm.torch_backend.precision import PRECISIONS
from ptb_lm.torch_backend.ranks import TorchRanks


def exchange(ranks: TorchRanks) -> GradientExchange:
    return GradientExchange(ranks, torch.zeros(4, 5), PRECISIONS["fp32"])


# Where ranks wait for each other, and which variable says how long.
PLACES: dict[str, tuple[str, Callable[[TorchRanks], Any]]] = {
    "gather": (RANK_TIMEOUT, lambda ranks: ranks.gather(0)),
    "broadcast": (RANK_TIMEOUT, lambda ranks: ranks.broadcast(0)),
    "sum": (RANK_TIMEOUT, lambda ranks: ranks.sum_over_ranks(0.0)),
    "barrier": (RANK_TIMEOUT, lambda ranks: ranks.barrier()),
    "after a step": (STEP_TIMEOUT, lambda ranks: ranks.max_over_ranks([0], after_step=True)),
    "exchange": (STEP_TIMEOUT, lambda ranks: exchange(ranks).broadcast_norm(torch.zeros([]))),
}


class Clock:
    """In place of the module time; waiting takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TorchRanks]]:
    """Makes the first of two ranks; the other never answers."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield lambda: TorchRanks(store, 0, 2)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("waited", [20, 50])
@pytest.mark.parametrize("other_limit", [5, 500])
@pytest.mark.parametrize("place", PLACES)
def test_a_rank_is_called_silent_only_after_the_whole_timeout(
    place: str,
    other_limit: int,
    waited: int,
    first_of_two: Callable[[], TorchRanks],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable, wait = PLACES[place]
    for each in (STEP_TIMEOUT, RANK_TIMEOUT):
        monkeypatch.setenv(each, "50" if each == variable else str(other_limit))
    ranks, clock = first_of_two(), Clock()
    monkeypatch.setattr(torch_ranks, "time", clock)

    def fail(*_: Any, **__: Any) -> None:
        clock.now += waited
        raise RuntimeError("Connection closed by peer, or a timeout\nand more")

    for name in ("all_gather_object", "all_reduce", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, fail)
    with pytest.raises(LostRankError) as lost:
        wait(ranks)
    assert str(lost.value).startswith("rank 1 of 2 ")
    assert ("50 seconds" in str(lost.value)) == (waited == 50)
    assert ("ended" in str(lost.value)) == (waited != 50)
    assert lost.value.speaker


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_ranks_that_were_told_of_other_numbers_say_so(sizes: tuple[int, int]) -> None:
    store, said = dist.HashStore(), f"rank 1 was told of {sizes[1]} processes, rank 0 of {sizes[0]}"
    with ThreadPoolExecutor(2) as pool:
        ranks = [
            pool.submit(torch_ranks._agree_on_session, store, rank, size, seconds=20)
            for rank, size in enumerate(sizes)
        ]
    assert [str(rank.exception()) for rank in ranks] == [said, said]


class ClosedStore:
    """A store whose keeper has ended: it refuses everything."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize("rank", [1, 2])
def test_one_rank_names_the_keeper_of_the_store(rank: int) -> None:
    ranks = TorchRanks.__new__(TorchRanks)  # without a process group
    ranks.rank, ranks.size, ranks._store = rank, 3, ClosedStore()
    lost = ranks._find_lost("Connection closed by peer", silence=0.0)
    assert str(lost).startswith("rank 0 of 3 ")
    assert lost.speaker == (rank == 1)


# A rank that trains until another one is killed; it prints whether it speaks, and what it says.
TRAINS = """
import json, os, signal, sys
import torch
from ptb_lm.common.errors import LostRankError
from ptb_lm.torch_backend import exchange, ranks
from ptb_lm.torch_backend.precision import PRECISIONS

ranks.ROLL_CALL_SECONDS = 8  # a busy machine may be late
mine = ranks.join(device="cpu", reduce_precision="fp32")
gradients = exchange.GradientExchange(mine, torch.zeros(4, 5), PRECISIONS["fp32"])
words = torch.zeros(2, dtype=torch.int64)
window = exchange.WindowGradients(torch.zeros(2), words, torch.zeros(2, 4), [torch.zeros(3)])
try:
    for step in range(10**9):
        gradients.start_reduce(2)
        if (str(mine.rank), step) == (sys.argv[1], 5):
            os.kill(os.getpid(), signal.SIGKILL)
        gradients.wait_and_merge(window)
except LostRankError as error:
    print(json.dumps([mine.report_failure(str(error)) and error.speaker, str(error)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dead"), [(3, 0), (3, 2), (4, 3)])
def test_of_several_ranks_one_names_the_one_that_ended_and_no_other(size: int, dead: int) -> None:
    """Those who wait for a living rank notice that it leaves, and do not take it for a dead one."""
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size)}
    place["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # as under torchrun: a process of its own keeps the store
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINS, str(dead)],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    said = [json.loads(text) for rank, text in enumerate(printed) if rank != dead]
    assert [sentence for _, sentence in said] == [f"rank {dead} of {size} has ended or does not answer"] * (
        size - 1
    )
    assert sum(speaks for speaks, _ in said) == 1


def test_a_failure_aborts_what_a_lost_rank_would_never_finish(
    first_of_two: Callable[[], TorchRanks], monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted, abort = list[None](), torch_ranks._abort_process_group
    monkeypatch.setattr(torch_ranks, "_abort_process_group", lambda: aborted.append(abort()))
    first_of_two().leave(failed=True)
    assert len(aborted) == 1
    assert not dist.is_initialized()
