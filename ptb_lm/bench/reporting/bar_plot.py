"""Bars with their label and value on a line above each, drawn with matplotlib."""

from typing import TYPE_CHECKING

from ptb_lm.bench.reporting.document import Bar, Bars
from ptb_lm.bench.reporting.page_style import LIGHT
from ptb_lm.bench.reporting.plot_style import FASTER, INK, SAME, SLOWER, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE_RANGE = 6.0  # largest to smallest ratio, above which the axis is logarithmic


def draw_bars(axes: "Axes", plot: Bars) -> None:
    """Draw bars, the first on top; the axis is logarithmic where ratios lie far apart."""
    ends = [
        end for bar in plot.bars for end in (bar.value, bar.low, bar.high, plot.origin) if end is not None
    ]
    low, high = min(ends), max(ends)
    logarithmic = plot.origin > 0 and high / low > _WIDE_RANGE
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xlim(*_limits(low, high, plot.origin, logarithmic=logarithmic))
    for position, bar in enumerate(plot.bars):
        _draw_bar(axes, bar, position, plot.origin)
    axes.axvline(plot.origin, color=INK, linewidth=0.8)
    axes.set_ylim(len(plot.bars) - 0.42, -0.72)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x")
    axes.tick_params(axis="x", length=0, labelsize=8.5)
    _ticks(axes, plot, logarithmic=logarithmic)


def _limits(low: float, high: float, origin: float, *, logarithmic: bool) -> tuple[float, float]:
    if logarithmic:
        return low / 1.15, high * 1.15
    room = 0.06 * (high - low or 1)
    return (low - room if low < origin or origin > 0 else low), high + room


def _draw_bar(axes: "Axes", bar: Bar, position: int, origin: float) -> None:
    colour = SAME if bar.value == origin else FASTER if bar.value > origin else SLOWER
    axes.barh(position, bar.value - origin, left=origin, height=0.34, color=colour)
    if bar.value == origin:
        axes.plot([origin], [position], marker="D", markersize=5, color=colour)
    if bar.low is not None and bar.high is not None:
        axes.plot([bar.low, bar.high], [position, position], color=INK, linewidth=1.1)
        for end in (bar.low, bar.high):
            axes.plot([end, end], [position - 0.13, position + 0.13], color=INK, linewidth=1.1)
    line = axes.get_yaxis_transform()
    paper = {"facecolor": LIGHT["paper"], "edgecolor": "none", "pad": 0.8}  # no line runs through a text
    axes.text(0.008, position - 0.29, shortened(bar.label), transform=line, va="bottom", bbox=paper)
    axes.text(1, position - 0.29, bar.text, transform=line, va="bottom", ha="right", bbox=paper)


def _ticks(axes: "Axes", plot: Bars, *, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if logarithmic:
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    factor, unit = (100, " %") if plot.percent else (1, "×")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:.4g}{unit}"))
