"""Markdown: figures in the cells of tables, and the parts of a page that a command writes."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write

PART = re.compile(r"(?ms)^(<!-- (.+?): .*?-->\n)(.*?)^(<!-- end of \2 -->)$")
_NAME = re.compile(r"(?m)^<!-- (?:end of )?(.+?)(?:: .*)? -->$")


def perplexity(values: Iterable[float | None], *, strong: bool = False) -> str:
    """Return the mean and, of several, the lowest and the highest; nothing unless all are known."""
    known = [math.nan if value is None else float(value) for value in values]
    if not known or any(map(math.isnan, known)):
        return ""
    mean = f"{math.fsum(known) / len(known):.2f}"
    spread = f" ({min(known):.2f} to {max(known):.2f})" if len(known) > 1 else ""
    return f"**{mean}**{spread}" if strong else mean + spread


def format_range(ordered: Sequence[str]) -> str:
    """Return the first and the last of some texts, once if they are the same."""
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))


def fill_parts(page: Path, parts: Mapping[str, str]) -> str:
    """Return a page's text with other parts: each is between `<!-- NAME: … -->` and `<!-- end of NAME -->`.

    Raises:
        UserError: The page is missing, or a part of it has not its two marks exactly once.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{page} is missing") from None
    marks, found = _NAME.findall(text), [part[1] for part in PART.findall(text)]
    for name in {*marks} & {*parts}:
        if (found.count(name), marks.count(name)) != (1, 2):
            raise UserError(f"{page} must have the part {name} once, between its two marks")
    return PART.sub(
        lambda part: f"{part[1]}\n{parts[part[2]]}\n{part[4]}" if part[2] in parts else part[0], text
    )


def write_part(page: Path, name: str, content: str) -> None:
    """Replace one part of a page.

    Raises:
        UserError: The page is missing, or has not this part exactly once.
    """
    changed = fill_parts(page, {name: content})
    if f"<!-- end of {name} -->" not in changed:
        raise UserError(f"{page} has no part {name}")
    atomic_write(page, changed)
