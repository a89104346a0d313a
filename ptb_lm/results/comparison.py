"""A comparison of runs: the settings that differ, their results, and their curves in one picture.

Runs that differ only in the seed are one row and one line: the mean and the standard deviation.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ptb_lm.bench.reporting import page, plots
from ptb_lm.bench.reporting.document import Captioned, Document, Line, Lines, Section
from ptb_lm.bench.reporting.formats import NOTHING, significant
from ptb_lm.bench.reporting.tables import Cell, Column, Name, Table, to_markdown
from ptb_lm.results.run_groups import Group, differing, names
from ptb_lm.results.runs import Run

HOW_TO_READ = (
    "The best epoch is chosen by validation alone. A run that has not ended, or has done more epochs since, "
    "has no test perplexity. Of several seeds: mean ± standard deviation."
)


@dataclass(frozen=True)
class _Figure:
    title: str
    key: str  # in a CSV
    of: Callable[[Run], float | None]
    shown: Callable[[float], str]
    varies: bool = True  # between seeds


def _perplexity(value: float) -> str:
    return f"{value:,.2f}"


FIGURES = (
    _Figure(
        "parameters",
        "parameters",
        lambda run: run.result.get("parameters"),
        lambda value: f"{value:,.0f}",
        varies=False,
    ),
    _Figure("best valid", "best_valid", lambda run: float(run.best["valid_perplexity"]), _perplexity),
    _Figure("best test", "best_test", lambda run: run.result.get("test_perplexity"), _perplexity),
    _Figure("last valid", "last_valid", lambda run: float(run.epochs[-1]["valid_perplexity"]), _perplexity),
    _Figure("last test", "last_test", lambda run: run.result.get("final_test_perplexity"), _perplexity),
    _Figure(
        "words/s", "words_per_second", lambda run: run.words_per_second, lambda value: significant(value, 4)
    ),
)


def table(groups: Sequence[Group]) -> Table:
    """Return one row per group."""
    differ = differing(groups)
    columns = [
        Column("run", numeric=False),
        Column("seeds", numeric=False),
        *(
            Column(name.replace("_", " "), numeric=_is_number(groups[0].settings.get(name)))
            for name in differ
        ),
        Column("epochs (best)"),
        *(Column(figure.title) for figure in FIGURES),
    ]
    return Table(
        columns, [_row(group, name, differ) for group, name in zip(groups, names(groups), strict=True)]
    )


def _row(group: Group, name: str, differ: Sequence[str]) -> list[Cell]:
    return [
        Name(name, name),
        ", ".join(str(run.config.choice.seed) for run in group.runs),
        *(_setting(group.settings.get(each)) for each in differ),
        ", ".join(dict.fromkeys(map(_epochs, group.runs))),
        *(_figure(group, figure) for figure in FIGURES),
    ]


def _figure(group: Group, figure: _Figure) -> str:
    if (known := group.mean_of(figure.of)) is None:
        return NOTHING
    mean, deviation = known
    several = len(group.runs) > 1 and figure.varies
    return f"{figure.shown(mean)} ± {figure.shown(deviation)}" if several else figure.shown(mean)


def _epochs(run: Run) -> str:
    done, planned = len(run.epochs), run.config.hyperparameters.epochs
    of_them = "" if run.result and done == planned else f" of {planned}"
    return f"{done}{of_them} ({run.best['epoch']})"


def _setting(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def curves(groups: Sequence[Group]) -> Lines:
    """Return the validation perplexities by epoch: one line per group, up to its shortest run."""
    lines = []
    for group, name in zip(groups, names(groups), strict=True):
        points, spread = [], []
        for rows in zip(*(run.epochs for run in group.runs), strict=False):
            values = [float(row["valid_perplexity"]) for row in rows]
            # What is beyond a float has no place on an axis: the line has a gap there.
            known = all(map(math.isfinite, values))
            points.append((float(rows[0]["epoch"]), fmean(values) if known else math.nan))
            spread.append(stdev(values) if known and len(values) > 1 else 0.0)
        of_seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        lines.append(Line(label=f"{name}{of_seeds}", points=points, spread=spread))
    return Lines(title="Validation perplexity by epoch", lines=lines)


def picture(groups: Sequence[Group], *, kind: str) -> bytes:
    """Draw the curves as a file: "svg" or "png".

    Raises:
        UserError: matplotlib is not installed.
    """
    return plots.picture(curves(groups), kind=kind)


def markdown(groups: Sequence[Group]) -> str:
    """Write the table in Markdown."""
    return f"{to_markdown(table(groups))}\n{HOW_TO_READ}\n"


def as_csv(groups: Sequence[Group]) -> str:
    """Write the table for a program: all digits, and standard deviations in separate columns."""
    differ = differing(groups)
    titles = [title for figure in FIGURES for title in (figure.key, *([f"{figure.key}_sd"] * figure.varies))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    settings = ["planned_epochs" if each == "epochs" else each for each in differ]  # "epochs" are those done
    writer.writerow(["run", "seeds", *settings, "epochs", "best_epoch", *titles])
    for group, name in zip(groups, names(groups), strict=True):
        writer.writerow(
            [
                name,
                " ".join(str(run.config.choice.seed) for run in group.runs),
                *(group.settings.get(each) for each in differ),
                " ".join(str(len(run.epochs)) for run in group.runs),
                " ".join(str(run.best["epoch"]) for run in group.runs),
                *_numbers(group),
            ]
        )
    return text.getvalue()


def _numbers(group: Group) -> Iterator[float | str]:
    for figure in FIGURES:
        mean, deviation = group.mean_of(figure.of) or ("", "")
        if figure.varies:
            yield mean
            yield deviation if len(group.runs) > 1 else ""
        else:
            yield int(mean) if mean else ""


def html(groups: Sequence[Group]) -> str:
    """Write a page with the table and the curves.

    Raises:
        UserError: matplotlib is not installed.
    """
    count = sum(len(group.runs) for group in groups)
    section = Section(
        title="Runs",
        paragraphs=[HOW_TO_READ],
        tables=[Captioned(table=table(groups))],
        plots=[curves(groups)],
    )
    same = Captioned(
        caption="What all of them share",
        table=Table(
            [Column("setting", numeric=False), Column("value", numeric=False)],
            [
                [name.replace("_", " "), _setting(value)]
                for name, value in groups[0].settings.items()
                if name not in differing(groups)
            ],
        ),
    )
    document = Document(
        title="Comparison of runs",
        subtitle=f"{count} runs, {len(groups)} of them apart from the seed" if count > len(groups) else "",
        lead=[],
        warnings=[],
        sections=[section, Section(title="Settings", details=[same])],
    )
    return page.to_html(document)


FORMATS: dict[str, Callable[[Sequence[Group]], str]] = {"markdown": markdown, "csv": as_csv, "page": html}
