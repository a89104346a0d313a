"""How plots look: the page's light colours, matplotlib's settings, and labels of a bearable length."""

from typing import Any

from ptb_lm import streams
from ptb_lm.bench.reporting.page_style import LIGHT

# Told apart by every kind of colour vision (Okabe and Ito), and on grey paper.
FASTER, SLOWER, SAME, INK, RULE = (LIGHT[name] for name in ("faster", "slower", "same", "ink", "rule"))

LONGEST_LABEL = 42  # characters; the whole label is in the table

# matplotlib's settings.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may hold dollars
    "font.size": 9,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
}


def shortened(label: str) -> str:
    """Return a label that fits a plot: cut, and with an ellipsis, where it is too long.

    Of what cannot be drawn (control characters, the surrogates of a path that is no UTF-8), the escape.
    """
    drawn = streams.visible(label)
    return drawn if len(drawn) <= LONGEST_LABEL else f"{drawn[: LONGEST_LABEL - 1]}…"
