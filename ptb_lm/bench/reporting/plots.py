"""Plots as SVG or PNG, with matplotlib: bars, and perplexities by epoch.

matplotlib is an extra, imported when something is drawn. A plot is as wide as a telephone's screen. How it
looks is in templates/*.mplstyle.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.document import Bar, BarPlot, CurvePlot, Plot, RunPlot
from ptb_lm.common import streams
from ptb_lm.common.errors import UserError, how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = Path(__file__).parent / "templates"
_WIDTH = 4.6  # inches
_BAR_HEIGHT = 0.40  # inches, with its line of text
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same figure is the same text
_WIDE_RANGE = 6.0  # largest to smallest ratio, above which the axis is logarithmic
_SAME = "#8a8f98"
_LONGEST_LABEL = 42  # characters; the whole label is in the table
# Column of metrics.jsonl -> how its line looks.
PERPLEXITIES: Mapping[str, dict[str, Any]] = {
    "train_perplexity": {"label": "train", "color": "C1", "linestyle": "--", "marker": "s"},
    "valid_perplexity": {"label": "valid", "color": "C0", "linestyle": "-", "marker": "o"},
    "unaveraged_valid_perplexity": {"label": "valid, unaveraged", "color": "C0", "linestyle": ":"},
}

MISSING = f"matplotlib is not installed; {how_to_install('bench')}"


def data_uri(plot: Plot, *, scheme: str) -> str:
    """Draw a plot as an SVG without paper, in the URI of an image.

    Args:
        plot: What to draw.
        scheme: The paper, "light" or "dark".

    Raises:
        UserError: matplotlib is not installed.
    """
    drawn = _drawn(plot, scheme, format="svg", metadata=_NO_METADATA, transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}"


def to_file(plot: Plot, *, kind: str) -> bytes:
    """Draw a plot as a file of its own.

    Args:
        plot: What to draw.
        kind: "svg" or "png".

    Raises:
        UserError: matplotlib is not installed.
    """
    saved: dict[str, Any] = {"metadata": _NO_METADATA} if kind == "svg" else {"dpi": 200}
    return _drawn(plot, "light", size=1.3, with_title=True, format=kind, **saved)


def style_sheets(scheme: str) -> list[Path]:
    """Return matplotlib's style sheets for a paper, "light" or "dark"."""
    return [_STYLES / f"{each}.mplstyle" for each in dict.fromkeys(("light", scheme))]


def _drawn(plot: Plot, scheme: str, *, size: float = 1.0, with_title: bool = False, **saved: Any) -> bytes:
    """Draw a plot as a file; `saved` is of matplotlib's savefig."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(f"there are no plots; {MISSING}") from None
    with style.context(style_sheets(scheme)):
        figure = Figure(figsize=(size * _WIDTH, size * _height(plot)))
        axes = _draw(figure, plot)
        if with_title:
            axes.set_title(shorten_label(plot.title), fontsize="medium", loc="left")
        figure.align_ylabels()
        figure.tight_layout(pad=0.3)
        buffer = io.BytesIO()
        figure.savefig(buffer, **saved)
    return buffer.getvalue()


def _height(plot: Plot) -> float:
    if isinstance(plot, BarPlot):
        return _BAR_HEIGHT * len(plot.bars) + 0.6
    return 3.6 if isinstance(plot, RunPlot) and plot.speeds else 2.9


def _draw(figure: "Figure", plot: Plot) -> "Axes":
    """Draw a plot; return the upper axes."""
    if isinstance(plot, RunPlot) and plot.speeds:
        axes: Axes
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        draw_speeds(below, plot.speeds)
    else:
        axes = figure.add_subplot()
    if isinstance(plot, BarPlot):
        draw_bars(axes, plot)
    elif isinstance(plot, RunPlot):
        draw_curves(axes, plot)
    else:
        draw_lines(axes, plot)
    axes.label_outer()
    return axes


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


def draw_curves(axes: "Axes", plot: RunPlot) -> None:
    """Draw a run's perplexities by epoch; a line has a gap where one is NaN."""
    for name, points in plot.lines:
        axes.plot(*zip(*points, strict=True), gid=name, **PERPLEXITIES[name])
    _perplexity_axis(axes)
    _epoch_axis(axes, [points for _, points in plot.lines])


def draw_speeds(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    """Draw words per second by epoch, from 0."""
    epochs, speeds = zip(*points, strict=True)
    axes.plot(epochs, speeds, gid="words_per_second", color="C6", linestyle="-", marker="o")
    axes.set_ylim(0, 1.1 * max(speeds) or 1)
    axes.locator_params(axis="y", nbins=4)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("words/s")
    _epoch_axis(axes, [points])


def draw_lines(axes: "Axes", plot: CurvePlot) -> None:
    """Draw lines of perplexities by epoch, each with its spread."""
    for line in plot.lines:
        xs, ys = zip(*line.points, strict=True)
        label = shorten_label(line.label)
        if label.startswith("_"):
            label = f"\u200b{label}"  # or matplotlib would leave it out of the legend
        (drawn,) = axes.plot(xs, ys, gid=streams.visible(line.label), label=label, marker="o")
        if any(line.spread):
            low = [max(y - spread, 1.0) for y, spread in zip(ys, line.spread, strict=True)]
            high = [y + spread for y, spread in zip(ys, line.spread, strict=True)]
            axes.fill_between(xs, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    _perplexity_axis(axes)
    _epoch_axis(axes, [line.points for line in plot.lines])


def _epoch_axis(axes: "Axes", lines: Sequence[Sequence[tuple[float, float]]]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, max(x for points in lines for x, _ in points) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("epoch")
    axes.grid(visible=True)


def shorten_label(label: str) -> str:
    """Return a label that fits a plot: cut, and with an ellipsis, where it is too long.

    Of what cannot be drawn (control characters, the surrogates of a path that is no UTF-8), the escape.
    """
    drawn = streams.visible(label)
    return drawn if len(drawn) <= _LONGEST_LABEL else f"{drawn[: _LONGEST_LABEL - 1]}…"


def _perplexity_axis(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 3 * low  # so that powers of ten and their simple multiples may all be outside
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6) if few else LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("perplexity")
    axes.legend()
