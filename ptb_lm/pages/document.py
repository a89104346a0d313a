"""A document: its parts, as Markdown, and as one page of HTML that needs nothing else, no network, no script.

The page is the Markdown with plots between its tables. Both are written by templates/.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from xml.etree.ElementTree import Element

import jinja2
import markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from markupsafe import Markup

from ptb_lm.common import markdown_tables, streams
from ptb_lm.pages import plots
from ptb_lm.pages.plots import Plot

NOTHING = "–"  # stands in a table where there is no figure
_LONGEST_LINE = 22  # characters of a cell that is not broken: a figure with its interval

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=jinja2.select_autoescape(["html"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"text": markdown_tables.markdown_text, "table": markdown_tables.to_markdown}


@dataclass(frozen=True, kw_only=True)
class CaptionedTable:
    """A table with what is to be said above it and below it; or only what is to be said."""

    caption: str = ""
    table: markdown_tables.Table | None = None
    remarks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a document, in this order.

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
    """A document.

    Attributes:
        title: The heading.
        subtitle: Commit, machine and day, or the number of runs.
        tables: Tables that answer the reader's question.
        plots: Pictures of that answer, which are in the page only.
        lead: The findings, a sentence or two each.
        sections: The parts after the answer.
        warnings: Doubts that a reader must not miss.
        explanation: Markdown that ends it; "" for none.
    """

    title: str
    subtitle: str
    lead: Sequence[str]
    sections: Sequence[Section]
    tables: Sequence[CaptionedTable] = ()
    plots: Sequence[Plot] = ()
    warnings: Sequence[str] = ()
    explanation: str = ""


def to_markdown(document: Document, *, figure: Callable[[Plot], str] | None = None) -> str:
    """Write a document in Markdown.

    Args:
        document: The document.
        figure: Draws a plot as HTML; None: plots are left out, and details are not folded.
    """
    written = _TEMPLATES.get_template("document.md").render(document=document, figure=figure)
    # Nothing in it steers a terminal on which it is looked at.
    lines = [streams.escape_controls(line) for line in written.split("\n")]
    # An empty line between two parts, whichever of them there are.
    return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before) + "\n"


def to_html(document: Document) -> str:
    """Write a document as a page.

    Raises:
        UserError: matplotlib, which draws the plots, is not installed.
    """
    body = markdown.markdown(
        to_markdown(document, figure=_figure), extensions=["tables", "md_in_html", _Rows()]
    )
    return _TEMPLATES.get_template("page.html").render(title=document.title, body=Markup(body))  # noqa: S704


def _figure(plot: Plot) -> str:
    draw = partial(plots.to_file, plot, kind="svg", transparent=True, alone=False)
    drawn = {scheme: b64encode(draw(scheme=scheme)).decode() for scheme in ("light", "dark")}
    return _TEMPLATES.get_template("figure.html").render(title=plot.title, **drawn)


class _Rows(Extension, Treeprocessor):  # type: ignore[misc]  # Markdown ships no types
    """Gives rows a heading, lets a text use the empty cells behind it, and keeps figures on one line."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(self, "rows", 15)  # after the text of cells was read

    def run(self, root: Element) -> None:
        for row in root.iterfind(".//tbody/tr"):
            row[0].tag = "th"
            row[0].set("scope", "row")
            cells = len(row)
            while len(row) > 2 and not row[-1].text and not len(row[-1]):
                row.remove(row[-1])
            if len(row) < cells:
                row[-1].set("colspan", str(cells - len(row) + 1))
            for cell in row[1:]:
                if len(cell.text or "") <= _LONGEST_LINE:
                    cell.set("class", "short")
