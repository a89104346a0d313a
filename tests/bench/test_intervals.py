"""The benchmark's statistics, against known values and against simulations of what they promise."""

import math
import statistics

import numpy as np
import pytest

from ptb_lm.bench import intervals
from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.run import runner


@pytest.mark.parametrize(
    ("freedom", "t"),
    # From printed tables of Student's t, two-sided 95 %.
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (9, 2.2622),
        (10, 2.2281),
        (30, 2.0423),
        (100_000, statistics.NormalDist().inv_cdf(0.975)),
    ],
)
def test_the_quantiles_of_t_are_those_of_the_table(freedom: int, t: float) -> None:
    assert intervals.t_quantile(freedom) == pytest.approx(t, abs=5e-5)
    assert intervals.t_quantile(4, confidence=0.99) == pytest.approx(4.6041, abs=5e-5)


def test_the_spread_is_numpys_and_of_one_there_is_none() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    spread = intervals.spread(values)
    assert [spread.low, spread.median, spread.high] == pytest.approx(np.percentile(values, [25, 50, 75]))
    assert (spread.mean, spread.deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert spread.count == 6
    one = intervals.spread([2.5])
    assert (one.low, one.median, one.high, one.deviation) == (2.5, 2.5, 2.5, 0.0)


def test_a_geometric_mean_has_the_interval_of_its_processes_by_hand() -> None:
    """The means of three processes are 100 e^-0.1, 100 and 100 e^0.1, whatever their blocks are."""
    units = [[100 * math.exp(mean + e) for e in (-0.3, 0.3)] for mean in (-0.1, 0, 0.1)]
    mean = intervals.geometric_mean(units)
    half = 4.30265 * 0.1 / math.sqrt(3)
    assert mean.estimate == pytest.approx(100)
    assert mean.interval == pytest.approx((100 * math.exp(-half), 100 * math.exp(half)), rel=1e-5)
    assert intervals.geometric_mean(units[:2]).freedom == 3, "of two processes the four blocks are taken"
    assert intervals.geometric_mean([[5.0]]).interval is None


def test_an_interval_whose_ends_no_float_holds_is_cut() -> None:
    """Of two rounds that differ by a fifth, compared with all other variants of a large suite."""
    mean = LogMean(mean=0.0, error=0.2, freedom=1, unit="round", units=2)
    found = mean.interval_of(intervals.joint_confidence(33))
    assert found
    assert 0 < found[0] < 1 < found[1] < math.inf


def test_the_interval_is_that_of_a_paired_t_test_by_hand() -> None:
    # Log ratios ln 2 + (-0.1, 0, 0.1): mean ln 2, standard error 0.1 / sqrt(3), t of 2 degrees 4.30265.
    variant = {0: 1.0, 1: 2.0, 2: 5.0}
    baseline = {n: 2 * s * math.exp(e) for (n, s), e in zip(variant.items(), (-0.1, 0, 0.1), strict=True)}
    ratio = intervals.ratio(baseline, variant, dict.fromkeys(range(3), (1, 7)))
    half = 4.30265 * 0.1 / math.sqrt(3)
    assert ratio.estimate == pytest.approx(2)
    assert ratio.interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-5)
    assert ratio.half_width == pytest.approx(math.expm1(half), rel=1e-4)
    assert (ratio.unit, ratio.units, ratio.freedom) == ("round", 3, 2)


@pytest.mark.parametrize(
    ("processes", "units"),
    [
        ([(2, 1)] * 6, ("round", 5)),
        # One side's process lasted longer than the other's.
        ([(9, 1), (9, 1), (9, 1), (9, 2), (9, 2), (9, 3)], ("process", 3)),
        # Both have as many, and all rounds but one hang together.
        ([(1, 1), (1, 1), (2, 1), (2, 2), (2, 2), (3, 3)], ("process", 3)),
    ],
)
def test_the_inverse_ratio_has_the_inverse_interval(
    processes: list[tuple[int, int]], units: tuple[str, int]
) -> None:
    a = {0: 1.0, 1: 1.3, 2: 1.2, 3: 1.25, 5: 1.1}
    b = {0: 2.1, 1: 2.5, 2: 2.2, 3: 2.3, 4: 9.0, 5: 2.6}
    there = intervals.ratio(a, b, dict(enumerate(processes)))
    back = intervals.ratio(b, a, {n: (own, base) for n, (base, own) in enumerate(processes)})
    assert (there.unit, there.units) == (back.unit, back.units) == units, "only the rounds that both have"
    assert there.estimate == pytest.approx(1 / back.estimate)
    assert there.interval == pytest.approx([1 / end for end in reversed(back.interval)])


