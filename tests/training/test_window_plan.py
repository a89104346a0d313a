"""The windows of a run's epochs: where they end, how long they are, and that seed and epoch alone decide."""

import itertools
import math

import numpy as np
import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model.presets import SMALL
from ptb_lm.training.window_plan import WindowPlan

BATCH = 3


def plan(length: int, *, seed: int = 1, num_steps: int = 20, varies: bool = True) -> WindowPlan:
    """The plan of a training text of so many words a row, and two words more than that."""
    ids = np.arange(BATCH * length + 2, dtype=np.int32)
    data = Corpus(Vocabulary(["<eos>"]), {"train": ids, "valid": ids[:99], "test": ids[:99]})
    config = SMALL.replace(batch_size=BATCH, num_steps=num_steps, vary_num_steps=varies)
    return WindowPlan(data, config, seed=seed)


def rows(length: int) -> np.ndarray:
    return corpus.rows(np.arange(BATCH * length + 2, dtype=np.int32), BATCH)


def lengths(of: WindowPlan, length: int, epoch: int) -> list[int]:
    return [x_BT.shape[1] for x_BT, _ in of.windows(rows(length), epoch)]


@pytest.mark.parametrize("length", [21, 22, 23, 24, 25, 26, 27, 28, 30, 40, 500])
@pytest.mark.parametrize("seed", range(5))
def test_random_windows_cut_each_row_into_parts_that_join(length: int, seed: int) -> None:
    """A rest of a single target is left out, as in AWD-LSTM; nothing else is."""
    own, rows_BL = plan(length, seed=seed), rows(length)
    for epoch in range(3):
        windows = list(own.windows(rows_BL, epoch))
        x_BL, y_BL = (np.concatenate(parts, axis=1) for parts in zip(*windows, strict=True))
        assert x_BL.shape[1] in (length - 1, length - 2)
        np.testing.assert_array_equal(x_BL, rows_BL[:, : x_BL.shape[1]])
        np.testing.assert_array_equal(y_BL, rows_BL[:, 1 : x_BL.shape[1] + 1])
        shapes = [(x_BT.shape, y_BT.shape) for x_BT, y_BT in windows]
        found = lengths(own, length, epoch)
        assert shapes == [((BATCH, steps), (BATCH, steps)) for steps in found]
        assert min(found[:-1], default=5) >= 5
        assert found[-1] >= 2
        assert len(windows) == own.steps(epoch)
        # The count of targets is that of the windows, after any number of steps.
        counts = [BATCH * steps for steps in found]
        assert [own.tokens(epoch, done) for done in range(len(windows) + 1)] == [
            0,
            *itertools.accumulate(counts),
        ]


def test_usual_windows_are_those_of_the_corpus() -> None:
    """All of one length; the rest of a row is left out, and every epoch is the same."""
    own, rows_BL = plan(50, num_steps=7, varies=False), rows(50)
    expected = list(corpus.windows(rows_BL, 7))
    for epoch, start in ((0, 0), (3, 0), (1, 4), (2, 7)):
        found = list(own.windows(rows_BL, epoch, start=start))
        assert len(found) == 7 - start == own.steps(epoch) - start
        for ours, theirs in zip(found, expected[start:], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert (own.usual_steps, own.steps_before(3), own.tokens(2, 5)) == (7, 21, 5 * 7 * BATCH)


def test_lengths_are_distributed_as_published() -> None:
    """max(5, int(N(m, 5))), where m is --num-steps, or in 5 of 100 windows half of it; by its quantiles."""
    mean = 70
    found = np.concatenate([lengths(plan(200_000, num_steps=mean), 200_000, epoch)[:-1] for epoch in (0, 1)])
    count = len(found)
    assert count > 5000

    def normal_below(bound: float, centre: float) -> float:
        return (1 + math.erf((bound - centre) / (5 * math.sqrt(2)))) / 2

    for bound in (25, 30, 35, 40, 50, 60, 65, 70, 75, 80):
        # int() cuts the fraction off: a length below the bound was drawn below it, too.
        expected = 0.95 * normal_below(bound, mean) + 0.05 * normal_below(bound, mean / 2)
        deviation = math.sqrt(expected * (1 - expected) / count)
        assert (found < bound).mean() == pytest.approx(expected, abs=4.5 * deviation), bound
    assert found.mean() == pytest.approx(0.95 * 69.5 + 0.05 * 34.5, abs=4.5 * 9.2 / math.sqrt(count))


def test_short_windows_have_five_steps_at_least() -> None:
    found = lengths(plan(20_000, num_steps=4), 20_000, 0)[:-1]
    assert min(found) == 5
    assert max(found) > 10
    # Of N(4, 5) and N(2, 5) below 6: about two of three.
    assert 0.55 < found.count(5) / len(found) < 0.75


def test_seed_and_epoch_decide_and_nothing_else() -> None:
    """Another process, or a rank with other rows, has the same windows; another epoch or seed has others."""
    every = [lengths(plan(3000, seed=seed), 3000, epoch) for seed in (1, 2) for epoch in range(4)]
    assert len({tuple(each) for each in every}) == len(every)
    own = plan(3000)
    # In whatever order they are looked at.
    for epoch in (3, 0, 2, 3, 1, 0):
        assert lengths(own, 3000, epoch) == every[epoch]
        assert own.steps(epoch) == len(every[epoch])
        assert own.steps_before(epoch) == sum(map(len, every[:epoch]))
    some_rows = [x_BT.shape[1] for x_BT, _ in own.windows(rows(3000)[1:2], 2)]
    assert some_rows == every[2]


@pytest.mark.parametrize("start", [0, 1, 7, 40])
def test_an_epoch_goes_on_where_it_was_stopped(start: int) -> None:
    own, rows_BL = plan(1000), rows(1000)
    whole, rest = (list(own.windows(rows_BL, 2, start=first)) for first in (0, start))
    assert len(rest) == len(whole) - start
    for ours, theirs in zip(rest, whole[start:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("varies", [False, True])
def test_a_text_without_a_window_of_the_usual_length_is_refused(varies: bool) -> None:
    assert plan(21, varies=varies).steps(0) >= 1
    with pytest.raises(UserError, match=r"train split .* at least 63"):
        plan(20, varies=varies)
