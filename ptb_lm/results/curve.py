"""Draw runs' learning curves, each into RUN/curve.svg: perplexity and words a second by epoch.

The same run gives the same file, to the byte, by the same version of matplotlib.
"""

import math
from pathlib import Path

from ptb_lm.bench.reporting import plots
from ptb_lm.bench.reporting.document import Curves
from ptb_lm.bench.reporting.perplexity_plot import PERPLEXITIES
from ptb_lm.files import atomic_write
from ptb_lm.results.runs import Run

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
    known = [column for column in PERPLEXITIES if any(column in row for row in run.epochs)]
    curves = Curves(
        title=_title(run),
        lines=[(column, _points(run, column)) for column in known],
        speeds=_points(run, "words_per_second"),
    )
    drawn = plots.picture(curves, kind="svg").decode()
    return "".join(line.rstrip() + "\n" for line in drawn.splitlines())


def _title(run: Run) -> str:
    planned = run.config.hyperparameters.epochs
    so_far = "" if run.result else f", {len(run.epochs)} of {planned} epochs"
    return f"{run.folder.resolve().name}{so_far}"


def _points(run: Run, column: str) -> list[tuple[float, float]]:
    """Return epochs and values. The line has a gap where a value is missing or larger than a float."""
    values = [(row["epoch"], row.get(column, math.nan)) for row in run.epochs]
    return [(epoch, value if math.isfinite(value) else math.nan) for epoch, value in values]
