"""Bars with their label and value on a line above each, drawn with matplotlib."""

from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.document import Bar, Bars
from ptb_lm.bench.reporting.perplexity_plot import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE_RANGE = 6.0  # largest to smallest ratio, above which the axis is logarithmic
_SAME = "#8a8f98"


def draw_bars(axes: "Axes", plot: Bars) -> None:
    """Draw bars, the first on top; the axis is logarithmic where ratios lie far apart."""
    from matplotlib.ticker import LogLocator, NullLocator

    ends = [
        end for bar in plot.bars for end in (bar.value, bar.low, bar.high, plot.origin) if end is not None
    ]
    low, high = min(ends), max(ends)
    if plot.origin > 0 and high / low > _WIDE_RANGE:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        room = 0.06 * (high - low or 1)
        axes.set_xlim(low - room * (plot.origin > 0), high + room)
        axes.locator_params(axis="x", nbins=6)
    for position, bar in enumerate(plot.bars):
        _draw_bar(axes, bar, position, plot.origin)
    axes.axvline(plot.origin, color="C6", linestyle="-", linewidth=0.8)
    axes.set_ylim(len(plot.bars) - 0.42, -0.72)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    factor, unit = (100, " %") if plot.percent else (1, "×")
    axes.xaxis.set_major_formatter(lambda value, _: f"{factor * value:.4g}{unit}")


def _draw_bar(axes: "Axes", bar: Bar, position: int, origin: float) -> None:
    colour = _SAME if bar.value == origin else "C0" if bar.value > origin else "C1"
    axes.barh(position, bar.value - origin, left=origin, height=0.34, color=colour)
    if bar.value == origin:
        axes.plot([origin], [position], marker="D", markersize=5, color=colour)
    if bar.low is not None and bar.high is not None:
        ends = [[bar.value - bar.low], [bar.high - bar.value]]
        axes.errorbar(bar.value, position, xerr=ends, color="C6", elinewidth=1.1, capsize=3)
    above: dict[str, Any] = {
        "transform": axes.get_yaxis_transform(),
        "va": "bottom",
        # No line runs through a text.
        "bbox": {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.8},
    }
    axes.text(0.008, position - 0.29, shortened(bar.label), **above)
    axes.text(1, position - 0.29, bar.text, ha="right", **above)
