"""The table of a workload: a row a variant, its passes side by side, in the columns of its suite."""

from collections.abc import Sequence

from ptb_lm.bench.reporting import forms
from ptb_lm.bench.reporting.forms import Measure
from ptb_lm.bench.reporting.tables import Across, Cell, Column, Name, Table
from ptb_lm.bench.results import Group, Result, distinct


def table(groups: Sequence[Group]) -> Table:
    """Return the table of a workload's passes."""
    measures = forms.of(groups[0].suite)
    # Train decides the order, as it is what people wait for.
    ordered = distinct(result.variant for group in reversed(groups) for result in group.results)
    columns = [Column("", numeric=False)]
    for group in groups:
        name = group.pass_name if len(groups) > 1 else ""
        columns += [Column(measure.heading(group), group=name) for measure in measures]
    rows = []
    for variant in ordered:
        label = next(each.label for group in groups if (each := group.result(variant)))
        cells = [_measured(group.result(variant), measures) for group in groups]
        rows.append([Name(label, variant), *_joined(cells)])
    return Table(columns, rows)


def _measured(result: Result | None, measures: Sequence[Measure]) -> list[Cell]:
    if result is None:
        return [Across("not part of this pass", len(measures))]
    if not result.blocks:
        return [Across(f"{result.status}: {result.reason}", len(measures))]
    return [measure.show(result) for measure in measures]


def _joined(passes: Sequence[list[Cell]]) -> list[Cell]:
    """Join the passes' cells, into one where all say the same across."""
    texts = {cell.text if isinstance(cell, Across) else None for cells in passes for cell in cells}
    if len(texts) == 1 and (text := texts.pop()) is not None:
        return [Across(text, sum(c.columns for cells in passes for c in cells if isinstance(c, Across)))]
    return [cell for cells in passes for cell in cells]
