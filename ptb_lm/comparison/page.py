"""A comparison as a page: results and curves first, then what differs; what is the same is folded."""

from collections.abc import Sequence

from ptb_lm.bench.reporting import page
from ptb_lm.bench.reporting.document import CaptionedTable, Document, Section
from ptb_lm.comparison import tables
from ptb_lm.comparison.curves import curves
from ptb_lm.comparison.runs import RunGroup, run_names


def to_html(groups: Sequence[RunGroup]) -> str:
    """Write a page of HTML.

    Raises:
        UserError: matplotlib is not installed.
    """
    count, several = sum(len(group.runs) for group in groups), len(groups) > 1
    results = [CaptionedTable(table=tables.results(groups), remarks=[tables.HOW_TO_READ])]
    if (last := tables.last_epochs(groups)).rows:
        results.append(CaptionedTable(caption=tables.LAST_EPOCH, table=last))
    sections = [Section(title="Results", tables=results, plots=[curves(groups)])]
    if (differences := tables.differences(groups)).rows:
        sections.append(Section(title=tables.DIFFERENCES, tables=[CaptionedTable(table=differences)]))
    same = tables.common_settings(groups)
    settings = (
        Section(title="Settings", details=[CaptionedTable(caption=tables.SHARED, table=same)])
        if several
        else Section(title="Settings", tables=[CaptionedTable(table=same)])
    )
    document = Document(
        title="Comparison of runs" if several else run_names(groups)[0],
        subtitle=f"{count} runs; those that differ only in the seed are one row"
        if count > len(groups)
        else "",
        lead=[],
        warnings=[],
        sections=[*sections, settings],
    )
    return page.to_html(document)
