"""A benchmark's answer for a terminal: speeds with bars, what to take, and what was not measured."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Summary, distinct
from ptb_lm.bench.reporting import answer, formats

_SHORTEST_BAR = 6


def chart(summary: Summary, *, width: int, encoding: str | None) -> str:
    """Return the speeds by cell type as bars, what to take, and notes; every variant is in the report.

    Args:
        summary: The results.
        width: The terminal's width in characters.
        encoding: The terminal's encoding; without a character for a bar it is drawn with number signs.
    """
    lines = _wrap(formats.title(summary.groups), width)
    groups = answer.choose_groups(summary.groups)
    for place, group in enumerate(groups):
        lines += ["", *_wrap(f"{answer.heading(group, groups)} (95 % interval)", width)]
        lines += _bars(groups, place, width, _block(encoding))
    lines.append("")
    for sentence in answer.sentences(summary.groups):
        lines += _wrap(sentence, width, indent=2)
    notes = (note for group in summary.groups for note in _notes(group))
    for note in distinct(notes):
        lines += _wrap(note, width, indent=2)
    return "\n".join(lines)


def _block(encoding: str | None) -> str:
    try:
        "█".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, max(width, 20), subsequent_indent=" " * indent, break_on_hyphens=False)


def _bars(groups: Sequence[Group], place: int, width: int, block: str) -> Iterator[str]:
    """Yield a line a cell type and framework, or two where the terminal is narrow: a bar and the speed."""
    rows = [
        (f"{key.model}, {key.framework}", mean)
        for key, results in answer.speeds(groups).items()
        if (result := results[place]) and (mean := result.mean_rate)
    ]
    speeds = [formats.rate(mean) for _, mean in rows]
    number, label = max(map(len, speeds)), max(len(label) for label, _ in rows)
    is_wide = label + number + 2 * _SHORTEST_BAR + 4 <= width
    longest = max(_SHORTEST_BAR, width - number - 2 - (label + 2 if is_wide else 2))
    fastest = max(mean.estimate for _, mean in rows)
    for (name, mean), speed in zip(rows, speeds, strict=True):
        bar = block * max(1, math.floor(longest * mean.estimate / fastest))
        if not is_wide:
            yield name
        yield f"{f'{name:<{label}}' if is_wide else ''}  {bar:<{longest}}  {speed:>{number}}"


def _notes(group: Group) -> Iterator[str]:
    """Yield which variants have no figures and why, and what the names of the others stand for."""
    unmeasured = [result for result in group.results if not result.blocks]
    for status, reason in distinct((result.status, result.reason) for result in unmeasured):
        labels = [each.label for each in unmeasured if (each.status, each.reason) == (status, reason)]
        yield f"{group.name}: {status}: {formats.join_names(labels)}: {reason}"
    yield from formats.legend(group)
