"""What several ranks must agree on, and the state of their rows that they gather, without processes."""

from typing import Any

import numpy as np
import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.model import carried
from ptb_lm.model.ranks import Ranks

NAMES, SIZES = ("h", "c"), (4, 7, 3)


class Some(Ranks):
    """One of some ranks, which knows what the others have."""

    def __init__(self, rank: int, values: list[Any]) -> None:
        super().__init__()
        self.rank, self.size, self.values = rank, len(values), values

    def gather(self, value: Any) -> list[Any]:
        return self.values


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_gets_its_rows_of_every_layer(size: int) -> None:
    """From states of as many ranks, and of another number; [rows, units] of each layer's parts."""
    rng = np.random.default_rng(size)
    state = [[rng.normal(size=(6, units)) for _ in NAMES] for units in SIZES]
    shares = np.split(np.arange(6), size)
    values = [
        {
            **carried.pack([[part[rows] for part in layer] for layer in state], NAMES),
            "stream": np.array([rank]),
        }
        for rank, rows in enumerate(shares)
    ]
    saved = carried.gather(values[0], Some(0, values), stream="stream")
    assert saved["h"].shape == saved["c"].shape == (len(SIZES), 6, max(SIZES))
    np.testing.assert_array_equal(saved["stream"].ravel(), range(size))
    for others in (1, 2, 3):
        for rank, rows in enumerate(np.split(np.arange(6), others)):
            layers = carried.unpack(saved, NAMES, SIZES, Some(rank, [None] * others))
            for layer, expected in zip(layers, state, strict=True):
                for part, whole in zip(layer, expected, strict=True):
                    np.testing.assert_array_equal(part, whole[rows])


@pytest.mark.parametrize(
    ("commits", "differ"),
    [(["a", None, "a"], None), ([None, "a", "a"], None), ([None, "a", "b"], 2), (["a", None, "b"], 2)],
)
def test_a_fact_that_a_rank_does_not_know_is_compared_on_the_others(
    commits: list[str | None], differ: int | None
) -> None:
    answers = [("", {"commit": commit}, f"host-{rank}") for rank, commit in enumerate(commits)]
    ranks = Some(0, answers)
    if differ is None:
        assert ranks.same_on_all(lambda: "text", lambda text: {"commit": commits[0]}) == "text"
        return
    with pytest.raises(UserError, match=rf"^rank {differ} of 3 \(on host-{differ}\) has another commit"):
        ranks.same_on_all(lambda: "text", lambda text: {"commit": commits[0]})
