"""A benchmark's results for a terminal: two lines a variant, its name and a bar with its figures."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Summary, distinct, speed_ratio
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats, names

_SHORTEST_BAR = 6
_HOW_TO_READ = (
    "× is how many times as fast as the baseline, the fastest, or the next below, with its 95 % interval. "
    f"{formats.SAME}: the interval holds 1, so that no difference shows."
)
_OF_ROUNDS = "Of fewer than three processes: some intervals lack what differs between processes."


def chart(summary: Summary, *, width: int, encoding: str | None) -> str:
    """Return tables in which each variant has its rate, and ratios to the baseline, the fastest and the next.

    Args:
        summary: The results.
        width: The terminal's, in characters.
        encoding: The terminal's; without a character for a bar it is drawn with number signs.
    """
    block = _block(encoding)
    lines = [*_wrapped(names.title(summary.groups), width), *_wrapped(_HOW_TO_READ, width)]
    explained: set[str] = set()
    for group in summary.groups:
        lines += ["", *_table(group, width, block)]
        missing = [result for result in group.results if not result.blocks]
        for status, reason in distinct((result.status, result.reason) for result in missing):
            labels = [each.label for each in missing if (each.status, each.reason) == (status, reason)]
            lines += _wrapped(f"{status}: {formats.join_names(labels)}: {reason}", width, indent=2)
        for each in names.legend(group):
            if each not in explained:
                lines += _wrapped(each, width, indent=2)
            explained.add(each)
    return "\n".join(lines)


def _block(encoding: str | None) -> str:
    try:
        "█".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _wrapped(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, max(width, 20), subsequent_indent=" " * indent, break_on_hyphens=False)


def _table(group: Group, width: int, block: str) -> Iterator[str]:
    measured, fastest = group.measured_results, group.fastest
    if not measured or group.work is None:
        yield f"{group.name}: nothing was measured"
        return
    rates = [result.rate.median if result.rate else 0.0 for result in measured]
    ratios = [
        (
            result.ratio,
            speed_ratio(result, fastest) if fastest else None,
            speed_ratio(result, following) if following else None,
        )
        for result, following in zip(measured, [*measured[1:], None], strict=True)
    ]
    yield from _wrapped(
        f"{group.name}: the baseline is {group.label(group.baseline)}"
        f"{f', the fastest is {fastest.label}' if fastest else ''}",
        width,
    )
    heads = (f"{group.work.unit}/s", "× baseline ", "× fastest ", "× next ")
    rows = [
        (formats.significant(rate, 4), *map(_aligned, each)) for rate, each in zip(rates, ratios, strict=True)
    ]
    sizes = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    longest = max(_SHORTEST_BAR, width - sum(sizes) - 2 * len(sizes) - 2)
    yield f"{'':{longest + 2}}{_line(heads, sizes)}".rstrip()
    for result, rate, cells in zip(measured, rates, rows, strict=True):
        bar = block * max(1, math.floor(longest * rate / max(rates)))
        yield result.label
        yield f"  {bar:<{longest}}{_line(cells, sizes)}".rstrip()
    if any(ratio and ratio.error is not None and ratio.unit == "round" for each in ratios for ratio in each):
        yield _OF_ROUNDS


def _line(cells: Sequence[str], sizes: Sequence[int]) -> str:
    return "".join(f"  {cell:>{size}}" for cell, size in zip(cells, sizes, strict=True))


def _aligned(ratio: Ratio | None) -> str:
    shown = formats.marked_ratio(ratio)
    return shown if shown.endswith(formats.SAME) else f"{shown} "
