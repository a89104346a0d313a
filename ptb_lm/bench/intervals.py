"""The statistics of the benchmark: spreads, and confidence intervals of ratios. Pure functions.

The ratio of a variant to the baseline is worked on as a logarithm, paired by round: in a round both are
measured within minutes of each other, so a machine that slows down slows both, and the ratio stays.
Logarithms make "twice as fast" and "half as fast" the same distance, and the interval of a ratio and of its
inverse the same statement.

Rounds lie within processes (Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013). What a
process draws once (memory layout, autotuning, placement) is the same in all of its rounds, so these are not
independent. The unit is therefore the process: the interval is Student's t on the means of the units' log
ratios. Rounds that share a process of either side, the variant's or the baseline's, are of one unit; where
that leaves fewer than three, rounds that share a process of the side that had more, and the interval lacks
what the other's processes draw. Below three units again, the rounds themselves are taken, and it lacks what
any process draws. A bootstrap of five values would be too narrow; t is exact for normal errors however few
they are.

An interval covers the differences between processes within one session on one machine. It does not cover
another machine, another build of the libraries, another day's temperature or neighbours. Each interval is a
95 % statement by itself: of twenty, one misses on average. The fastest of several is chosen by the same rows,
and so is ahead by chance, too: what is said of it takes wider ones (`joint_confidence`).
"""

import functools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

Round = TypeVar("Round")  # what tells rounds apart
Process: TypeAlias = Hashable  # what tells processes apart

CONFIDENCE = 0.95
WIDEST = 700.0  # of a ratio's logarithm: exp of much more is no float
NORMAL_TENTH = -1.2816  # the 0.1 quantile of the normal distribution
PROCESSES_FOR_A_UNIT = 3  # with two, one degree of freedom makes an interval of 12.7 standard errors


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The spread of some measurements of one thing, in their own unit."""

    count: int
    median: float
    low: float  # the lower quartile
    high: float  # the upper quartile
    mean: float
    deviation: float  # standard deviation of a sample; 0 for a single measurement


@dataclass(frozen=True, kw_only=True)
class LogMean:
    """The mean of logarithms, of a speed or of its ratio to another, with what is known of its error.

    Attributes:
        mean: The mean, in nats.
        error: The standard error of the mean; None for a single unit, which says nothing about its error, and
            for a variant beside itself, which has none.
        freedom: Degrees of freedom of the error; 0 without one.
        unit: The thing that was taken as independent.
        units: The number of these.
    """

    mean: float
    error: float | None
    freedom: float
    unit: Literal["process", "round"] = "process"
    units: int = 1

    @property
    def estimate(self) -> float:
        """The geometric mean."""
        return math.exp(self.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval (low, high) of the ratio; None without an error."""
        return self.interval_of(CONFIDENCE)

    def interval_of(self, confidence: float) -> tuple[float, float] | None:
        """Return the interval of a confidence, between 0 and 1; None without an error."""
        if self.error is None:
            return None
        half = t_quantile(self.freedom, confidence=confidence) * self.error
        # Of two rounds it may be so wide that no float holds its ends.
        return math.exp(max(self.mean - half, -WIDEST)), math.exp(min(self.mean + half, WIDEST))

    @property
    def differs(self) -> bool | None:
        """Whether the interval leaves out 1, so that the two differ; None without an interval."""
        return None if self.interval is None else not self.interval[0] <= 1 <= self.interval[1]

    @property
    def half_width(self) -> float | None:
        """The part of the interval above the estimate, as a fraction of it; None without an interval."""
        return None if self.interval is None else self.interval[1] / self.estimate - 1


def spread(values: Sequence[float]) -> Spread:
    """Describe measurements; quartiles interpolate linearly, as NumPy's percentiles do.

    Raises:
        statistics.StatisticsError: There are none.
    """
    low = high = statistics.median(values)
    deviation = 0.0
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        deviation = statistics.stdev(values)
    return Spread(
        count=len(values),
        median=statistics.median(values),
        low=low,
        high=high,
        mean=statistics.fmean(values),
        deviation=deviation,
    )


