"""What torch's ranks say of one that does not answer: it ended, or it was silent for as long as they wait."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ptb_lm.common.errors import LostRankError
from ptb_lm.model.ranks import ELSEWHERE, STEP
from ptb_lm.torch_backend import ranks as torch_ranks
from ptb_lm.torch_backend.exchange import Exchange
from ptb_lm.torch_backend.precision import PRECISIONS
from ptb_lm.torch_backend.ranks import TorchRanks


def exchange(ranks: TorchRanks) -> Exchange:
    return Exchange(ranks, device=torch.device("cpu"), precision=PRECISIONS["fp32"], vocabulary_size=5)


# Where ranks wait for each other, and which variable says how long.
PLACES: dict[str, tuple[str, Callable[[TorchRanks], Any]]] = {
    "gather": (ELSEWHERE, lambda ranks: ranks.gather(0)),
    "told": (ELSEWHERE, lambda ranks: ranks.broadcast(0)),
    "sum": (ELSEWHERE, lambda ranks: ranks.sum_over_ranks(0.0)),
    "meet": (ELSEWHERE, lambda ranks: ranks.barrier()),
    "in step": (STEP, lambda ranks: ranks.max_over_ranks([0], after_step=True)),
    "exchange": (STEP, lambda ranks: exchange(ranks).agreed(torch.zeros([]))),
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
def of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TorchRanks]]:
    """Makes the first of two ranks, of which the other never says anything."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield lambda: TorchRanks(store, 0, 2)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("waited", [20, 50])
@pytest.mark.parametrize("limit_of_the_other_places", [5, 500])
@pytest.mark.parametrize("place", PLACES)
def test_only_who_was_waited_for_to_the_end_is_called_silent(
    place: str,
    limit_of_the_other_places: int,
    waited: int,
    of_two: Callable[[], TorchRanks],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable, wait = PLACES[place]
    for each in (STEP, ELSEWHERE):
        monkeypatch.setenv(each, "50" if each == variable else str(limit_of_the_other_places))
    ranks, clock = of_two(), Clock()
    monkeypatch.setattr(torch_ranks, "time", clock)

    def fail(*_: Any, **__: Any) -> None:
        clock.now += waited
        raise RuntimeError("Connection closed by peer, or a timeout\nand more")

    for name in ("all_gather_object", "all_reduce", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, fail)
    with pytest.raises(LostRankError) as lost:
        wait(ranks)
    said = "did not answer for 50 seconds" if waited == 50 else "has ended or does not answer"
    assert str(lost.value) == f"rank 1 of 2 {said}"
    assert lost.value.speaker


class Gone:
    """A store whose keeper has ended: it refuses everything."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize("rank", [1, 2])
def test_who_kept_the_store_is_named_by_one(rank: int) -> None:
    ranks = TorchRanks.__new__(TorchRanks)  # without a process group
    ranks.rank, ranks.size, ranks._store = rank, 3, Gone()
    lost = ranks._find_lost("Connection closed by peer", silence=0.0)
    assert str(lost) == "rank 0 of 3 has ended or does not answer"
    assert lost.speaker == (rank == 1)
