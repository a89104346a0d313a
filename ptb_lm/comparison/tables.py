"""The tables and curves of a comparison, and their forms: text for a terminal, CSV, and a page.

They show the results of runs, the settings that differ between them, and those that are the same.

Runs that differ only in the seed are one row: the mean and the standard deviation.
"""

import csv
import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any

from ptb_lm.common.markdown_tables import Column, Name, Table, TableCell, to_markdown
from ptb_lm.comparison.curves import Curve, CurvePlot, get_points, plot_epochs
from ptb_lm.comparison.runs import UNKNOWN, Run, RunGroup, differing_settings, run_names
from ptb_lm.model.hyperparameter import format_value
from ptb_lm.pages import document
from ptb_lm.pages.document import NOTHING, CaptionedTable, Document, Section
from ptb_lm.training.evaluation import format_perplexity

HOW_TO_READ = (
    "The best epoch is chosen by validation alone. An unfinished run has no test perplexity; a finished run "
    "that was resumed for more epochs is unfinished again. A row of several seeds has their mean ± standard "
    "deviation; it has perplexities only if all seeds have done the same number of epochs."
)
OTHER_TEXTS = (
    "These runs have different texts, or prepared them differently: their perplexities cannot be compared."
)
WIDTH = 80  # of a terminal
LAST_EPOCH = "The last epoch, if it is not the best one"
DIFFERENCES = "What differs"
SHARED_CAPTION = "What is the same in all of them"


@dataclass(frozen=True)
class _Figure:
    """A number that a run has reached: the title of its column, its key in a CSV, its value, and its text."""

    title: str
    key: str
    value: Callable[[Run], float | None]
    text: Callable[[float], str] = lambda value: f"{value:,.2f}" if value < 1e7 else format_perplexity(value)


_BEST = (
    _Figure("best test", "best_test", lambda run: run.result.get("test_perplexity")),
    _Figure("best valid", "best_valid", lambda run: float(run.best["valid_perplexity"])),
)
_LAST = (
    _Figure("last test", "last_test", lambda run: run.result.get("final_test_perplexity")),
    _Figure("last valid", "last_valid", lambda run: float(run.epochs[-1]["valid_perplexity"])),
)
_SPEED = _Figure("words/s", "words_per_second", lambda run: run.words_per_second, "{:,.0f}".format)


def results(groups: Sequence[RunGroup]) -> Table:
    """Return what each group reached."""
    columns = [
        Column("run", numeric=False),
        *(Column(figure.title) for figure in _BEST),
        Column("epochs (best)"),
        Column(_SPEED.title),
        Column("seeds", numeric=False),
    ]
    rows: list[list[TableCell]] = [
        [
            Name(name, name),
            *(_mean_text(group, figure) for figure in _BEST),
            ", ".join(dict.fromkeys(map(_epochs, group.runs))),
            _mean_text(group, _SPEED),
            ", ".join(str(run.config.choice.seed) for run in group.runs),
        ]
        for group, name in zip(groups, run_names(groups), strict=True)
    ]
    return Table(columns, rows)


def last_epochs(groups: Sequence[RunGroup]) -> Table:
    """Return what the last epoch reached, of the groups in which it is not the best of every run."""
    rows: list[list[TableCell]] = [
        [Name(name, name), *(_mean_text(group, figure) for figure in _LAST)]
        for group, name in zip(groups, run_names(groups), strict=True)
        if any(not run.best.items() <= run.epochs[-1].items() for run in group.runs)
    ]
    return Table([Column("run", numeric=False), *(Column(figure.title) for figure in _LAST)], rows)


