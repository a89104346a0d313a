"""The tables of published figures, of the documents that the project began with.

published.csv has a row for each figure: the command that measures it here, and the benchmark that has ours,
or why there is none. It says what was published only where that is no figure of benchmarks/published, which
WORKLOAD, PASS: NAME finds.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.published import PUBLICATIONS, Figure
from ptb_lm.bench.reporting import formats
from ptb_lm.common.errors import UserError
from ptb_lm.common.markdown_tables import write_markdown
from ptb_lm.pages.document import NOTHING
from results import benchmarks

FILE = Path(__file__).resolve().parent / "published.csv"
TITLES = ("row", "published", "here: command", "here: measured")


def build(results: Path) -> dict[str, str]:
    """Return a table for each document, with where ours was measured, by the name of its part of the page.

    Raises:
        UserError: A benchmark is missing or broken.
    """
    found, parts = pd.read_csv(FILE, keep_default_na=False), {}
    for source, rows in found.groupby("source", sort=False):
        cells = [_cells(results, row) for row in rows.to_dict("records")]
        quoted = (name for name in dict.fromkeys(rows["bench"]) if name)
        places = (f"- {name}: {benchmarks.where(benchmarks.read(results, name))}\n" for name in quoted)
        shown = write_markdown(TITLES, cells)
        parts[f"published by {source}"] = f"{shown}\nMeasured on:\n\n{''.join(places)}"
    return parts


def _cells(results: Path, row: dict[str, Any]) -> list[str]:
    row["published"] = row["published"] or "; ".join(map(_format_published, _figures(row)))
    command = f"`{row['command']}`" if row["command"] else NOTHING
    measured = (
        f"[{_format_ours(results, row)}](/{benchmarks.relative_path(row['bench'])})"
        if row["bench"]
        else row["measured"]
    )
    return [row["row"], row["published"], command, measured]


def _figures(row: dict[str, Any]) -> list[Figure]:
    found = PUBLICATIONS[row["source"]].figures
    return [each for each in found if f"{each.workload}, {each.pass_name}: {each.name}" == row["row"]]


def _format_published(figure: Figure) -> str:
    if figure.seconds_per_step is None:
        return f"{figure.rate:,.0f} words a second ({figure.hardware})"
    return f"{figure.seconds_per_step * 1e3:,.1f}".removesuffix(".0") + f" ms ({figure.hardware})"


def _format_ours(results: Path, row: dict[str, Any]) -> str:
    """Return our figure in the unit of the published one; and what computed it, if not what the row names."""
    group, result = benchmarks.find(results, row)
    if group is None or result is None or not result.blocks:
        raise UserError(f"{row['bench']} has no figure of {row['variant']}")
    unit = f"{group.work.unit} a second"
    is_rate = unit in row["published"]
    figure = result.rate.median if is_rate else result.seconds.median * 1e3
    shown = f"{formats.significant(figure)} {unit if is_rate else 'ms'}"
    cut = f" ({', '.join(group.cuts)})" if group.cuts else ""
    is_another = "processes" in row["variant"] or ("cudnn" in row["variant"] and " on cpu" in result.engine)
    return f"{shown}{cut}" + (f", by {result.engine.replace('; ', ', ')}" if is_another else "")
