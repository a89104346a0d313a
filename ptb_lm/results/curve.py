"""Draw runs' learning curves, each into RUN/curve.svg: perplexity and words a second by epoch.

The same run gives the same file, to the byte, by the same version of matplotlib.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_lm.bench.reporting.perplexity_plot import PERPLEXITIES, draw_perplexities
from ptb_lm.bench.reporting.plot_style import INK
from ptb_lm.bench.reporting.plots import svg_file
from ptb_lm.files import atomic_write
from ptb_lm.results.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "curve.svg"  # beside a run's files


def draw(run: Run) -> Path:
    """Draw a run's learning curves into its folder; return the file.

    Raises:
        UserError: matplotlib is not installed.
    """
    path = run.folder / FILE
    atomic_write(path, svg(run))
    return path


def svg(run: Run) -> str:
    """Draw a run's learning curves.

    Raises:
        UserError: matplotlib is not installed.
    """

    def draw(figure: "Figure") -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        known = [column for column in PERPLEXITIES if any(column in row for row in run.epochs)]
        draw_perplexities(upper, [(column, _points(run, column)) for column in known])
        _draw_speed(lower, run)
        upper.set_title(_title(run), fontsize=9, loc="left")
        figure.align_ylabels()
        figure.tight_layout(pad=0.5)

    drawn = svg_file((5.6, 4.2), draw, salt="ptb_lm", style={"axes.grid": True})
    return "".join(line.rstrip() + "\n" for line in drawn.splitlines())


def _title(run: Run) -> str:
    planned = run.config.hyperparameters.epochs
    so_far = "" if run.result else f", {len(run.epochs)} of {planned} epochs"
    return f"{run.folder.resolve().name}{so_far}"


def _draw_speed(axes: "Axes", run: Run) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    points = _points(run, "words_per_second")
    speeds = [speed for _, speed in points]
    axes.plot([epoch for epoch, _ in points], speeds, gid="words_per_second", color=INK, marker="o")
    axes.set_ylim(0, 1.1 * max(speeds) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("words/s")
    axes.set_xlim(0.5, len(run.epochs) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.set_xlabel("epoch")
    axes.tick_params(length=0)


def _points(run: Run, column: str) -> list[tuple[float, float]]:
    """Return epochs and values. The line has a gap where a value is missing or larger than a float."""
    values = [(row["epoch"], row.get(column, math.nan)) for row in run.epochs]
    return [(epoch, value if math.isfinite(value) else math.nan) for epoch, value in values]
