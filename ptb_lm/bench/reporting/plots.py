"""Plots as SVG for a page, with matplotlib: an extra, imported when something is drawn.

A plot is as wide as a telephone's screen. A bar has its label and value on a line above it, so that long
names need no room beside it. Texts stay texts: they take the page's font, and can be found and copied.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.document import Bar, Bars, Curves, Line, Lines, Plot
from ptb_lm.bench.reporting.page_style import LIGHT
from ptb_lm.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by every kind of colour vision (Okabe and Ito), and on grey paper.
FASTER, SLOWER, SAME, INK, RULE = (LIGHT[name] for name in ("faster", "slower", "same", "ink", "rule"))

# Column of metrics.jsonl -> how its line looks.
PERPLEXITIES: Mapping[str, dict[str, Any]] = {
    "train_perplexity": {"label": "train", "color": SLOWER, "linestyle": "--", "marker": "s"},
    "valid_perplexity": {"label": "valid", "color": FASTER, "marker": "o"},
    "unaveraged_valid_perplexity": {"label": "valid, unaveraged", "color": FASTER, "linestyle": ":"},
}

# Of lines that have no name of their own: of Okabe and Ito, too, and after these with other dashes.
_LINES = (FASTER, SLOWER, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
_DASHES = ("-", "--", ":", "-.")

_WIDTH = 4.6  # inches
_BAR_HEIGHT = 0.40  # inches, with its line of text
_LONGEST_LABEL = 42  # characters; the whole label is in the table
_WIDE_RANGE = 6.0  # largest to smallest ratio, above which the axis is logarithmic

MISSING = "install matplotlib to get it: pip install 'ptb-lm[bench]' (a checkout: -e '.[bench]')"


def svg(plot: Plot, *, name: str) -> str:
    """Draw a plot.

    Args:
        plot: What to draw.
        name: Unique among the plots of a page; what the SVG defines is named after it.

    Returns:
        An <svg> element, of the width of its surroundings.

    Raises:
        UserError: matplotlib is not installed.
    """
    drawn = svg_file((_WIDTH, _height(plot)), lambda figure: _draw(figure, plot), salt=name)
    return _inline(drawn, title=plot.title, name=name)


def picture(plot: Plot, *, kind: str) -> bytes:
    """Draw a plot as a file of its own.

    Args:
        plot: What to draw.
        kind: "svg" or "png".

    Raises:
        UserError: matplotlib is not installed.
    """
    size, style = (1.3 * _WIDTH, 1.3 * _height(plot)), {"axes.grid": True}
    if kind == "svg":
        return svg_file(size, lambda figure: _draw(figure, plot), salt="ptb_lm", style=style).encode()
    return _file(size, lambda figure: _draw(figure, plot), salt="", style=style, kind=kind, dpi=200)


def _height(plot: Plot) -> float:
    return _BAR_HEIGHT * len(plot.bars) + 0.6 if isinstance(plot, Bars) else 2.9


def _draw(figure: "Figure", plot: Plot) -> None:
    axes = figure.add_subplot()
    if isinstance(plot, Bars):
        _draw_bars(axes, plot)
    elif isinstance(plot, Curves):
        _draw_curves(axes, plot)
    else:
        _draw_lines(axes, plot)
    figure.tight_layout(pad=0.3)


def svg_file(
    size: tuple[float, float],
    draw: Callable[["Figure"], None],
    *,
    salt: str,
    style: Mapping[str, Any] | None = None,
) -> str:
    """Draw a figure as the text of an SVG file; the same figure is the same text.

    Args:
        size: Its width and height, in inches.
        draw: Draws into it.
        salt: What the SVG defines is named by it.
        style: Settings of matplotlib beside the common ones.

    Raises:
        UserError: matplotlib is not installed.
    """
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    return _file(size, draw, salt=salt, style=style, kind="svg", metadata=nothing).decode()


def _file(
    size: tuple[float, float],
    draw: Callable[["Figure"], None],
    *,
    salt: str,
    style: Mapping[str, Any] | None,
    kind: str,
    **saved: Any,
) -> bytes:
    """Draw a figure as a file of some kind; `saved` is of matplotlib's savefig."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(f"there are no plots; {MISSING}") from None
    settings: dict[Any, Any] = {**_STYLE, "svg.hashsalt": salt, **(style or {})}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size)
        draw(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, transparent=style is None, **saved)
    return buffer.getvalue()


_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may hold dollars
    "font.size": 9,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
}


def _draw_bars(axes: "Axes", plot: Bars) -> None:
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
    label = bar.label if len(bar.label) <= _LONGEST_LABEL else f"{bar.label[: _LONGEST_LABEL - 1]}…"
    paper = {"facecolor": LIGHT["paper"], "edgecolor": "none", "pad": 0.8}  # no line runs through a text
    axes.text(0.008, position - 0.29, label, transform=line, va="bottom", bbox=paper)
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


def _draw_curves(axes: "Axes", plot: Curves) -> None:
    draw_perplexities(axes, plot.lines)
    _epoch_axis(axes, [points for _, points in plot.lines])


def _draw_lines(axes: "Axes", plot: Lines) -> None:
    for number, line in enumerate(plot.lines):
        colour = _LINES[number % len(_LINES)]
        dashes = _DASHES[number // len(_LINES) % len(_DASHES)]
        _draw_line(axes, line, colour=colour, dashes=dashes)
    _perplexity_axis(axes)
    _epoch_axis(axes, [line.points for line in plot.lines])


def _draw_line(axes: "Axes", line: Line, *, colour: str, dashes: str) -> None:
    xs, ys = zip(*line.points, strict=True)
    label = line.label if len(line.label) <= _LONGEST_LABEL else f"{line.label[: _LONGEST_LABEL - 1]}…"
    if label.startswith("_"):
        label = f"\u200b{label}"  # or matplotlib would leave it out of the legend
    axes.plot(xs, ys, gid=line.label, label=label, color=colour, linestyle=dashes, marker="o")
    if any(line.spread):
        low, high = zip(
            *((max(y - s, 1.0), y + s) for y, s in zip(ys, line.spread, strict=True)), strict=True
        )
        axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)


def _epoch_axis(axes: "Axes", lines: Sequence[Sequence[tuple[float, float]]]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, max(x for points in lines for x, _ in points) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("epoch")
    axes.grid()


def draw_perplexities(axes: "Axes", lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> None:
    """Draw perplexities by epoch on a logarithmic axis.

    Args:
        axes: Where.
        lines: (a name in PERPLEXITIES, points (epoch, perplexity)); a line has a gap where that is NaN.
    """
    for name, points in lines:
        axes.plot([x for x, _ in points], [y for _, y in points], gid=name, **PERPLEXITIES[name])
    _perplexity_axis(axes)


def _perplexity_axis(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 3 * low  # so that powers of ten and their simple multiples may all be outside
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6) if few else LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("perplexity")
    axes.tick_params(length=0)
    axes.legend(frameon=False)


def _inline(drawn: str, *, title: str, name: str) -> str:
    """Return matplotlib's file as an element of a page that may hold others."""
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r"<style.*?</style>", "", element, flags=re.DOTALL)  # it would hold for the whole page
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    element = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg role="img" viewBox="\1">', element)
    for colour_name, colour in LIGHT.items():  # the page's, which are others in its dark mode
        element = re.sub(rf"\b(fill|stroke): {colour}\b", rf"\1: var(--{colour_name})", element)
    return element.replace(">", f"><title>{escape(title)}</title>", 1).strip()