def differences(groups: Sequence[RunGroup]) -> Table:
    """Return the settings that differ: a row per group, or per setting where these are more."""
    settings = differing_settings(groups)
    runs = [Name(name, name) for name in run_names(groups)] if settings else []
    values = [[group.settings.get(setting) for group in groups] for setting in settings]
    titles: list[TableCell] = [setting.replace("_", " ") for setting in settings]
    texts = [[_text(value) for value in row] for row in values]
    if len(settings) > len(groups):
        columns = [Column("setting", numeric=False), *(Column(run.label) for run in runs)]
        return Table(columns, [[title, *row] for title, row in zip(titles, texts, strict=True)])
    numeric = [all(isinstance(value, int | float | None) for value in row) for row in values]
    columns = [Column(str(title), numeric=each) for title, each in zip(titles, numeric, strict=True)]
    rows = [[run, *row] for run, row in zip(runs, zip(*texts, strict=True), strict=True)]
    return Table([Column("run", numeric=False), *columns], rows)


def common_settings(groups: Sequence[RunGroup]) -> Table:
    """Return the settings that are the same in all groups."""
    others, settings = differing_settings(groups), [group.settings for group in groups]
    same = {name: value for name, value in settings[0].items() if name not in others}
    for name in UNKNOWN.keys() & same.keys():  # which the first run may not tell, but another
        same[name] = next((each[name] for each in settings if each[name] != UNKNOWN[name]), UNKNOWN[name])
    rows = [[name.replace("_", " "), _text(value)] for name, value in same.items()]
    return Table([Column("setting", numeric=False), Column("value", numeric=False)], rows)


def to_text(groups: Sequence[RunGroup]) -> str:
    """Write results, what differs and what is the same, in Markdown with aligned columns, for a terminal."""
    parts = [("", results(groups)), (LAST_EPOCH, last_epochs(groups)), (DIFFERENCES, differences(groups))]
    texts = [
        f"{title and f'{title}:'}\n\n{_align(to_markdown(table))}" for title, table in parts if table.rows
    ]
    same = ", ".join(" ".join(map(str, row)) for row in common_settings(groups).rows)
    remarks = (*_remarks(groups), f"{SHARED_CAPTION if len(groups) > 1 else 'Settings'}: {same}.")
    # A path stays whole, and can be copied.
    fill = partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*texts, *(f"{fill(remark)}\n" for remark in remarks)]).lstrip()


def _remarks(groups: Sequence[RunGroup]) -> list[str]:
    """Return what a reader of the results must know."""
    return [*[OTHER_TEXTS] * ("data" in differing_settings(groups)), HOW_TO_READ]


def _align(table: str) -> str:
    """Pad the cells of a Markdown table; columns that do not fit come below, beside the first one again."""
    _, rule, *_ = rows = [line[2:-2].split(" | ") for line in table.splitlines()]
    right = [cell.endswith(":") for cell in rule]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule[:] = [cell.rjust(width, "-") for cell, width in zip(rule, widths, strict=True)]
    first, *others = (
        [cell.rjust(width) if numeric else cell.ljust(width) for cell in column]
        for column, width, numeric in zip(zip(*rows, strict=True), widths, right, strict=True)
    )
    parts = [[first]]
    for column in others:
        if len(parts[-1]) > 1 and sum(len(each[0]) + 3 for each in [*parts[-1], column]) >= WIDTH:
            parts.append([first])
        parts[-1].append(column)
    return "\n".join("".join(f"| {' | '.join(row)} |\n" for row in zip(*part, strict=True)) for part in parts)


def to_csv(groups: Sequence[RunGroup]) -> str:
    """Write a table for a program: all digits, and standard deviations in separate columns."""
    figures, settings = (
        (*_BEST, *_LAST, _SPEED),
        [*dict.fromkeys([*differing_settings(groups), "epochs", "parameters"])],
    )
    keys = [key for figure in figures for key in (figure.key, f"{figure.key}_sd")]
    titles = ["planned_epochs" if name == "epochs" else name for name in settings]  # "epochs" are those done
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *keys, "epochs", "best_epoch", "seeds", *titles])
    for group, name in zip(groups, run_names(groups), strict=True):
        writer.writerow(
            [
                name,
                *(number for figure in figures for number in _mean(group, figure)),
                " ".join(str(len(run.epochs)) for run in group.runs),
                " ".join(str(run.best["epoch"]) for run in group.runs),
                " ".join(str(run.config.choice.seed) for run in group.runs),
                *(_csv_value(group.settings.get(each)) for each in settings),
            ]
        )
    return text.getvalue()


