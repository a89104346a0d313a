"""What reading a text found that may not be what was meant, counted, and in sentences."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Characters that some programs take for the end of a line; here each is white space.
MARKS = {"\u2028": "U+2028", "\u2029": "U+2029", "\x85": "NEL", "\f": "form feed", "\v": "vertical tab"}


@dataclass(frozen=True)
class ReadingNotes:
    """What reading a text adds up. A table that is read again is noted once.

    Attributes:
        marks: The count of each of MARKS.
        nulls: The count of the rows without a text, by table.
    """

    marks: Counter[str] = field(default_factory=Counter)
    nulls: Counter[Path] = field(default_factory=Counter)

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each kind that was found."""
        if rows := self.nulls.total():
            yield f"{rows:,} row{'s' * (rows != 1)} without a text left out"
        if marks := " and ".join(f"{count:,} {MARKS[mark]}" for mark, count in self.marks.items() if count):
            yield f"within lines there is white space of other kinds, which ends no line here: {marks}"
