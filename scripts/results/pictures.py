"""The pictures of README.md: words per second by model, and learning curves beside what was published.

Each is an SVG for light and for dark paper. It ends in a digest of what it shows, so that a picture is drawn
again only if its data change, and checked without matplotlib. To draw one in another style, remove it first.
"""

import dataclasses
import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from ptb_lm.bench.reporting import headline
from ptb_lm.bench.results import ResultGroup
from ptb_lm.common import files
from ptb_lm.comparison.curves import Curve, CurvePlot
from ptb_lm.data.preparation import PTB
from ptb_lm.pages import plots
from ptb_lm.pages.plots import Plot
from results import benchmarks, run_tables, store

FOLDER = "docs/pictures"  # from the checkout's root
TEMPLATE = Path(__file__).resolve().parent / "both_schemes.svg"  # a plot for light and for dark paper
PRESETS = ("small", "medium")
RECIPES = {"tutorial": "--", "default": "-"}  # and how the line is drawn


def plan(results: Path, bench: str, variants: Sequence[str]) -> dict[str, Plot]:
    """Return each picture by the name of its file.

    Args:
        results: The folder.
        bench: The benchmark with the speeds.
        variants: The names of its variants that are shown.
    """
    found = benchmarks.read(results, bench)
    groups = [_choose(group, variants) for group in found.groups if group.workload in PRESETS]
    curves = CurvePlot(title="Validation perplexity by epoch", curves=[*_curves(results)])
    speed = next(headline.plot(groups), None)
    return {"curves.svg": curves} | ({"speed.svg": speed} if speed else {})


def _choose(group: ResultGroup, variants: Sequence[str]) -> ResultGroup:
    """Return a group with some of its variants only."""
    return dataclasses.replace(
        group, results=tuple(each for each in group.results if each.variant in variants)
    )


def _curves(results: Path) -> Iterator[Curve]:
    """Yield a line for each preset and recipe, the mean of its runs, and one for what was published."""
    runs = run_tables.read(results)
    runs = runs[(runs["data"] == PTB) & (runs["overrides"] == "") & runs["has_ended"]]
    for index, preset in enumerate(PRESETS):
        epochs = store.read(results, store.curves(preset))
        published = run_tables.TUTORIAL_PERPLEXITIES[preset][1]
        ends: list[tuple[float, float]] = []
        for recipe, line in RECIPES.items():
            own = runs[(runs["preset"] == preset) & (runs["recipe"] == recipe)]
            points = _mean(epochs[epochs["id"].isin(own["id"])])
            if points:  # or no run has ended yet
                yield _curve(f"{preset}, {recipe} recipe", points, color=f"C{index}", linestyle=line)
                ends = [(points[0][0], published), (points[-1][0], published)]
        if ends:
            yield _curve(f"{preset}, published: {published}", ends, color=f"C{index}", linestyle=":")


def _curve(label: str, points: list[tuple[float, float]], **look: str) -> Curve:
    return Curve(label=label, name=label, points=points, look=look)


def _mean(epochs: pd.DataFrame) -> list[tuple[float, float]]:
    means = epochs.groupby("epoch")["valid_perplexity"].mean()
    return [(int(epoch), float(value)) for epoch, value in means.items()]


def digest_line(plot: Plot) -> str:
    """Return the last line of a picture: the digest of what it shows."""
    # Another machine rounds the last digits otherwise.
    shown = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.6g}", repr(plot))
    return f"<!-- {hashlib.sha256(shown.encode()).hexdigest()} -->\n"


def is_drawn(plot: Plot, path: Path) -> bool:
    """Return whether a file shows a plot."""
    return path.exists() and path.read_text(encoding="utf-8").endswith(digest_line(plot))


def draw(plot: Plot, path: Path) -> None:
    """Draw a plot into a file that is readable on light and on dark paper, as a browser's user prefers.

    Raises:
        UserError: matplotlib is not installed.
    """
    both = {}
    for scheme in ("light", "dark"):
        svg = plots.to_file(plot, kind="svg", scheme=scheme, transparent=True).decode()
        both[scheme] = svg[svg.index("<svg") :]
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', both["light"])[:2]
    size = {"width": float(width), "height": float(height)}
    text = TEMPLATE.read_text(encoding="utf-8").format(title=html.escape(plot.title), **size, **both)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.atomic_write(path, f"{text.rstrip()}\n{digest_line(plot)}")