def to_html(groups: Sequence[RunGroup]) -> str:
    """Write a page of HTML, in ASCII: it is printed, and stdout may have any encoding.

    Raises:
        UserError: matplotlib is not installed.
    """
    count, several = sum(len(group.runs) for group in groups), len(groups) > 1
    shown = [CaptionedTable(table=results(groups), remarks=_remarks(groups))]
    if (last := last_epochs(groups)).rows:
        shown.append(CaptionedTable(caption=LAST_EPOCH, table=last))
    sections = [Section(title="Results", tables=shown, plots=[curves(groups)])]
    if (different := differences(groups)).rows:
        sections.append(Section(title=DIFFERENCES, tables=[CaptionedTable(table=different)]))
    same = common_settings(groups)
    settings = (
        Section(title="Settings", details=[CaptionedTable(caption=SHARED_CAPTION, table=same)])
        if several
        else Section(title="Settings", tables=[CaptionedTable(table=same)])
    )
    page = Document(
        title="Comparison of runs" if several else run_names(groups)[0],
        subtitle=f"{count} runs; those that differ only in the seed are one row"
        if count > len(groups)
        else "",
        lead=[],
        warnings=[],
        sections=[*sections, settings],
    )
    return document.to_html(page).encode("ascii", "xmlcharrefreplace").decode()


def _mean(group: RunGroup, figure: _Figure) -> tuple[float | None, float | None]:
    """Return the mean of a figure and, of several runs, its standard deviation.

    Both are None unless all runs have the figure and, for perplexities, have done equally many epochs.
    """
    values = [value for run in group.runs if (value := figure.value(run)) is not None]
    epochs = {len(run.epochs) for run in group.runs if figure is not _SPEED}
    if len(values) < len(group.runs) or len(epochs) > 1:
        return None, None
    return fmean(values), stdev(values) if len(values) > 1 else None


def _mean_text(group: RunGroup, figure: _Figure) -> str:
    known = [figure.text(number) for number in _mean(group, figure) if number is not None]
    return " ± ".join(known) or NOTHING


def _epochs(run: Run) -> str:
    done, whole = len(run.epochs), run.config.hyperparameters.epochs
    out_of = "" if run.result and done == whole else f" of {whole}"
    return f"{done}{out_of} ({run.best['epoch']})"


def _csv_value(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if type(value) is int else format_value(value) or NOTHING


def curves(groups: Sequence[RunGroup]) -> CurvePlot:
    """Return the validation perplexities of several runs; of one run, all perplexities and its speed."""
    run, *others = (run for group in groups for run in group.runs)
    if others:
        return _plot_groups(groups)
    whole = run.config.hyperparameters.epochs
    so_far = "" if run.result else f", {len(run.epochs)} of {whole} epochs"
    return plot_epochs(run.epochs, title=f"{run.folder.resolve().name}{so_far}")


def _plot_groups(groups: Sequence[RunGroup]) -> CurvePlot:
    """Return a line per group, up to its shortest run."""
    drawn = []
    for group, name in zip(groups, run_names(groups), strict=True):
        epochs = [*zip(*(get_points(run.epochs, "valid_perplexity") for run in group.runs), strict=False)]
        values = [[value for _, value in points] for points in epochs]
        several = len(group.runs) > 1
        label = f"{name} ({len(group.runs)} seeds)" if several else name
        drawn.append(
            Curve(
                label=label,
                name=label,
                points=[(points[0][0], fmean(each)) for points, each in zip(epochs, values, strict=True)],
                spread=[stdev(each) for each in values] if several else (),
            )
        )
    return CurvePlot(title="Validation perplexity by epoch", curves=drawn)
