"""Plots as SVG or PNG, with matplotlib: an extra, imported when something is drawn.

A plot is as wide as a telephone's screen. How it looks is in templates/*.mplstyle.
"""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.bar_plot import draw_bars
from ptb_lm.bench.reporting.document import Bars, Curves, Plot
from ptb_lm.bench.reporting.perplexity_plot import draw_curves, draw_lines, draw_speeds, shortened
from ptb_lm.common.errors import UserError, how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = Path(__file__).parent / "templates"
_WIDTH = 4.6  # inches
_BAR_HEIGHT = 0.40  # inches, with its line of text
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same figure is the same text

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


def picture(plot: Plot, *, kind: str) -> bytes:
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
            axes.set_title(shortened(plot.title), fontsize="medium", loc="left")
        figure.align_ylabels()
        figure.tight_layout(pad=0.3)
        buffer = io.BytesIO()
        figure.savefig(buffer, **saved)
    return buffer.getvalue()


def _height(plot: Plot) -> float:
    if isinstance(plot, Bars):
        return _BAR_HEIGHT * len(plot.bars) + 0.6
    return 3.6 if isinstance(plot, Curves) and plot.speeds else 2.9


def _draw(figure: "Figure", plot: Plot) -> "Axes":
    """Draw a plot; return the upper axes."""
    if isinstance(plot, Curves) and plot.speeds:
        axes: Axes
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
    return axes
