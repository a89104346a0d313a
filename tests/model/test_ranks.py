"""What several ranks must agree on, without processes."""

from typing import Any

import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.model.ranks import Ranks


class Some(Ranks):
    """The first of some ranks, which knows what the others answer."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__()
        self.size, self.answers = len(answers), answers

    def gather(self, value: Any) -> list[Any]:
        return self.answers


@pytest.mark.parametrize(
    ("commits", "differ"),
    [(["a", None, "a"], None), ([None, "a", "a"], None), ([None, "a", "b"], 2), (["a", None, "b"], 2)],
)
def test_a_fact_that_a_rank_does_not_know_is_compared_on_the_others(
    commits: list[str | None], differ: int | None
) -> None:
    answers = [("", {"commit": commit}, f"host-{rank}") for rank, commit in enumerate(commits)]
    ranks = Some(answers)
    if differ is None:
        assert ranks.same_on_all(lambda: "text", lambda text: {"commit": commits[0]}) == "text"
        return
    with pytest.raises(UserError, match=rf"^rank {differ} of 3 \(on host-{differ}\) has another commit"):
        ranks.same_on_all(lambda: "text", lambda text: {"commit": commits[0]})
