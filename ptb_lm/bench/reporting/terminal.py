"""A benchmark's results for a terminal: the answer with bars, what to take, and then every variant."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Summary, distinct, speed_ratio
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import answer, formats

_SHORTEST_BAR = 6
_HOW_TO_READ = (
    "× is how many times as fast as the baseline, the fastest, or the next below, with its 95 % interval. "
    f"{formats.SAME}: the interval holds 1, so that no difference shows."
)
_ROUNDS_ALONE = "Of fewer than three processes: some intervals lack what differs between processes."


def chart(summary: Summary, *, width: int, encoding: str | None) -> str:
    """Return the speeds by cell type as bars, what to take, and tables of all variants with their ratios.

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
    lines += ["", *_wrap(_HOW_TO_READ, width)]
    explanations: set[str] = set()
    for group in summary.groups:
        lines += ["", *_table(group, width)]
        unmeasured = [result for result in group.results if not result.blocks]
        for status, reason in distinct((result.status, result.reason) for result in unmeasured):
            labels = [each.label for each in unmeasured if (each.status, each.reason) == (status, reason)]
            lines += _wrap(f"{status}: {formats.join_names(labels)}: {reason}", width, indent=2)
        for each in formats.legend(group):
            if each not in explanations:
                lines += _wrap(each, width, indent=2)
            explanations.add(each)
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


def _table(group: Group, width: int) -> Iterator[str]:
    """Yield two lines a variant: its name, and its median speed with the ratios to others."""
    members, fastest = group.measured_results, group.fastest
    if not members or group.work is None:
        yield f"{group.name}: nothing was measured"
        return
    ratios = [
        (
            result.ratio,
            speed_ratio(result, fastest) if fastest else None,
            speed_ratio(result, below) if below else None,
        )
        for result, below in zip(members, [*members[1:], None], strict=True)
    ]
    yield from _wrap(
        f"{group.name}: the baseline is {group.label(group.baseline)}"
        f"{f', the fastest is {fastest.label}' if fastest else ''}",
        width,
    )
    heads = (f"{group.work.unit}/s", "× baseline ", "× fastest ", "× next ")
    rows = [
        (formats.significant(result.rate.median, 4) if result.rate else "", *map(_align, each))
        for result, each in zip(members, ratios, strict=True)
    ]
    sizes = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    yield _line(heads, sizes)
    for result, cells in zip(members, rows, strict=True):
        yield result.label
        yield _line(cells, sizes)
    if any(ratio and ratio.error is not None and ratio.unit == "round" for each in ratios for ratio in each):
        yield _ROUNDS_ALONE


def _line(cells: Sequence[str], sizes: Sequence[int]) -> str:
    return "".join(f"  {cell:>{size}}" for cell, size in zip(cells, sizes, strict=True)).rstrip()


def _align(ratio: Ratio | None) -> str:
    shown = formats.marked_ratio(ratio)
    return shown if shown.endswith(formats.SAME) else f"{shown} "
