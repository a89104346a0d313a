"""Plots as SVG or PNG, with matplotlib: of any kind (bars: bar_plot.py), and perplexities by epoch.

matplotlib is an extra, imported when something is drawn. A plot is as wide as a telephone's screen. How it
looks is in templates/*.mplstyle.
"""

import base64
import html
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ptb_lm.bench.reporting import formats
from ptb_lm.common import streams
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.common.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH, _TITLE_HEIGHT = 4.6, 0.22  # inches
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same figure is the same text
# Column of metrics.jsonl -> the label and the look of its curve.
PERPLEXITIES: Mapping[str, dict[str, Any]] = {
    "train_perplexity": {"label": "train", "look": {"color": "C1", "linestyle": "--", "marker": "s"}},
    "valid_perplexity": {"label": "valid", "look": {"color": "C0", "linestyle": "-", "marker": "o"}},
    "unaveraged_valid_perplexity": {
        "label": "valid, unaveraged",
        "look": {"color": "C0", "linestyle": ":"},
    },
}
Points = Sequence[tuple[float, float]]  # epochs and values

MISSING = f"matplotlib is not installed; {how_to_install('bench')}"


@dataclass(frozen=True, kw_only=True)
class Plot(ABC):
    """A picture with a title."""

    title: str

    @property
    @abstractmethod
    def height(self) -> float:
        """The height in inches."""

    @property
    def legend_height(self) -> float:
        """The height in inches that a legend takes below all axes."""
        return 0.0

    @abstractmethod
    def draw(self, figure: "Figure") -> None:
        """Draw it into an empty figure."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a plot.

    Attributes:
        label: Text of the legend.
        points: Epochs and perplexities; the line has a gap where one is NaN.
        spread: Half the height of the band about each point; empty for no band.
        name: Name of the line in an SVG.
        look: Arguments of matplotlib for the line.
    """

    label: str
    points: Points
    name: str
    spread: Sequence[float] = ()
    look: Mapping[str, Any] = field(default_factory=lambda: {"marker": "o"})


@dataclass(frozen=True, kw_only=True)
class CurvePlot(Plot):
    """Perplexities by epoch, and below them words per second, if there are any.

    Attributes:
        curves: The lines of perplexities.
        speeds: Epochs and words per second.
    """

    curves: Sequence[Curve]
    speeds: Points = ()

    @property
    @override
    def height(self) -> float:
        return 3.6 if self.speeds else 2.9

    @override
    def draw(self, figure: "Figure") -> None:
        if self.speeds:
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
            self._draw_speeds(below)
        else:
            axes = figure.add_subplot()
        for curve in self.curves:
            _draw_curve(axes, curve)
        _perplexity_axis(axes)
        _epoch_axis(axes, [curve.points for curve in self.curves])
        axes.label_outer()

    def _draw_speeds(self, axes: "Axes") -> None:
        """Draw words per second by epoch, from 0."""
        epochs, speeds = zip(*self.speeds, strict=True)
        axes.plot(epochs, speeds, gid="words_per_second", color="C6", linestyle="-", marker="o")
        axes.set_ylim(0, 1.1 * max(speeds) or 1)
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("words/s")
        _epoch_axis(axes, [self.speeds])


def plot_epochs(epochs: Sequence[Mapping[str, Any]], *, title: str) -> CurvePlot:
    """Return the plot of a run: the perplexities that it recorded, and its words per second.

    Args:
        epochs: Rows of metrics.jsonl; at least one.
        title: Heading of the plot.
    """
    curves = [
        Curve(name=column, points=get_points(epochs, column), **labelled)
        for column, labelled in PERPLEXITIES.items()
        if column in epochs[0]
    ]
    return CurvePlot(title=title, curves=curves, speeds=get_points(epochs, "words_per_second"))


def get_points(epochs: Sequence[Mapping[str, Any]], column: str) -> Points:
    """Return a column of metrics.jsonl by epoch; NaN where a value is beyond a float: no axis has it."""
    return [(row["epoch"], row[column] if math.isfinite(row[column]) else math.nan) for row in epochs]


def to_data_uri(plot: Plot, *, scheme: str) -> str:
    """Draw a plot as an SVG without paper, in the URI of an image.

    Args:
        plot: The plot.
        scheme: The paper, "light" or "dark".

    Raises:
        UserError: matplotlib is not installed.
    """
    svg = _render(plot, scheme, format="svg", metadata=_NO_METADATA, transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def to_file(plot: Plot, *, kind: str) -> bytes:
    """Draw a plot as a file of its own.

    Args:
        plot: The plot.
        kind: The format, "svg" or "png".

    Raises:
        UserError: matplotlib is not installed.
    """
    options: dict[str, Any] = {"metadata": _NO_METADATA} if kind == "svg" else {"dpi": 200}
    return _render(plot, "light", size=1.3, with_title=True, format=kind, **options)


def write_svg(plot: Plot, path: Path) -> None:
    """Draw a plot into a file that is readable on light and on dark paper, as a browser's user prefers.

    Args:
        plot: The plot.
        path: The file, an SVG without paper that holds the plot in both schemes.

    Raises:
        UserError: matplotlib is not installed.
        OSError: The folder is not writable, or the disk is full.
    """
    options = {"format": "svg", "metadata": _NO_METADATA, "transparent": True}
    light, dark = (
        _render(plot, scheme, size=1.3, with_title=True, **options).decode() for scheme in ("light", "dark")
    )
    both = {"light": light[light.index("<svg") :], "dark": dark[dark.index("<svg") :]}
    template = (_TEMPLATES / "both_schemes.svg").read_text(encoding="utf-8")
    size = {"width": 1.3 * _WIDTH * 72, "height": 1.3 * plot.height * 72}
    atomic_write(path, template.format(title=html.escape(plot.title), **size, **both))


def style_sheets(scheme: str) -> list[Path]:
    """Return matplotlib's style sheets for a paper, "light" or "dark"."""
    return [_TEMPLATES / f"{each}.mplstyle" for each in dict.fromkeys(("light", scheme))]


def _render(plot: Plot, scheme: str, *, size: float = 1.0, with_title: bool = False, **options: Any) -> bytes:
    """Draw a plot as a file; `options` are those of matplotlib's savefig."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(f"there are no plots; {MISSING}") from None
    with style.context(style_sheets(scheme)):
        height = size * plot.height
        figure = Figure(figsize=(size * _WIDTH, height))
        plot.draw(figure)
        if with_title:
            title = formats.shorten_label(plot.title, 64)
            figure.suptitle(title, fontsize="medium", x=0.01, y=1 - 0.05 / height, ha="left", va="top")
        figure.align_ylabels()
        top = 1 - _TITLE_HEIGHT / height if with_title else 1
        figure.tight_layout(pad=0.3, rect=(0, plot.legend_height / height, 1, top))
        buffer = io.BytesIO()
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def _draw_curve(axes: "Axes", curve: Curve) -> None:
    label, name = formats.shorten_label(curve.label), streams.escape_controls(curve.name)
    if label.startswith("_"):
        label = f"\u200b{label}"  # or matplotlib would leave it out of the legend
    epochs, values = zip(*curve.points, strict=True)
    (drawn,) = axes.plot(epochs, values, gid=name, label=label, **curve.look)
    if any(curve.spread):
        low, high = zip(
            *((max(y - s, 1.0), y + s) for y, s in zip(values, curve.spread, strict=True)), strict=True
        )
        axes.fill_between(epochs, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)


def _epoch_axis(axes: "Axes", lines: Sequence[Points]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, max(x for points in lines for x, _ in points) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("epoch")
    axes.grid(visible=True)


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
