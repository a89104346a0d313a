"""The curves of a comparison: perplexities by epoch, a line per group; or all that one run recorded."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from ptb_lm.bench.reporting.plots import PERPLEXITIES, Curve, CurvePlot
from ptb_lm.comparison.runs import Run, RunGroup, run_names


def curves(groups: Sequence[RunGroup]) -> CurvePlot:
    """Return the validation perplexities of several runs; of one run, all perplexities and its speed."""
    runs = [run for group in groups for run in group.runs]
    return _plot_run(runs[0]) if len(runs) == 1 else _plot_groups(groups)


def _plot_run(run: Run) -> CurvePlot:
    whole = run.config.hyperparameters.epochs
    so_far = "" if run.result else f", {len(run.epochs)} of {whole} epochs"
    known = [column for column in PERPLEXITIES if column in run.epochs[0]]
    return CurvePlot(
        title=f"{run.folder.resolve().name}{so_far}",
        curves=[Curve(name=column, points=_points(run, column), **PERPLEXITIES[column]) for column in known],
        speeds=_points(run, "words_per_second"),
    )


def _points(run: Run, column: str) -> list[tuple[float, float]]:
    return [(row["epoch"], _axis_value(row[column])) for row in run.epochs]


def _axis_value(value: float) -> float:
    # What is beyond a float has no place on an axis: the line has a gap there.
    return value if math.isfinite(value) else math.nan


def _plot_groups(groups: Sequence[RunGroup]) -> CurvePlot:
    """Return a line per group, up to its shortest run."""
    drawn = []
    for group, name in zip(groups, run_names(groups), strict=True):
        epochs = [*zip(*(_points(run, "valid_perplexity") for run in group.runs), strict=False)]
        values = [[value for _, value in points] for points in epochs]
        several = len(group.runs) > 1
        label = f"{name} ({len(group.runs)} seeds)" if several else name
        drawn.append(
            Curve(
                label=label,
                name=label,
                points=[(points[0][0], fmean(each)) for points, each in zip(epochs, values, strict=True)],
                spread=[stdev(each) for each in values] if several else (),
            )
        )
    return CurvePlot(title="Validation perplexity by epoch", curves=drawn)
