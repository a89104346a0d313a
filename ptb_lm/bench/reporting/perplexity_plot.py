"""Perplexities by epoch on a logarithmic axis, and words per second, drawn with matplotlib."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptb_lm import streams
from ptb_lm.bench.reporting.document import Curves, Line, Lines
from ptb_lm.bench.reporting.plot_style import FASTER, INK, SLOWER, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Column of metrics.jsonl -> how its line looks.
PERPLEXITIES: Mapping[str, dict[str, Any]] = {
    "train_perplexity": {"label": "train", "color": SLOWER, "linestyle": "--", "marker": "s"},
    "valid_perplexity": {"label": "valid", "color": FASTER, "marker": "o"},
    "unaveraged_valid_perplexity": {"label": "valid, unaveraged", "color": FASTER, "linestyle": ":"},
}

# Of lines that have no name of their own: of Okabe and Ito, too, and after these with other dashes.
_LINES = (FASTER, SLOWER, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
_DASHES = ("-", "--", ":", "-.")


def draw_curves(axes: "Axes", plot: Curves) -> None:
    """Draw a run's perplexities by epoch; a line has a gap where one is NaN."""
    for name, points in plot.lines:
        axes.plot([x for x, _ in points], [y for _, y in points], gid=name, **PERPLEXITIES[name])
    _perplexity_axis(axes)
    _epoch_axis(axes, [points for _, points in plot.lines])


def draw_lines(axes: "Axes", plot: Lines) -> None:
    """Draw lines of perplexities by epoch, each with its spread."""
    for number, line in enumerate(plot.lines):
        colour = _LINES[number % len(_LINES)]
        dashes = _DASHES[number // len(_LINES) % len(_DASHES)]
        _draw_line(axes, line, colour=colour, dashes=dashes)
    _perplexity_axis(axes)
    _epoch_axis(axes, [line.points for line in plot.lines])


def _draw_line(axes: "Axes", line: Line, *, colour: str, dashes: str) -> None:
    xs, ys = zip(*line.points, strict=True)
    label = shortened(line.label)
    if label.startswith("_"):
        label = f"\u200b{label}"  # or matplotlib would leave it out of the legend
    axes.plot(
        xs, ys, gid=streams.visible(line.label), label=label, color=colour, linestyle=dashes, marker="o"
    )
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
    axes.grid(visible=True)


def draw_speeds(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    """Draw words per second by epoch, from 0."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    epochs, speeds = zip(*points, strict=True)
    axes.plot(epochs, speeds, gid="words_per_second", color=INK, marker="o")
    axes.set_ylim(0, 1.1 * max(speeds) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("words/s")
    axes.tick_params(length=0)
    _epoch_axis(axes, [points])


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
