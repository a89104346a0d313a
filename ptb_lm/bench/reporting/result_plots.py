"""The plots of a group: speed-ups with their intervals, and fractions of the machine's GEMM rate."""

from collections.abc import Iterator

from ptb_lm.bench.findings import Group, Result
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.reporting.document import Bar, Bars


def plots(group: Group, *, with_pass: bool) -> Iterator[Bars]:
    """Yield the plots for which there are figures; whiskers are intervals, and quartiles for the fractions.

    Args:
        group: The results.
        with_pass: Whether the titles name the pass, to tell plots of one workload apart.
    """
    of = f", {group.pass_name}" if with_pass else ""
    ratios = [bar for result in group.results if (bar := _speed_up(result))]
    if len(ratios) > 1:
        title = f"Speed-up over {group.label(group.baseline)}{of}"
        yield Bars(title=title, bars=ratios, origin=1)
    fractions = [bar for result in group.results if (bar := _fraction(result))]
    if fractions:
        title = f"Fraction of the GEMM rate{of}"
        yield Bars(title=title, bars=fractions, origin=0, percent=True)


def _speed_up(result: Result) -> Bar | None:
    if result.ratio is None:
        return None
    low, high = result.ratio.interval or (None, None)
    return Bar(
        label=result.label,
        value=result.ratio.estimate,
        low=low,
        high=high,
        text=formats.ratio(result.ratio),
    )


def _fraction(result: Result) -> Bar | None:
    fraction = result.gemm_fraction
    if fraction is None:
        return None
    # A bar ends at the limit, also where that was measured too low.
    median, low, high = (min(each, 1.0) for each in (fraction.median, fraction.low, fraction.high))
    spread = fraction.count > 1
    return Bar(
        label=result.label,
        value=median,
        low=low if spread else None,
        high=high if spread else None,
        text=formats.of_limit(fraction.median),
    )
