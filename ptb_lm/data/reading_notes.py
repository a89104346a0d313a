"""Notes on a text that was read: what its reader may not have meant, counted and as sentences."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Characters that some programs take for the end of a line; here each is white space.
MARKS = {"\u2028": "U+2028", "\u2029": "U+2029", "\x85": "NEL", "\f": "form feed", "\v": "vertical tab"}


@dataclass(frozen=True)
class ReadingNotes:
    """Things noticed while a text was read. A table that is read again is noted once.

    Attributes:
        marks: The count of each of MARKS.
        nulls: The count of the rows without a text, by table.
        columns: The columns that were chosen as the only ones with text, though their names are not usual;
            each with whether the first line of a file names it.
    """

    marks: Counter[str] = field(default_factory=Counter)
    nulls: Counter[Path] = field(default_factory=Counter)
    columns: dict[str, bool] = field(default_factory=dict)

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each kind that was found."""
        for column, in_first_line in self.columns.items():
            where = "; the first line of the file names it" if in_first_line else ""
            yield f"the text is the column {column!r:.80}, the only one with text{where}"
        if rows := self.nulls.total():
            yield f"{rows:,} row{'s' * (rows != 1)} without a text left out"
        if marks := " and ".join(f"{count:,} {MARKS[mark]}" for mark, count in self.marks.items() if count):
            yield f"within lines there is white space of other kinds, which ends no line here: {marks}"
