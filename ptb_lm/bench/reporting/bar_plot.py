"""Bars, drawn with matplotlib: ratios or fractions with a line of text each; and speeds by cell type."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.document import Bar, BarPlot, SpeedPlot
from ptb_lm.bench.reporting.formats import shorten_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_HEIGHT = 0.40  # inches, with its line of text
_THIN_BAR = 0.17  # inches, without a line of text
_GAP = 0.6  # between the bars of two cell types, in bars
_WIDE_RANGE = 6.0  # largest to smallest ratio, above which the axis is logarithmic
_SAME, _INK = "#8a8f98", "C6"


def height(plot: BarPlot | SpeedPlot) -> float:
    """Return the height of a plot in inches."""
    if isinstance(plot, BarPlot):
        return _BAR_HEIGHT * len(plot.bars) + 0.6
    bars = sum(_panel_height(panel) for panel in plot.panels.values())
    return _THIN_BAR * bars + 0.55 * len(plot.panels) + legend_height(plot)


def legend_height(plot: SpeedPlot) -> float:
    """Return the height in inches that the names of the frameworks take below the panels."""
    return 0.18 * ((len(_frameworks(plot)) + 1) // 2) + 0.1


def draw_bars(axes: "Axes", plot: BarPlot) -> None:
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
    axes.text(0.008, position - 0.29, shorten_label(bar.label), **above)
    axes.text(1, position - 0.29, bar.text, ha="right", **above)


def draw_speeds(figure: "Figure", plot: SpeedPlot) -> None:
    """Draw a panel for each workload; bars of a cell type stand together, a colour a framework."""
    frameworks = _frameworks(plot)
    heights = [_panel_height(panel) for panel in plot.panels.values()]
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (heading, panel) in zip(panels, plot.panels.items(), strict=True):
        axes.set_title(shorten_label(heading), fontsize="medium", loc="left")
        _draw_panel(axes, panel, frameworks)
    handles = [
        panels[0].barh(0, 0, **_look(place), label=shorten_label(name))
        for place, name in enumerate(frameworks)
    ]
    figure.legend(handles=handles, loc="lower left", ncols=2, fontsize="small")


def _draw_panel(axes: "Axes", panel: Mapping[str, Sequence[Bar]], frameworks: Sequence[str]) -> None:
    position, ticks = 0.0, {}
    for cell_type, bars in panel.items():
        ticks[cell_type] = position + (len(bars) - 1) / 2
        for bar in bars:
            axes.barh(position, bar.value, height=0.8, **_look(frameworks.index(bar.label)))
            if bar.low is not None and bar.high is not None:
                ends = [[bar.value - bar.low], [bar.high - bar.value]]
                axes.errorbar(bar.value, position, xerr=ends, color=_INK, elinewidth=1.1, capsize=2)
            end = bar.high or bar.value, position
            axes.annotate(
                bar.text, end, xytext=(4, 0), textcoords="offset points", va="center", fontsize="small"
            )
            position += 1
        position += _GAP
    longest = max(bar.high or bar.value for bars in panel.values() for bar in bars)
    axes.set_xlim(0, 1.2 * longest)  # with room for the numbers
    axes.set_ylim(position - _GAP - 0.4, -0.6)
    axes.set_yticks(list(ticks.values()), map(shorten_label, ticks))
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="x")


def _look(place: int) -> dict[str, Any]:
    """Return how a framework's bars look: a colour each, and beyond six also a hatch."""
    from matplotlib import rcParams

    hatch = ("", "////", "....")[place // 6 % 3]
    return {"facecolor": f"C{place % 6}", "hatch": hatch, "edgecolor": rcParams["axes.facecolor"], "lw": 0}


def _frameworks(plot: SpeedPlot) -> list[str]:
    panels = plot.panels.values()
    return list(dict.fromkeys(bar.label for panel in panels for bars in panel.values() for bar in bars))


def _panel_height(panel: Mapping[str, Sequence[Bar]]) -> float:
    """Return how many bars high a panel is."""
    return sum(map(len, panel.values())) + _GAP * len(panel)
