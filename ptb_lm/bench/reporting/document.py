"""The parts of a report, before it is Markdown or a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptb_lm.common.tables import Table


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a plot: a value with its whisker."""

    label: str
    value: float
    text: str  # the value, for people
    low: float | None = None  # the whisker's ends; None for no whisker
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class BarPlot:
    """Horizontal bars; `origin` is where they start: 1 for ratios, 0 for fractions."""

    title: str
    bars: Sequence[Bar]
    origin: float
    percent: bool = False


@dataclass(frozen=True, kw_only=True)
class RunPlot:
    """A run over epochs 1, 2, …: perplexities by column of metrics.jsonl and, below, words per second."""

    title: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    speeds: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a plot; `spread` is half the height of the band about each point, 0 for no band."""

    label: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class CurvePlot:
    """Perplexities by epoch of several runs, a line each."""

    title: str
    lines: Sequence[Curve]


@dataclass(frozen=True, kw_only=True)
class SpeedPlot:
    """Speeds by cell type, in panels that each have an axis of their own.

    Attributes:
        title: The heading.
        panels: The bars by the heading of their panel and by cell type; a bar's label is its framework.
    """

    title: str
    panels: Mapping[str, Mapping[str, Sequence[Bar]]]


Plot = SpeedPlot | BarPlot | RunPlot | CurvePlot


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
