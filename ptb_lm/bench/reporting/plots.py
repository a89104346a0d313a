"""Plots as SVG for a page, with matplotlib: an extra, imported when something is drawn.

A plot is as wide as a telephone's screen. A bar has its label and value on a line above it, so that long
names need no room beside it. Texts stay texts: they take the page's font, and can be found and copied.
"""

import io
import re
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.bar_plot import draw_bars
from ptb_lm.bench.reporting.document import Bars, Curves, Plot
from ptb_lm.bench.reporting.page_style import LIGHT
from ptb_lm.bench.reporting.perplexity_plot import draw_curves, draw_lines, draw_speeds
from ptb_lm.bench.reporting.plot_style import STYLE, shortened
from ptb_lm.errors import UserError, how_to_install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 4.6  # inches
_BAR_HEIGHT = 0.40  # inches, with its line of text

MISSING = f"matplotlib is not installed; {how_to_install('bench')}"


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

    def draw(figure: "Figure") -> None:
        _draw(figure, plot)
        figure.axes[0].set_title(shortened(plot.title), fontsize=9, loc="left")
        figure.tight_layout(pad=0.5)

    if kind == "svg":
        return svg_file(size, draw, salt="ptb_lm", style=style).encode()
    return _file(size, draw, salt="", style=style, kind=kind, dpi=200)


def _height(plot: Plot) -> float:
    if isinstance(plot, Bars):
        return _BAR_HEIGHT * len(plot.bars) + 0.6
    return 3.6 if isinstance(plot, Curves) and plot.speeds else 2.9


def _draw(figure: "Figure", plot: Plot) -> None:
    if isinstance(plot, Curves) and plot.speeds:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        draw_speeds(below, plot.speeds)
    else:
        axes = figure.add_subplot()
    if isinstance(plot, Bars):
        draw_bars(axes, plot)
    elif isinstance(plot, Curves):
        draw_curves(axes, plot)
    else:
        draw_lines(axes, plot)
    axes.label_outer()
    figure.align_ylabels()
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
    settings = {**STYLE, "svg.hashsalt": salt, **(style or {})}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size)
        draw(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, transparent=style is None, **saved)
    return buffer.getvalue()


def _inline(drawn: str, *, title: str, name: str) -> str:
    """Return matplotlib's file as an element of a page that may hold others."""
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r"<style.*?</style>", "", element, flags=re.DOTALL)  # it would hold for the whole page
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    element = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg role="img" viewBox="\1">', element)
    for colour_name, colour in LIGHT.items():  # the page's, which are others in its dark mode
        element = re.sub(rf"\b(fill|stroke): {colour}\b", rf"\1: var(--{colour_name})", element)
    return element.replace(">", f"><title>{escape(title)}</title>", 1).strip()
