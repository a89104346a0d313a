"""Which columns a suite's table has: those of the published tables that it makes again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptb_lm.bench.reporting.formats import NOTHING, interval, of_limit, percent, significant, times
from ptb_lm.bench.results import Group, Result


@dataclass(frozen=True)
class Measure:
    """A column: its title, which may name {unit} and {baseline}, and what it shows of a measured result."""

    title: str
    show: Callable[[Result], str]

    def heading(self, group: Group) -> str:
        """Return the title for a group."""
        unit = group.work.unit if group.work else "items"
        return self.title.format(unit=unit, baseline=group.label(group.baseline))


def _seconds(result: Result) -> str:
    return significant(result.seconds.median, 4) if result.seconds else NOTHING


def _milliseconds(result: Result) -> str:
    return significant(result.seconds.median * 1e3) if result.seconds else NOTHING


def _elapsed(result: Result) -> str:
    seconds, steps = result.elapsed
    return f"{significant(seconds)} / {steps}" if steps else NOTHING


def _mean_and_deviation(result: Result) -> str:
    if result.seconds is None:
        return NOTHING
    mean, deviation = result.seconds.mean * 1e3, result.seconds.deviation * 1e3
    return (
        f"{significant(mean)} ± {significant(deviation, 2)}"
        if result.seconds.count > 1
        else significant(mean)
    )


def _rate(result: Result) -> str:
    return significant(result.rate.median, 4) if result.rate else NOTHING


def _ratio(result: Result) -> str:
    return times(result.ratio.estimate) if result.ratio else NOTHING


def _gemm_fraction(result: Result) -> str:
    return of_limit(result.gemm_fraction.median) if result.gemm_fraction else NOTHING


def _roofline_fraction(result: Result) -> str:
    return percent(result.roofline_fraction.median) if result.roofline_fraction else NOTHING


_RATE = Measure("{unit} a second", _rate)
_TIME = Measure("ms a step", _milliseconds)
_SPEED_UP = Measure("speed-up over {baseline}", _ratio)
_INTERVAL = Measure("95 % interval", lambda result: interval(result.ratio))
_GEMM = Measure("of GEMM rate", _gemm_fraction)
_ROOFLINE = Measure("of roofline", _roofline_fraction)

FORMS: Mapping[str, tuple[Measure, ...]] = {
    "ptb": (_RATE, _SPEED_UP, _INTERVAL, _TIME, _GEMM),
    "peak": (_RATE, _SPEED_UP, _INTERVAL, _TIME, _GEMM, _ROOFLINE),
    "stacked-lm": (
        Measure("wall time a batch (s)", _seconds),
        Measure("elapsed (s / batches)", _elapsed),
        _RATE,
        _SPEED_UP,
        _INTERVAL,
    ),
    "acoustic": (
        Measure("ms a batch, mean ± sd of rounds", _mean_and_deviation),
        _SPEED_UP,
        _INTERVAL,
        _RATE,
        _GEMM,
    ),
}
DEFAULT = (_TIME, _RATE, _SPEED_UP, _INTERVAL, _GEMM)


def of(suite: str) -> tuple[Measure, ...]:
    """Return the columns of a suite's tables."""
    return FORMS.get(suite, DEFAULT)
