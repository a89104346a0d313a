"""Plots of training runs: perplexities and words per second by epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ptb_lm.common import streams
from ptb_lm.pages.plots import Plot, shorten_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a plot.

    Attributes:
        label: Text of the legend.
        points: Epochs and perplexities.
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
    """Return a column of metrics.jsonl by epoch."""
    return [(row["epoch"], row[column]) for row in epochs]


def _draw_curve(axes: "Axes", curve: Curve) -> None:
    label, name = shorten_label(curve.label), streams.escape_controls(curve.name)
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
    from matplotlib.ticker import LogLocator, MaxNLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 3 * low  # so that powers of ten and their simple multiples may all be outside
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6) if few else LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("perplexity")
    axes.legend()
