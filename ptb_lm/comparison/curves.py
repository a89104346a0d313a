"""The curves of a comparison: perplexities by epoch, a line per group; or all that one run recorded."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from ptb_lm.bench.reporting import plots
from ptb_lm.bench.reporting.document import Curve, CurvePlot, RunPlot
from ptb_lm.bench.reporting.plots import PERPLEXITIES
from ptb_lm.comparison.runs import Run, RunGroup, run_names


def curves(groups: Sequence[RunGroup]) -> RunPlot | CurvePlot:
    """Return the validation perplexities of several runs; of one run, all perplexities and its speed."""
    runs = [run for group in groups for run in group.runs]
    return _plot_run(runs[0]) if len(runs) == 1 else _plot_groups(groups)


def picture(groups: Sequence[RunGroup], *, kind: str) -> bytes:
    """Draw the curves as a file: "svg" or "png".

    Raises:
        UserError: matplotlib is not installed.
    """
    return plots.to_file(curves(groups), kind=kind)


def _plot_run(run: Run) -> RunPlot:
    whole = run.config.hyperparameters.epochs
    so_far = "" if run.result else f", {len(run.epochs)} of {whole} epochs"
    known = [column for column in PERPLEXITIES if column in run.epochs[0]]
    return RunPlot(
        title=f"{run.folder.resolve().name}{so_far}",
        lines=[(column, _points(run, column)) for column in known],
        speeds=_points(run, "words_per_second"),
    )


def _points(run: Run, column: str) -> list[tuple[float, float]]:
    return [(row["epoch"], _drawn(row[column])) for row in run.epochs]


def _drawn(value: float) -> float:
    # What is beyond a float has no place on an axis: the line has a gap there.
    return value if math.isfinite(value) else math.nan


def _plot_groups(groups: Sequence[RunGroup]) -> CurvePlot:
    """Return a line per group, up to its shortest run."""
    lines = []
    for group, name in zip(groups, run_names(groups), strict=True):
        epochs = [*zip(*(_points(run, "valid_perplexity") for run in group.runs), strict=False)]
        values = [[value for _, value in points] for points in epochs]
        several = len(group.runs) > 1
        lines.append(
            Curve(
                label=f"{name} ({len(group.runs)} seeds)" if several else name,
                points=[(points[0][0], fmean(each)) for points, each in zip(epochs, values, strict=True)],
                spread=[stdev(each) if several else 0.0 for each in values],
            )
        )
    return CurvePlot(title="Validation perplexity by epoch", lines=lines)
