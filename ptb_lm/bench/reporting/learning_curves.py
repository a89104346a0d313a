"""Learning curves: what run directories (ptb_lm.training.run_directory) tell, for a report."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm.bench.reporting import formats
from ptb_lm.bench.reporting.document import Captioned, Curves, Section
from ptb_lm.bench.reporting.formats import NOTHING
from ptb_lm.bench.reporting.tables import Cell, Column, Name, Table
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory


def section(runs: Sequence[Path]) -> Section:
    """Describe some runs: a row and a plot each.

    Raises:
        UserError: A path is not a run directory, or its metrics are missing or broken.
    """
    columns = [
        Column("run", numeric=False),
        Column("epochs"),
        Column("train perplexity"),
        Column("best valid perplexity"),
        Column("test perplexity"),
        Column("words a second"),
    ]
    rows: list[list[Cell]] = []
    plots = []
    for path in runs:
        run = RunDirectory(path)
        config, metrics = run.read_config(), run.read_metrics()
        rows.append(_row(path, config, metrics, run.read_end(len(metrics))))
        plots.append(_plot(path, config, metrics))
    return Section(
        title="Learning curves",
        paragraphs=[
            "Perplexity by epoch; train is measured on the way, with dropout where the model has it."
        ],
        tables=[Captioned(table=Table(columns, rows))],
        plots=plots,
    )


def _what(config: RunConfig) -> str:
    return f"{config.config}, {config.choice.framework} {config.choice.model}"


def _row(path: Path, config: RunConfig, metrics: list[dict[str, Any]], result: dict[str, Any]) -> list[Cell]:
    best = min(metrics, key=lambda row: row["valid_perplexity"])
    test = result.get("test_perplexity")
    return [
        Name(_what(config), path.name),
        str(len(metrics)),
        f"{metrics[-1]['train_perplexity']:,.2f}",
        f"{best['valid_perplexity']:,.2f} (epoch {best['epoch']:.0f})",
        f"{test:,.2f}" if isinstance(test, int | float) else NOTHING,
        formats.significant(metrics[-1]["words_per_second"], 4),
    ]


def _plot(path: Path, config: RunConfig, metrics: list[dict[str, Any]]) -> Curves:
    lines = [
        # What is beyond a float has no place on an axis: the line has a gap there.
        (key, [(row["epoch"], row[key] if math.isfinite(row[key]) else math.nan) for row in metrics])
        for key in ("train_perplexity", "valid_perplexity")
    ]
    return Curves(title=f"{_what(config)} ({path.name})", lines=lines)