def test_of_one_common_round_there_is_no_interval_and_of_none_no_ratio() -> None:
    assert intervals.ratio({0: 1.0}, {1: 1.0}, {1: (2, 1)}) is None
    ratio = intervals.ratio({0: 3.0}, {0: 2.0}, {0: (2, 1)})
    assert (ratio.estimate, ratio.interval, ratio.half_width) == (pytest.approx(1.5), None, None)


@pytest.mark.parametrize(
    ("processes", "unit", "units"), [(2, "round", 6), (3, "process", 3), (6, "process", 6)]
)
def test_from_three_processes_on_the_unit_is_the_process(processes: int, unit: str, units: int) -> None:
    seconds = dict(enumerate([1.0, 1.1, 0.9, 1.2, 1.05, 0.97]))
    for base_process in (1, 2, processes):  # one that lasted longer than the variant's, and one that did not
        of = {n: (n % base_process, n % processes) for n in range(6)}
        ratio = intervals.ratio(dict.fromkeys(range(6), 2.0), seconds, of)
        assert (ratio.unit, ratio.units) == (unit, units)


def test_rounds_that_share_a_process_of_either_side_are_one_unit() -> None:
    logs = [0.0, 0.2, 0.4, 0.7, 1.0, 1.6]
    seconds = {n: math.exp(-value) for n, value in enumerate(logs)}
    # The baseline's second process worked beside two of the variant's.
    of = {0: (1, 1), 1: (1, 1), 2: (2, 2), 3: (2, 3), 4: (3, 4), 5: (4, 5)}
    ratio = intervals.ratio(dict.fromkeys(of, 1.0), seconds, of)
    means = [0.1, 0.55, 1.0, 1.6]
    assert (ratio.unit, ratio.units) == ("process", 4)
    assert ratio.mean == pytest.approx(statistics.fmean(means))
    assert ratio.error == pytest.approx(statistics.stdev(means) / 2)


def test_a_process_counts_once_however_many_rounds_it_did() -> None:
    logs = {0: 0.0, 1: 0.2, 2: 0.4, 3: 0.7, 4: 1.0}
    seconds = {n: math.exp(-value) for n, value in logs.items()}
    ratio = intervals.ratio(
        dict.fromkeys(logs, 1.0), seconds, {n: (own, own) for n, own in enumerate([1, 1, 1, 2, 3])}
    )
    assert ratio.mean == pytest.approx((0.2 + 0.7 + 1.0) / 3)
    assert ratio.error == pytest.approx(statistics.stdev([0.2, 0.7, 1.0]) / math.sqrt(3))


