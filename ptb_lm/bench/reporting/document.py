"""What a report consists of, before it is Markdown or a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from ptb_lm.bench.reporting.tables import Table


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


Plot = BarPlot | RunPlot | CurvePlot


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
        title: Its heading.
        paragraphs: Text before everything else.
        tables: What was measured.
        plots: Drawn in the page only.
        published: What others published.
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
        title: Its heading.
        subtitle: What it is of.
        lead: What it found, a sentence each.
        warnings: What a reader must not miss.
        sections: Its parts.
        explanation: A file of templates/ that ends it; "" for none.
    """

    title: str
    subtitle: str
    lead: Sequence[str]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    explanation: str = ""
