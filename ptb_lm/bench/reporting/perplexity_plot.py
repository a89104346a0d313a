"""Perplexities by epoch on a logarithmic axis, and words per second, drawn with matplotlib."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptb_lm.bench.reporting.document import Curves, Lines
from ptb_lm.common import streams

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Column of metrics.jsonl -> how its line looks.
PERPLEXITIES: Mapping[str, dict[str, Any]] = {
    "train_perplexity": {"label": "train", "color": "C1", "linestyle": "--", "marker": "s"},
    "valid_perplexity": {"label": "valid", "color": "C0", "linestyle": "-", "marker": "o"},
    "unaveraged_valid_perplexity": {"label": "valid, unaveraged", "color": "C0", "linestyle": ":"},
}
_LONGEST_LABEL = 42  # characters; the whole label is in the table


def draw_curves(axes: "Axes", plot: Curves) -> None:
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


def draw_lines(axes: "Axes", plot: Lines) -> None:
    """Draw lines of perplexities by epoch, each with its spread."""
    for line in plot.lines:
        xs, ys = zip(*line.points, strict=True)
        label = shortened(line.label)
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


def shortened(label: str) -> str:
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
