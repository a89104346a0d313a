"""Tables, and how they are written in Markdown."""

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
    lines = [
        _line(markdown_text(column.title) for column in table.columns),
        _line("--:" if column.numeric else "---" for column in table.columns),
        *(_line(map(_markdown_cell, row)) for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is, in a table too."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    # An underscore inside a word is only itself.
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def markdown_code(text: str) -> str:
    """Return a name as Markdown code; a backtick, which would end it, becomes an apostrophe."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: TableCell) -> str:
    if isinstance(cell, str):
        return markdown_text(cell)
    code = markdown_code(cell.code)
    return code if cell.label == cell.code else f"{markdown_text(cell.label)} {code}".rstrip()
