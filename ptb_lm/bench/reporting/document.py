"""The parts of a report, before it is Markdown or a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from ptb_lm.bench.reporting.plots import Plot
from ptb_lm.common.tables import Table


@dataclass(frozen=True, kw_only=True)
class CaptionedTable:
    """A table with what is to be said above it and below it; or only what is to be said."""

    caption: str = ""
    table: Table | None = None
    remarks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report, in this order.

    Attributes:
        title: The heading.
        paragraphs: Text before everything else.
        tables: Tables of measured figures.
        plots: Pictures, which are in the page only.
        published: Tables of figures that others published.
        details: Tables for those who want to know more; folded up in the page.
    """

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[CaptionedTable] = ()
    plots: Sequence[Plot] = ()
    published: Sequence[CaptionedTable] = ()
    details: Sequence[CaptionedTable] = ()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report.

    Attributes:
        title: The heading.
        subtitle: Commit, machine and day, or the number of runs.
        tables: Tables that answer the reader's question.
        plots: Pictures of that answer, which are in the page only.
        lead: The findings, a sentence or two each.
        sections: The parts after the answer.
        warnings: Doubts that a reader must not miss.
        explanation: A file of templates/ that ends it; "" for none.
    """

    title: str
    subtitle: str
    lead: Sequence[str]
    sections: Sequence[Section]
    tables: Sequence[CaptionedTable] = ()
    plots: Sequence[Plot] = ()
    warnings: Sequence[str] = ()
    explanation: str = ""
