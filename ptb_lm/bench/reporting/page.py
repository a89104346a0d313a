"""A report as one page of HTML that needs nothing else: no network, no script."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import count

from ptb_lm.bench.reporting import plots
from ptb_lm.bench.reporting.document import Captioned, Document, Plot, Section
from ptb_lm.bench.reporting.page_style import STYLE
from ptb_lm.bench.reporting.tables import to_html as table_to_html

# The page itself forbids what it does not need: nothing is fetched, and no script of a label's would run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_html(document: Document) -> str:
    """Write a report as a page.

    Raises:
        UserError: matplotlib, which draws the plots, is not installed.
    """
    names = (f"plot{number}" for number in count())
    body = "\n".join(_body(document, names))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(document.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _body(document: Document, names: Iterator[str]) -> Iterator[str]:
    yield f"<h1>{escape(document.title)}</h1>"
    if document.subtitle:
        yield f'<p class="subtitle">{escape(document.subtitle)}</p>'
    yield from _list(document.lead, "lead")
    yield from _warnings(document.warnings)
    for section in document.sections:
        yield f"<section><h2>{escape(section.title)}</h2>"
        yield from _section(section, names)
        yield "</section>"


def _section(section: Section, names: Iterator[str]) -> Iterator[str]:
    for paragraph in section.paragraphs:
        yield f"<p>{escape(paragraph)}</p>"
    for captioned in section.tables:
        yield from _captioned(captioned)
    if section.plots:
        yield '<div class="plots">'
        for plot in section.plots:
            yield _figure(plot, next(names))
        yield "</div>"
    if section.published:
        yield "<h3>Published figures</h3>"
    for captioned in section.published:
        yield from _captioned(captioned)
    for captioned in section.details:
        yield f"<details><summary>{escape(captioned.caption)}</summary>"
        yield from _captioned(captioned, with_caption=False)
        yield "</details>"


def _figure(plot: Plot, name: str) -> str:
    return f"<figure><figcaption>{escape(plot.title)}</figcaption>{plots.svg(plot, name=name)}</figure>"


def _captioned(captioned: Captioned, *, with_caption: bool = True) -> Iterator[str]:
    if captioned.caption and with_caption:
        yield f'<p class="caption">{escape(captioned.caption)}</p>'
    if captioned.table:
        yield table_to_html(captioned.table)
    yield from _list(captioned.remarks, "remarks")


def _warnings(warnings: Sequence[str]) -> Iterator[str]:
    for warning in warnings:
        yield f'<p class="warning"><strong>Warning:</strong> {escape(warning)}</p>'


def _list(items: Sequence[str], name: str) -> Iterator[str]:
    if items:
        yield f'<ul class="{name}">{"".join(f"<li>{escape(item)}</li>" for item in items)}</ul>'
