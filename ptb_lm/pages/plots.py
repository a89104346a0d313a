"""Plots as SVG or PNG, with matplotlib.

matplotlib is an extra, imported when something is drawn. A plot is as wide as a telephone's screen. How it
looks is in templates/*.mplstyle.
"""

import contextlib
import io
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_lm.common import streams
from ptb_lm.common.errors import UserError, how_to_install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH = 4.6  # inches
_LARGER = 1.3  # how much larger a plot is in a file of its own
_LACKING = "Glyph .* missing from|Matplotlib currently does not support"  # begin the warnings about fonts

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same figure is the same text

MISSING = f"matplotlib is not installed; {how_to_install('bench')}"


@dataclass(frozen=True, kw_only=True)
class Plot(ABC):
    """A picture with a title."""

    title: str

    @property
    @abstractmethod
    def height(self) -> float:
        """The height in inches."""

    @abstractmethod
    def draw(self, figure: "Figure") -> None:
        """Draw it into an empty figure."""


def shorten_label(label: str, length: int = 42) -> str:
    """Return a label that fits a plot: cut, and with an ellipsis, where it is too long.

    Characters that cannot be drawn are escaped: control characters, and the surrogates of a path that is no
    UTF-8.
    """
    drawn = streams.escape_controls(label)
    return drawn if len(drawn) <= length else f"{drawn[: length - 1]}…"


def check_picture(path: Path) -> None:
    """Check that a picture can have this name.

    Raises:
        UserError: Its ending is not that of a format that can be drawn.
    """
    if path.suffix not in (".svg", ".png"):
        raise UserError(f"the name of the picture must end in .svg or .png, not {path.name}")


def style_sheets(scheme: str) -> list[Path]:
    """Return matplotlib's style sheets for a paper, "light" or "dark"."""
    return [_TEMPLATES / f"{each}.mplstyle" for each in dict.fromkeys(("light", scheme))]


@contextlib.contextmanager
def letters_of_any_font(kind: str) -> Iterator[None]:
    """Let a plot have letters that matplotlib's fonts lack, and say once on stderr if a PNG has.

    In an SVG they stay text, which its reader's fonts show.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _LACKING, UserWarning)
        yield
    others = [each for each in caught if not re.match(_LACKING, str(each.message))]
    if kind == "png" and len(others) < len(caught):
        streams.print_to_stderr(
            "warning: matplotlib's fonts lack some letters, so the .png has boxes; an .svg shows them"
        )
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def to_file(
    plot: Plot, *, kind: str, scheme: str = "light", transparent: bool = False, alone: bool = True
) -> bytes:
    """Draw a plot as a file.

    Args:
        plot: The plot.
        kind: The format, "svg" or "png".
        scheme: The paper, "light" or "dark".
        transparent: True to leave the paper out.
        alone: True for a file of its own, which is larger, and has the title; False for a part of a page.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(f"there are no plots; {MISSING}") from None
    size = _LARGER if alone else 1.0
    options: dict[str, Any] = {"metadata": _NO_METADATA} if kind == "svg" else {"dpi": 200}
    buffer = io.BytesIO()
    with style.context(style_sheets(scheme)), letters_of_any_font(kind):
        figure = Figure(figsize=(size * _WIDTH, size * plot.height))
        plot.draw(figure)
        if alone:
            title = shorten_label(plot.title, 64)
            figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
        figure.align_ylabels()
        figure.savefig(buffer, format=kind, transparent=transparent, **options)
    return buffer.getvalue()
