"""Tables, and their form in Markdown."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: The heading.
        numeric: True for a column that is set flush right.
    """

    title: str
    numeric: bool = True


@dataclass(frozen=True)
class Name:
    """A cell that names something: its label for people, and its name in programs."""

    label: str
    code: str = ""


TableCell = str | Name


@dataclass(frozen=True)
class Table:
    """A table; each row has a cell a column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[TableCell]]


def to_markdown(table: Table) -> str:
    """Write a table in Markdown."""
    titles = [f"{markdown_text(column.title)}{':' * column.numeric}" for column in table.columns]
    return write_markdown(titles, ([_markdown_cell(cell) for cell in row] for row in table.rows))


def write_markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table whose texts are Markdown already.

    Args:
        titles: The headings; a colon at the end stands for a column of numbers, flush right.
        rows: The cells of each row.
    """
    heads = [title.removesuffix(":") for title in titles]
    rule = ["--:" if title.endswith(":") else "---" for title in titles]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *rows))


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is, in a table too."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    # An underscore inside a word is only itself.
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def markdown_code(text: str) -> str:
    """Return a name as Markdown code; a backtick, which would end it, becomes an apostrophe."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else ""


def _markdown_cell(cell: TableCell) -> str:
    if isinstance(cell, str):
        return markdown_text(cell)
    code = markdown_code(cell.code)
    return code if cell.label == cell.code else f"{markdown_text(cell.label)} {code}".rstrip()
