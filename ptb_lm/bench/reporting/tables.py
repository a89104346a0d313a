"""Tables, and their two looks: Markdown and HTML."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: Its heading.
        group: A heading over it and its neighbours of the same group; "" for none.
        numeric: Whether it is set flush right.
    """

    title: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Name:
    """A cell that names something: what a person calls it, and what a program does."""

    label: str
    code: str = ""


@dataclass(frozen=True)
class Across:
    """A cell over several columns, for a row that has no figures there."""

    text: str
    columns: int


Cell = str | Name | Across


@dataclass(frozen=True)
class Table:
    """A table; the cells of each row cover all columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def to_markdown(table: Table) -> str:
    """Write a table in Markdown; groups of columns become part of their titles."""
    titles = [f"{column.group}: {column.title}" if column.group else column.title for column in table.columns]
    lines = [
        _line(map(markdown_text, titles)),
        _line("--:" if column.numeric else "---" for column in table.columns),
        *(_line(text for cell in row for text in _markdown_cell(cell)) for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> str:
    """Write a table in HTML, in a box that scrolls sideways where the page is too narrow."""
    grouped = any(column.group for column in table.columns)
    head = "".join(_html_groups(table.columns)) if grouped else ""
    heads = "".join(
        f'<th scope="col"{_class(column)}>{_breakable(column.title)}</th>'
        for column in table.columns
        if not grouped or column.group
    )
    body = "".join(f"<tr>{''.join(_html_row(row, table.columns))}</tr>" for row in table.rows)
    head = f"<tr>{head}</tr><tr>{heads}</tr>" if grouped else f"<tr>{heads}</tr>"
    # The box can be reached with the keyboard, or it could not be scrolled without a mouse.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead>{head}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


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


def _markdown_cell(cell: Cell) -> Iterator[str]:
    if isinstance(cell, Across):
        yield markdown_text(cell.text)
        yield from [""] * (cell.columns - 1)
    elif isinstance(cell, Name):
        code = markdown_code(cell.code)
        yield code if cell.label == cell.code else f"{markdown_text(cell.label)} {code}".rstrip()
    else:
        yield markdown_text(cell)


def _html_groups(columns: Sequence[Column]) -> Iterator[str]:
    for group, members in groupby(columns, key=lambda column: column.group):
        among = list(members)
        if group:
            yield f'<th scope="colgroup" colspan="{len(among)}" class="group">{escape(group)}</th>'
        else:
            for column in among:
                yield f'<th scope="col" rowspan="2"{_class(column)}>{_breakable(column.title)}</th>'


def _html_row(row: Sequence[Cell], columns: Sequence[Column]) -> Iterator[str]:
    position = 0
    for cell in row:
        tag = 'th scope="row"' if position == 0 else "td"
        if isinstance(cell, Across):
            yield f'<td colspan="{cell.columns}" class="across">{escape(cell.text)}</td>'
            position += cell.columns
            continue
        yield f"<{tag}{_class(columns[position])}>{_html_cell(cell)}</{tag.split()[0]}>"
        position += 1


def _html_cell(cell: str | Name) -> str:
    if isinstance(cell, str):
        return escape(cell)
    # A long name may be broken where its parts meet.
    code = f"<code>{escape(cell.code).replace('/', '/<wbr>')}</code>" if cell.code else ""
    return code if cell.label == cell.code else f"{escape(cell.label)} {code}".rstrip()


def _class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _breakable(heading: str) -> str:
    # A variant's name in a heading would make its column as wide as the name is long.
    return escape(heading).replace("/", "/<wbr>")
