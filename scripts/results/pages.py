"""The pages and pictures that are made from results/: how they are written or compared."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ptb_lm.common import files
from ptb_lm.common.errors import UserError
from ptb_lm.pages.plots import Plot
from results import benchmarks, pictures, published, records, run_tables, study_tables
from results.expand import expand_entries
from results.markdown import PART, fill_parts

HERE = Path(__file__).resolve().parent
SPECIFICATION = HERE / "tables.toml"
# Pages of results/ are made whole of these; of others only the parts are written.
TEMPLATES = HERE / "pages"
OTHERS = ("README.md", "docs/semantics.md")
MADE_HERE = "scripts/tables"
LINK = re.compile(r"\]\(/([^)]*)\)")  # to a path from the checkout's root


def parts(results: Path) -> dict[str, str]:
    """Return the content of each part of a page, by its name.

    Raises:
        UserError: A benchmark or a table is missing or broken.
    """
    found: dict[str, Any] = tomllib.loads(SPECIFICATION.read_text(encoding="utf-8"))
    tables = {}
    for name, spec in found["benchmark"].items():
        shared = {key: found[key][spec[key]] for key in ("columns", "rows") if isinstance(spec[key], str)}
        tables[name] = benchmarks.build(results, {**spec, **shared}, found["titles"])
    tables |= {name: study_tables.build(results, spec) for name, spec in found["study"].items()}
    runs = run_tables.read(results)
    tables |= {name: records.table(runs, name) for name in records.TABLES}
    tables |= {f"ablation of {preset}": run_tables.ablation(runs, preset) for preset in run_tables.STEPS}
    return {
        **tables,
        "benchmarks": benchmarks.all_of_them(results),
        **published.build(results),
        "perplexities": run_tables.perplexities(runs),
        "perplexities in short": run_tables.perplexities_in_short(runs),
        "runs": run_tables.all_of_them(runs),
        "ablation of modern": run_tables.without_a_piece(runs),
        "by hours": run_tables.by_hours(runs),
        "fine-tuning": run_tables.fine_tuning(runs),
        "profile": study_tables.profile(results),
        "scoring": study_tables.scoring(results),
        "contention": study_tables.contention(results),
        "gate": study_tables.gate(results),
    }


def make_pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each page of a checkout with the text that it should have.

    Raises:
        UserError: A page and what is made do not name the same parts, or the data cannot be read.
    """
    content, shown = parts(root / "results"), set()
    pages = {root / "results" / path.name: path for path in sorted(TEMPLATES.glob("*.md"))}
    for page, source in {**pages, **{root / name: root / name for name in OTHERS}}.items():
        with_links = {
            name: LINK.sub(partial(_relative, root, page.parent), part) for name, part in content.items()
        }
        yield page, fill_parts(source, with_links)
        shown |= {
            name for head, name, _, _ in PART.findall(source.read_text(encoding="utf-8")) if MADE_HERE in head
        }
    if wrong := shown ^ {*content}:
        raise UserError(f"on no page, or made by nothing: {', '.join(sorted(wrong))}")


def _relative(root: Path, folder: Path, link: re.Match[str]) -> str:
    return f"]({os.path.relpath(root / link[1], folder)})"


def plan_pictures(root: Path) -> dict[Path, Plot]:
    """Return each picture by its file: the speeds are those of the table `cells`, without the plain loops."""
    cells = tomllib.loads(SPECIFICATION.read_text(encoding="utf-8"))["benchmark"]["cells"]
    variants = [row["variant"] for row in expand_entries(cells["rows"])]
    ours = [name for name in variants if not name.startswith("plain-")]
    plots = pictures.plan(root / "results", benchmarks.newest(root / "results", cells["bench"]), ours)
    return {root / pictures.FOLDER / name: plot for name, plot in plots.items()}


def write(root: Path) -> None:
    """Write the pages and the pictures that change, and say which."""
    for page, text in [*make_pages(root)]:
        if _text(page) != text:
            files.atomic_write(page, text)
            print(f"wrote {page.relative_to(root)}")
    for path, plot in plan_pictures(root).items():
        if not pictures.is_drawn(plot, path):
            pictures.draw(plot, path)
            print(f"drew {path.relative_to(root)}")


def differences(root: Path) -> str:
    """Return how pages and pictures differ from what would be written; "" if they do not."""
    lines = [
        f"{path.relative_to(root)} would be drawn anew\n"
        for path, plot in plan_pictures(root).items()
        if not pictures.is_drawn(plot, path)
    ]
    for page, text in make_pages(root):
        name = str(page.relative_to(root))
        lines += difflib.unified_diff(
            _text(page).splitlines(keepends=True), text.splitlines(keepends=True), name, f"{name}, made anew"
        )
    return "".join(lines)


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8") if page.exists() else ""