def _coverage(*, process_noise: float, rounds_a_process: int, as_one_process: bool, seed: int) -> float:
    """Return how often an interval of 5 processes' rounds holds the true ratio, 1.7; the machine drifts."""
    rng = np.random.default_rng(seed)
    repeats, count = 2000, 5 * rounds_a_process
    processes = {n: (0, 0) if as_one_process else (n // rounds_a_process,) * 2 for n in range(count)}
    hits = 0
    for _ in range(repeats):
        drift = rng.normal(0, 0.3, count)
        sides = [
            np.repeat(rng.normal(0, process_noise, 5), rounds_a_process) + rng.normal(0, 0.05, count)
            for _ in range(2)
        ]
        baseline, variant = (dict(enumerate(np.exp(drift + own))) for own in sides)
        variant = {n: seconds / 1.7 for n, seconds in variant.items()}
        ratio = intervals.ratio(baseline, variant, processes)
        hits += ratio.interval[0] <= 1.7 <= ratio.interval[1]
    return hits / repeats


# The standard error of 2000 repeats at 95 % is 0.5 %: four of them are allowed.


@pytest.mark.parametrize(
    ("process_noise", "rounds_a_process", "as_one_process", "seed"),
    [
        (0, 1, True, 1),
        # What both sides' processes draw once.
        (0.1, 1, False, 2),
        (0.1, 4, False, 2),
    ],
)
def test_an_interval_covers_the_truth_as_often_as_it_says(
    process_noise: float, rounds_a_process: int, as_one_process: bool, seed: int
) -> None:
    covered = _coverage(
        process_noise=process_noise,
        rounds_a_process=rounds_a_process,
        as_one_process=as_one_process,
        seed=seed,
    )
    assert covered == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("noise", [0.03, 0.06])
def test_an_interval_covers_the_truth_where_its_processes_were_planned_by_their_spread(noise: float) -> None:
    """Six variants; the first processes decide how many there are, and count as well."""
    rng, repeats, most = np.random.default_rng(1), 2000, 15
    processes = {n: (n, n) for n in range(most)}
    planned, hits = [], 0
    for _ in range(repeats):
        baseline, *others = (dict(enumerate(np.exp(rng.normal(0, noise, most)))) for _ in range(7))
        first = {n: baseline[n] for n in range(runner.PILOT)}
        ratios = [intervals.ratio(first, {n: each[n] for n in first}, processes) for each in others]
        count = runner.count_processes(ratios, least=5, affordable=most)
        ratio = intervals.ratio(baseline, {n: others[0][n] for n in range(count)}, processes)
        planned.append(ratio.units)
        hits += not ratio.differs
    assert min(planned) < max(planned) <= most, "it decides"
    assert hits / repeats == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("variants", [6, 20])
def test_nine_of_ten_intervals_of_a_plan_are_as_narrow_as_it_says(variants: int) -> None:
    """However many variants share the baseline by whose processes they are planned."""
    rng, processes = np.random.default_rng(1), {n: (n, n) for n in range(runner.MOST)}
    narrow = []
    for _ in range(300):
        baseline, *others = np.exp(rng.normal(0, 0.06, (1 + variants, runner.MOST)))
        pairs = [(dict(enumerate(baseline)), dict(enumerate(each))) for each in others]
        first = [({n: base[n] for n in range(runner.PILOT)}, own) for base, own in pairs]
        ratios = [intervals.ratio(base, own, processes) for base, own in first]
        count = runner.count_processes(ratios, least=5, affordable=runner.MOST)
        base, own = pairs[0]
        ratio = intervals.ratio(base, {n: own[n] for n in range(count)}, processes)
        narrow.append(ratio.half_width <= runner.RESOLUTION)
    assert statistics.fmean(narrow) > 0.9


def test_rounds_as_units_would_not_cover_what_processes_draw_once() -> None:
    """Why the unit is the process: the same data, taken as independent rounds, claim too much."""
    assert _coverage(process_noise=0.1, rounds_a_process=4, as_one_process=True, seed=2) < 0.85


def test_the_difference_combines_both_errors_as_welch_does() -> None:
    # Welch's own formula, worked out: variances 0.04 and 0.01, freedom 0.05^2 / (0.04^2 / 4 + 0.01^2 / 9).
    a, b = LogMean(mean=0.5, error=0.2, freedom=4), LogMean(mean=0.8, error=0.1, freedom=9)
    change = intervals.difference(a, b)
    assert change.mean == pytest.approx(0.3)
    assert change.error == pytest.approx(math.sqrt(0.05))
    assert change.freedom == math.floor(0.0025 / (0.0016 / 4 + 0.0001 / 9)) == 6


def test_the_difference_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits, repeats = 0, 4000
    for _ in range(repeats):
        sides = []
        for mean, noise, count in ((0.2, 0.1, 5), (0.5, 0.03, 8)):
            values = rng.normal(mean, noise, count)
            error = float(values.std(ddof=1) / math.sqrt(count))
            sides.append(LogMean(mean=float(values.mean()), error=error, freedom=count - 1))
        interval = intervals.difference(*sides).interval
        hits += interval[0] <= math.exp(0.3) <= interval[1]
    # Freedom is rounded down, so that it may cover a little more than it says.
    assert 0.94 < hits / repeats < 0.97


@pytest.mark.parametrize(
    ("one", "other", "mean", "interval"),
    [
        (LogMean(mean=0.5, error=None, freedom=0), LogMean(mean=0.8, error=0.1, freedom=9), 0.3, None),
        (LogMean(mean=0.5, error=0.0, freedom=2), LogMean(mean=0.5, error=0.0, freedom=3), 0, (1.0, 1.0)),
    ],
)
def test_the_difference_to_a_ratio_without_an_error_or_a_spread(
    one: LogMean, other: LogMean, mean: float, interval: tuple[float, float] | None
) -> None:
    change = intervals.difference(one, other)
    assert (change.estimate, change.interval) == (pytest.approx(math.exp(mean)), interval)
