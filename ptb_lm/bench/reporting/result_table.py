"""The table of a workload: a row a variant, its passes side by side, in the columns of its suite.

What nobody can measure here has no row: below the table a line says which variants, and why.
"""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.reporting import forms
from ptb_lm.bench.reporting.forms import Measure
from ptb_lm.bench.reporting.tables import Across, Cell, Column, Name, Table
from ptb_lm.bench.results import Group, Result, distinct


def table(groups: Sequence[Group]) -> Table | None:
    """Return the table of a workload's passes; None where it has no row."""
    measures = forms.of(groups[0].suite)
    left_out = _unavailable(groups)
    # Train decides the order, as it is what people wait for.
    ordered = [
        variant
        for variant in distinct(result.variant for group in reversed(groups) for result in group.results)
        if variant not in left_out
    ]
    if not ordered:
        return None
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


def unavailable(groups: Sequence[Group]) -> Iterator[str]:
    """Yield who is not available here, a sentence a reason."""
    variants = _unavailable(groups)
    for reason in distinct(variants.values()):
        names = sorted(variant for variant, why in variants.items() if why == reason)
        yield f"not available here, {', '.join(names)}: {reason}"


def _unavailable(groups: Sequence[Group]) -> dict[str, str]:
    """Return the reasons by variant, of those that are unavailable in all their passes."""
    reasons: dict[str, str] = {}
    others = set()
    for result in (result for group in groups for result in group.results):
        if result.status == "unavailable" and not result.blocks:
            reasons.setdefault(result.variant, result.reason)
        else:
            others.add(result.variant)
    return {variant: reason for variant, reason in reasons.items() if variant not in others}


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