def ratio(
    baseline: Mapping[Round, float],
    variant: Mapping[Round, float],
    processes: Mapping[Round, tuple[Process, Process]],
) -> LogMean | None:
    """Compare a variant with the baseline in the rounds that both have.

    Args:
        baseline: Seconds a step of the baseline, by round.
        variant: Seconds a step of the variant, by round.
        processes: (the baseline's process, the variant's process), by round.

    Returns:
        The ratio, above 1 where the variant is faster; None if no round has both.
    """
    logs = {
        number: math.log(baseline[number] / seconds)
        for number, seconds in variant.items()
        if number in baseline
    }
    if not logs:
        return None
    pairs = {number: processes[number] for number in logs}

    def mean_of_units(pairs: Mapping[Round, tuple[Process, Process]]) -> LogMean:
        units = _split_independent(pairs)
        return _log_mean([statistics.fmean(logs[number] for number in unit) for unit in units], "process")

    mean = mean_of_units(pairs)
    if mean.units < PROCESSES_FOR_A_UNIT:
        # Where the processes of one side lasted longer than the other's, all rounds may hang together. If the
        # sides have as many processes, the wider interval counts: whichever of them is the baseline.
        sides = [{number: (pair[side], pair[side]) for number, pair in pairs.items()} for side in (0, 1)]
        mean = max(map(mean_of_units, sides), key=lambda mean: (mean.units, mean.error or 0.0))
    return mean if mean.units >= PROCESSES_FOR_A_UNIT else _log_mean(list(logs.values()), "round")


def _split_independent(processes: Mapping[Round, tuple[Process, Process]]) -> list[list[Round]]:
    """Group rounds so that no process of either side worked in two groups."""
    groups: list[tuple[list[Round], set[Process], set[Process]]] = []
    for number, (base, own) in processes.items():
        union: tuple[list[Round], set[Process], set[Process]] = ([number], {base}, {own})
        apart = []
        for group in groups:
            if group[1] & union[1] or group[2] & union[2]:
                union = (group[0] + union[0], group[1] | union[1], group[2] | union[2])
            else:
                apart.append(group)
        groups = [*apart, union]
    return [rounds for rounds, _, _ in groups]


def difference(a: LogMean, b: LogMean) -> LogMean:
    """Return the log ratio of b to a. The errors of both add up: Welch's t, its freedom rounded down."""
    mean = b.mean - a.mean
    if a.error is None or b.error is None:
        return LogMean(mean=mean, error=None, freedom=0)
    variances = a.error**2, b.error**2
    total = sum(variances)
    if total == 0:
        return LogMean(mean=mean, error=0.0, freedom=min(a.freedom, b.freedom))
    freedom = total**2 / (variances[0] ** 2 / a.freedom + variances[1] ** 2 / b.freedom)
    return LogMean(mean=mean, error=math.sqrt(total), freedom=max(1, math.floor(freedom + 1e-9)))


def count_units(deviation: float, *, freedom: float, half_width: float, most: int) -> int:
    """Return the number of units with which nine of ten intervals are at most this wide.

    Args:
        deviation: Standard deviation of a unit, as it was estimated.
        freedom: Degrees of freedom of that estimate. The deviation may be larger by so much as the 0.1
            quantile of chi-squared tells, in Wilson and Hilferty's approximation.
        half_width: Half the width of the interval, in nats.
        most: Number of units at most.
    """
    part = 2 / (9 * freedom)
    largest = deviation / (1 - part + NORMAL_TENTH * math.sqrt(part)) ** 1.5
    units = 2
    while units < most and t_quantile(units - 1) * largest / math.sqrt(units) > half_width:
        units += 1
    return units


def joint_confidence(things: int) -> float:
    """Return the confidence of the interval of each pair of things for 95 % that all hold at once.

    It is Bonferroni's, for all pairs, as any of them may come out as the fastest.
    """
    return 1 - (1 - CONFIDENCE) / max(1, math.comb(things, 2))


@functools.cache
def t_quantile(freedom: float, *, confidence: float = CONFIDENCE) -> float:
    """Return the t that |T| exceeds with probability 1 - confidence, by bisection of the exact distribution.

    Args:
        freedom: Degrees of freedom, a whole number of at least 1.
        confidence: Between 0 and 1.
    """
    low, high = 0.0, 1.0
    while _t_probability(high, int(freedom)) < confidence:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        if _t_probability(middle, int(freedom)) < confidence:
            low = middle
        else:
            high = middle
    return high


def _t_probability(t: float, freedom: int) -> float:
    """Return P(|T| <= t), a finite sum for whole degrees of freedom: Abramowitz and Stegun 26.7.3 and 4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= square * (k + 1) / (k + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def geometric_mean(units: Sequence[Sequence[float]]) -> LogMean:
    """Return the geometric mean of positive values.

    Args:
        units: The values of each process. The processes' means are taken as independent; of fewer than three
            processes the values are.
    """
    logs = [[math.log(value) for value in unit] for unit in units]
    if len(logs) < PROCESSES_FOR_A_UNIT:
        return _log_mean([log for unit in logs for log in unit], "round")
    return _log_mean([statistics.fmean(unit) for unit in logs], "process")


def _log_mean(logs: Sequence[float], unit: Literal["process", "round"]) -> LogMean:
    count = len(logs)
    error = statistics.stdev(logs) / math.sqrt(count) if count > 1 else None
    return LogMean(mean=statistics.fmean(logs), error=error, freedom=count - 1, unit=unit, units=count)
