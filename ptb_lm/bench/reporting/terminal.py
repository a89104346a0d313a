"""A benchmark's results as bars of characters, for a terminal."""

import math
from collections.abc import Iterator

from ptb_lm.bench.findings import Group, Result, Summary
from ptb_lm.bench.reporting import formats

_LABEL = 36  # characters, at most
_SHORTEST_BAR = 10


def chart(summary: Summary, *, width: int, encoding: str | None) -> str:
    """Return bars of how many times as fast as the baseline each variant is; of its rate without ratios.

    Args:
        summary: The results.
        width: Of the terminal, in characters.
        encoding: Of the terminal; without a character for a bar it is drawn with number signs.
    """
    return "\n".join(line for group in summary.groups for line in _lines(group, width, _block(encoding)))


def _block(encoding: str | None) -> str:
    try:
        "█".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _lines(group: Group, width: int, block: str) -> Iterator[str]:
    results = [result for result in group.results if result.rate]
    if not results or group.work is None:
        yield f"{group.name}: nothing was measured"
        return
    with_ratios = all(result.ratio for result in results)
    over = f"times as fast as {group.label(group.baseline)} (bars; 95 % interval)" if with_ratios else ""
    rate = f"{group.work.unit} a second"
    yield f"{group.name}: {f'{rate}, {over}' if over else f'{rate} (bars)'}"
    values = [_value(result, with_ratios) for result in results]
    labels = [_shortened(result.label) for result in results]
    texts = [_text(result, with_ratios) for result in results]
    room = width - max(map(len, labels)) - max(map(len, texts)) - 4
    longest = max(_SHORTEST_BAR, room)
    for value, label, text in zip(values, labels, texts, strict=True):
        bar = block * max(1, math.floor(longest * value / max(values)))
        yield f"  {label:<{max(map(len, labels))}} {bar:<{longest}} {text}"


def _value(result: Result, with_ratios: bool) -> float:
    if with_ratios and result.ratio:
        return result.ratio.estimate
    return result.rate.median if result.rate else 0.0


def _shortened(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 3]}..."


def _text(result: Result, with_ratios: bool) -> str:
    rate = formats.significant(result.rate.median) if result.rate else ""
    return f"{rate:>9}  {formats.ratio(result.ratio)}" if with_ratios and result.ratio else f"{rate:>9}"
